"""How fast numbers come through what the sandbox cannot close:   python -m tests.bench.channels [--bits 200] [--only WORD]

Two ranks of a graded answer know the same random bits. One lets them through, by nothing that a call carries, the other
tells them from how long something takes, and counts how many it got wrong; the first fifth of them is for practice.
Per channel and bit length, the capacity of a binary symmetric channel with that many errors.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from math import log2, sqrt
from pathlib import Path

import torch

from collectives.outcome.errors import RunError
from grader.described_calls import Ungradable
from grader.sandbox import SandboxPool
from grader.switch import Switch
from helpers.exercise.cases import Case

FILE = Path(torch.__file__).parent / "testing/_internal/common_methods_invocations.py"
COMMON = """
import ctypes, glob, hashlib, mmap, os, random, sys, threading, time
import torch, torch.distributed as dist

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
FILE = os.open(os.path.join(os.path.dirname(torch.__file__), "testing/_internal/common_methods_invocations.py"), os.O_RDONLY)
PAGE = 4096

def pages():
    begin = LIBC.mmap(None, ctypes.c_size_t(64 * PAGE), 1, 1, FILE, ctypes.c_long(0))
    return begin

def until(moment):
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left - 2e-4) if left > 1e-3 else None

def answer(bits, slot):
    rank, generator = dist.get_rank(), random.Random(7)
    sent, seen = [generator.getrandbits(1) for _ in range(bits)], []
    prepare(rank)
    dist.barrier()
    first = began = (time.monotonic() + 0.1) // 0.1 * 0.1 + 0.1  # the same on both ranks
    until(began)
    for k, bit in enumerate(sent):
        seen.append(tell(bit, first + k * slot, slot) if rank == 0 else told(first + k * slot, slot))
    seconds = time.monotonic() - began
    if rank == 0:
        return
    practice = bits // 5
    by_bit = [[s for b, s in zip(sent[:practice], seen) if b == bit] for bit in (0, 1)]
    middle = [sorted(one)[len(one) // 2] for one in by_bit]
    border = sum(middle) / 2
    got = [int((s > border) == (middle[1] > middle[0])) for s in seen[practice:]]
    print("RESULT", len(got), sum(a != b for a, b in zip(got, sent[practice:])), seconds * len(got) / bits)
"""
CHANNELS = {
    "a delay before a barrier": (
        (0.02, 0.005, 0.002, 0.001),
        """
        def prepare(rank): pass
        def tell(bit, begin, slot):
            if bit: time.sleep(slot)
            dist.barrier()
        def told(begin, slot):
            since = time.monotonic()
            dist.barrier()
            return time.monotonic() - since
        """,
    ),
    "all cores busy or not": (
        (0.05, 0.02, 0.005),
        """
        def prepare(rank): pass
        def burn(end):
            while time.monotonic() < end: hashlib.sha256(bytes(1 << 14))
        def tell(bit, begin, slot):
            until(begin)
            if bit:
                threads = [threading.Thread(target=burn, args=(begin + slot,)) for _ in range(os.cpu_count() or 1)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
            until(begin + slot)
        def told(begin, slot):
            until(begin)
            count = 0
            while time.monotonic() < begin + 0.9 * slot: count += 1
            until(begin + slot)
            return count
        """,
    ),
    "a page of a file in memory or not": (
        (0.01, 0.003, 0.001),
        """
        def prepare(rank):
            global PAGES
            PAGES = pages()
        def tell(bit, begin, slot):
            until(begin)
            if bit:
                ctypes.c_char.from_address(PAGES + 32 * PAGE).value
                LIBC.madvise(ctypes.c_void_p(PAGES + 32 * PAGE), ctypes.c_size_t(PAGE), 21)  # MADV_PAGEOUT
            until(begin + slot)
        def told(begin, slot):
            until(begin + slot / 2)
            since = time.perf_counter()
            os.pread(FILE, 1, 32 * PAGE)
            took = time.perf_counter() - since
            until(begin + slot)
            return took
        """,
    ),
    "a cold page of a file read before or not": (  # each page once: main() throws them all out of memory before
        (0.01, 0.003, 0.001),
        """
        def prepare(rank):
            global PAGES, PLACES
            size = os.fstat(FILE).st_size
            PAGES = LIBC.mmap(None, ctypes.c_size_t(size), 1, 1, FILE, ctypes.c_long(0))
            LIBC.madvise(ctypes.c_void_p(PAGES), ctypes.c_size_t(size), 1)  # MADV_RANDOM: nothing read ahead
            PLACES = iter(range(0, size, PAGE))
        def tell(bit, begin, slot):
            until(begin)
            place = next(PLACES)
            if bit: ctypes.c_char.from_address(PAGES + place).value
            until(begin + slot)
        def told(begin, slot):
            until(begin + slot / 2)
            since = time.perf_counter()
            ctypes.c_char.from_address(PAGES + next(PLACES)).value
            took = time.perf_counter() - since
            until(begin + slot)
            return took
        """,
    ),
    "a line of a file in the cache or not": (
        (0.005, 0.001, 0.0003, 0.0001),
        """
        CODE = bytes.fromhex(  # cycles that a read of [rdi] takes; then out of all caches with it
            "0faef0 0faee8 0f31 48c1e220 4809d0 4989c0 8a0f 0faee8 0f31 48c1e220 4809d0 4c29c0 0fae3f c3".replace(" ", "")
        )
        def prepare(rank):
            global LINE, reload
            LINE = pages() + 40 * PAGE
            code = LIBC.mmap(None, ctypes.c_size_t(PAGE), 7, 0x22, -1, ctypes.c_long(0))
            ctypes.memmove(code, CODE, len(CODE))
            reload = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(code)
            ctypes.c_char.from_address(LINE).value
        def tell(bit, begin, slot):
            char = ctypes.c_char.from_address(LINE)
            while time.monotonic() < begin: pass
            while time.monotonic() < begin + slot:
                if bit: char.value
        def told(begin, slot):
            while time.monotonic() < begin: pass
            took = []
            while time.monotonic() < begin + 0.9 * slot: took.append(reload(LINE))
            return sorted(took)[len(took) // 2] if took else 0
        """,
    ),
    "the last threads that the system allows, taken or not": (  # where it allows fewer than 600, see switch.MOST_THREADS
        (0.02, 0.01, 0.005, 0.003, 0.001),
        """
        CODE = bytes.fromhex(  # a new thread on stack rdi waits on the word at rsi, then ends; or why there is none
            "4989f1 4889fe bf000f0500 31d2 4531d2 4531c0 b838000000 0f05 4885c0 7401 c3"
            "4c89cf be80000000 31d2 4531d2 b8ca000000 0f05 31ff b83c000000 0f05".replace(" ", "")
        )
        SPARE = 2
        def prepare(rank):
            global thread, TAKE, TRY, taken
            code = LIBC.mmap(None, ctypes.c_size_t(PAGE), 7, 0x22, -1, ctypes.c_long(0))
            ctypes.memmove(code, CODE, len(CODE))
            ctypes.c_int.from_address(code + 2056).value = 1  # so it doesn't wait
            start = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)(code)
            thread = lambda word: start(code + 4000, word)
            TAKE, TRY = code + 2048, code + 2056
            if rank == 0:
                taken = any(thread(TAKE) < 0 for _ in range(590))
                assert taken, "the system allows more threads"
        def free(count):
            LIBC.syscall(202, ctypes.c_void_p(TAKE), 129, count)  # FUTEX_WAKE, private
        def tell(bit, begin, slot):
            global taken
            until(begin)
            if bit:
                while thread(TAKE) > 0: pass
            elif taken:
                free(SPARE)
            taken = bit
            until(begin + slot)
        def told(begin, slot):
            until(begin + 0.6 * slot)
            got = thread(TRY)
            until(begin + slot)
            return float(got > 0)
        """,
    ),
}


def capacity(bits: int, wrong: int, seconds: float) -> float:
    """Bits per second that come through, at so many errors; 0 at as many as by chance, within three deviations."""
    if abs(wrong - bits / 2) < 1.5 * sqrt(bits):
        return 0.0
    share = min(wrong, bits - wrong) / bits
    entropy = -sum(p * log2(p) for p in (share, 1 - share) if p)
    return (1 - entropy) * bits / seconds


def tried(source: str, sandboxes: SandboxPool) -> str:
    """What the receiving rank printed, or why there is nothing."""
    world, sandbox = sandboxes.world(2), sandboxes.sandbox
    switch = Switch(world, {"answer": source}, "answer_of_two", sandbox.end_ranks, sandbox.usage)
    try:
        switch.attempt([("answer", source)], [Case(2)], [[(torch.ones(1),)] * 2])
    except (RunError, Ungradable) as error:
        return str(error).strip().splitlines()[-1]
    finally:
        sandboxes.dismiss()
    return switch.printed[0][1].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=200)
    parser.add_argument("--only", default="", help="the channels with this word in their name")
    options = parser.parse_args()
    print(f"{'':38}{'a bit':>10}{'wrong':>12}{'capacity':>14}   load")
    with closing(SandboxPool()) as sandboxes:
        for name, (slots, code) in CHANNELS.items():
            if options.only not in name:
                continue
            lines = [line.removeprefix("        ") for line in code.splitlines()]
            for slot in slots:
                bits = max(50, min(options.bits, int(2 / slot)))
                source = "\n".join([COMMON, *lines, f"def answer_of_two(x): answer({bits}, {slot})"])
                with FILE.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                said = tried(source, sandboxes)
                if not said.startswith("RESULT"):
                    print(f"{name:38}{1e3 * slot:7.1f} ms   {said}")
                    continue
                count, wrong, seconds = map(float, said.split()[1:])
                rate = capacity(count, wrong, seconds)
                print(
                    f"{name:38}{1e3 * slot:7.1f} ms{wrong:6.0f} of {count:.0f}{rate:10.1f} bits/s   {os.getloadavg()[0]:.1f}"
                )


if __name__ == "__main__":
    main()
