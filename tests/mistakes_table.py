"""Makes notebooks/mistakes.md: what plain gloo, torch's own checks and run() say of each mistake.

    make mistakes        (python -m tests.mistakes_table)

Every program of mistakes.py runs three ways: as a plain gloo program, a process a rank; the
same with TORCH_DISTRIBUTED_DEBUG=DETAIL; and with run().  The first two know nothing of helpers.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from helpers import RunError, run
from tests import mistakes
from tests.mistakes import MISTAKES, Mistake

PAGE = Path(__file__).resolve().parent.parent / "notebooks" / "mistakes.md"
WORLD_SIZE = 3
TIMEOUT = 3  # seconds: of the plain group, and of run() for what only the clock can tell
AT_A_TIME = 3  # programs; they mostly wait
LONGEST = 150  # characters of a message that the page shows

# What another rank's time-out or end looks like from here: it tells nothing about the mistake.
TIMED_OUT = re.compile(r"timed out|wait timeout", re.IGNORECASE)
LOST = re.compile(r"connection closed|connection reset|broken pipe|pair closure", re.IGNORECASE)
# What differs from run to run and from machine to machine.
NOISE = re.compile(
    r"\[rank\d+\]:\[.*?\] |\[?[\w./-]+\.(cc|cpp|h|hpp):\d+\]? ?|"  # prefixes, source positions
    r"\[?(\d+\.\d+\.\d+\.\d+|[0-9a-f:]*::[0-9a-f:]*\d)\]?:\d+|0x[0-9a-f]+|(Exception raised from|frame #\d+:).*",
    re.DOTALL,
)
RACE = {"read_before_wait", "write_before_wait", "reuse_before_wait", "use_before_received"}


class Outcome(NamedTuple):
    """What became of one rank."""

    kind: str  # "returned", "error", "lost", "timed out", "aborted", "hung"
    words: str  # the message, or the tensors it was left with


# --- one rank, in a process of its own ----------------------------------------------------


def rank_process(mistake_id: str, rank: int, folder: str, detail: bool, pipe) -> None:
    errors = os.open(f"{folder}/stderr-{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL" if detail else "OFF"
    dist.set_debug_level_from_env()
    mistakes.ones = functools.partial(filled, float(rank + 1))
    passed = watch_tensors()
    store = dist.FileStore(f"{folder}/store", WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=TIMEOUT))
    program = next(m.program for m in MISTAKES if m.id == mistake_id)
    try:
        result = program(rank, WORLD_SIZE)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}".rstrip(": ")
        kind = "timed out" if TIMED_OUT.search(message) else "lost" if LOST.search(message) else "error"
        pipe.send(Outcome(kind, message))
    else:
        kind = "returned"
        pipe.send(Outcome(kind, left_with(passed, result)))
    if kind != "error":  # as the middle of a longer program: nobody hangs up before all have been heard
        pipe.poll(None)
    os._exit(0)


def filled(value: float, *shape, dtype=torch.float32):
    """In place of mistakes.ones: each rank has numbers of its own, so that wrong data shows."""
    return torch.full(shape, value).to(dtype)


def watch_tensors() -> list:
    """The tensors that will have been passed to dist's functions, which do as before."""
    passed: list = []

    def watched(call):
        @functools.wraps(call)
        def same(*args, **kwargs):
            given = [*args, *kwargs.values()]
            passed[:] = [v for v in given if isinstance(v, torch.Tensor) or isinstance(v, list) and v]
            return call(*args, **kwargs)

        return same

    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter"):
        setattr(dist, name, watched(getattr(dist, name)))
    for name in ("all_to_all_single", "reduce_scatter_single", "send", "recv", "broadcast_object_list"):
        setattr(dist, name, watched(getattr(dist, name)))
    return passed


def left_with(passed: list, result) -> str:
    return str(passed)


# --- all its ranks ------------------------------------------------------------------------


def plainly(mistake: Mistake, detail: bool) -> list[Outcome]:
    """What became of each rank of the program under plain gloo."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, ranks = [], []
        for rank in range(WORLD_SIZE):
            ours, theirs = START.Pipe()
            ranks.append(START.Process(target=rank_process, args=(mistake.id, rank, folder, detail, theirs)))
            ranks[-1].start()
            theirs.close()
            pipes.append(ours)
        outcomes: dict[int, Outcome] = {}
        while len(outcomes) < WORLD_SIZE:
            heard = wait([p for r, p in enumerate(pipes) if r not in outcomes], timeout=10 * TIMEOUT)
            for rank in [pipes.index(p) for p in heard] or set(range(WORLD_SIZE)) - set(outcomes):
                try:
                    outcomes[rank] = pipes[rank].recv() if heard else Outcome("hung", "")
                except EOFError:  # it died without a word
                    outcomes[rank] = Outcome("aborted", Path(f"{folder}/stderr-{rank}").read_text(errors="replace"))
        for rank, pipe in zip(ranks, pipes):
            pipe.close()
            rank.kill()
            rank.join()
    return [outcomes[rank] for rank in range(WORLD_SIZE)]


START = multiprocessing.get_context("forkserver")

if __name__ == "__main__":
    START.set_forkserver_preload(["tests.mistakes"])
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        chosen = [m for m in MISTAKES if not sys.argv[1:] or m.id in sys.argv[1:]]
        for detail in (False, True):
            for m, o in zip(chosen, pool.map(lambda m: plainly(m, detail), chosen)):
                print(m.id, detail)
                for x in o:
                    print("    ", x.kind, "|", x.words[-700:])
