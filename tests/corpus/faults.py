"""What can happen to ranks while they work: each fault strikes one rank at a random moment.

python -m tests.corpus.faults 10000        that many calls, a fault in every tenth, and what is left behind
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from multiprocessing.resource_tracker import _resource_tracker

import psutil
import torch
import torch.distributed as dist

from collectives.launch import forkserver, pool
from helpers import RankFailed, RunError, Stuck, run

ROUNDS = 40
FAULTS = {}  # name -> (what a rank does, the errors a run may end with; none: it goes on as if nothing were)


def fault(*errors):
    def keep(strike):
        FAULTS[strike.__name__] = strike, errors
        return strike

    return keep


def work(strike=None, victim=0, when=0):
    """Rounds of communication; in one of them the victim is struck."""
    x = torch.ones(3)
    for k in range(ROUNDS):
        if strike and k == when and dist.get_rank() == victim:
            strike()
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


@fault(RankFailed)
def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


@fault(RankFailed)
def segmentation_fault():
    ctypes.string_at(0)


@fault(RankFailed)
def abort():
    os.abort()


@fault(RankFailed)
def exit_code():
    os._exit(7)


@fault(RankFailed)
def sys_exit():
    sys.exit("enough")


@fault(Stuck)
def sigstop():
    os.kill(os.getpid(), signal.SIGSTOP)


@fault(Stuck)
def loop_for_ever():
    while True:
        pass


@fault(Stuck)
def ignores_every_signal():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            faulthandler.unregister(number)
            signal.signal(number, signal.SIG_IGN)
        except (OSError, RuntimeError, ValueError):
            pass
    time.sleep(1000)


@fault(RankFailed)
def execs():
    os.execv(sys.executable, [sys.executable, "-c", "pass"])


@fault(RankFailed)
def closes_descriptors():
    os.closerange(3, 1024)


@fault(RankFailed)
def out_of_memory():
    size = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), size + (64 << 20)))
    torch.zeros(256 << 20)


@fault(RankFailed)
def out_of_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    open(os.devnull)


@fault()
def forks():
    if os.fork() == 0:
        time.sleep(1000)


@fault()
def leaves_a_daemon():
    code = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(1000)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


@fault()
def prints_without_measure():
    for _ in range(64):
        print("x" * (1 << 20))


@fault()
def closes_its_output():
    sys.stdout.close()
    os.close(1)
    os.close(2)


@fault()
def closes_stdin():
    os.close(0)


# --- from outside -------------------------------------------------------------------------


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def server_killed():
    for child in psutil.Process().children():
        child.kill()
        child.wait()


FROM_OUTSIDE = {"interrupt": (interrupt, KeyboardInterrupt), "server_killed": (server_killed, RuntimeError)}


def attempt(name: str, world_size: int, chance: random.Random) -> str:
    """One run of the work with this fault at a random moment; what it ended with.

    Raises AssertionError when that is not what it should have ended with.
    """
    if name in FROM_OUTSIDE:
        strike, error = FROM_OUTSIDE[name]
        timer = threading.Timer(chance.random() * 0.15, strike)
        try:
            timer.start()
            try:
                run(work, world_size=world_size)
            finally:
                timer.join()
        except error as caught:
            return type(caught).__name__
        return "result"  # it came too late
    strike, errors = FAULTS[name]
    victim, when = chance.randrange(world_size), chance.randrange(ROUNDS)
    try:
        got = run(work, strike, victim, when, world_size=world_size, timeout=1 if Stuck in errors else 60)
    except RunError as caught:
        assert type(caught) in errors, f"{name}: {caught!r}"
        if isinstance(caught, RankFailed):
            assert caught.rank == victim, f"{name} struck rank {victim}: {caught}"
        return type(caught).__name__
    assert not errors, f"{name} struck rank {victim} in round {when}, and nobody said so"
    assert [r.tolist() for r in got.results] == [[1.0] * 3] * world_size
    return "result"


def processes() -> list[psutil.Process]:
    """All that this process started, but for the helper that its own multiprocessing leaves running."""
    return [p for p in psutil.Process().children(recursive=True) if p.pid != _resource_tracker._pid]


def server() -> psutil.Process:
    """The process that this one's ranks are forked from."""
    (process,) = (p for p in psutil.Process().children() if "collectives.launch.server" in " ".join(p.cmdline()))
    return process


def end(process: psutil.Process) -> None:
    process.kill()
    process.wait()  # a signal takes a moment


def on_standby(n: int) -> list[psutil.Process]:
    """The ranks that the next run of n will take. There are no other ranks."""
    forkserver.STANDBY_RANKS, usual = n, forkserver.STANDBY_RANKS
    try:
        run(lambda: None, world_size=n)
        pool.wait_for_successors()
        for sock in pool.server()._standby[n].socks:  # each rank has been made, and says so
            select.select([sock], [], [])
        while len(waiting := server().children()) != n:  # the others are on their way out
            pass
    finally:
        forkserver.STANDBY_RANKS = usual
    return waiting


def settled(count: int) -> int:
    """This process's descendants, once there are so many for a while, or after 20 s: starting and ending take a moment."""
    deadline, same = time.monotonic() + 20, 0
    while same < 5 and time.monotonic() < deadline:
        same = same + 1 if len(processes()) == count else 0
        time.sleep(0.05)
    return len(processes())


def main(calls: int, seed: int = 0) -> None:
    chance = random.Random(seed)
    sizes = (2, 3, 4)
    names = [*FAULTS, *FROM_OUTSIDE]
    for n in sizes:
        run(work, world_size=n)
    me = psutil.Process()

    def left():
        running = settled(1 + sum(sizes))
        return me.num_fds(), running, f"{me.memory_full_info().uss / 2**20:.0f} MiB", len(os.listdir("/dev/shm"))

    before, ends, start, slowest = left(), Counter(), time.monotonic(), 0.0
    for k in range(calls):
        name = names[(k // 10) % len(names)] if k % 10 == 0 else None
        began = time.monotonic()
        if name:
            with contextlib.redirect_stdout(io.StringIO()):  # some print a great deal
                ends[name, attempt(name, chance.choice(sizes), chance)] += 1
        else:
            assert len(run(work, world_size=chance.choice(sizes)).results) in sizes
            ends["no fault", "result"] += 1
            slowest = max(slowest, time.monotonic() - began)
        if k % 500 == 499:
            print(
                f"{k + 1} calls, {time.monotonic() - start:.0f} s: (files, processes, memory, /dev/shm) {left()}",
                flush=True,
            )
    print(f"{calls} calls in {time.monotonic() - start:.0f} s; the slowest without a fault took {slowest:.2f} s")
    for (name, end), count in sorted(ends.items()):
        print(f"  {name:<24} {end:<20} {count}")
    print(f"open files, processes, memory, /dev/shm: before {before}, after {left()}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
