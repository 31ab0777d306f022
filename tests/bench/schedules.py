"""Schedules on real ranks beside torch.distributed's own, and the model beside both.

    python -m tests.bench.schedules

Absolute times are this machine's; the ratios are what carries over.  Ranks are started by
torch.multiprocessing.spawn, so that nothing is recorded while they are timed.
"""

from __future__ import annotations

import platform
import resource
import statistics
import tempfile
import time
from typing import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from collectives.algorithms import (
    Schedule,
    double_tree_all_reduce,
    doubling_all_reduce,
    hierarchical_all_reduce,
    naive_all_reduce,
    outline,
    rabenseifner_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from collectives.cost import calibration, cost, exchange, fit, loopback, ping_pong, price
from collectives.machines import rails

MB = 2**20


def on_ranks(fn: Callable, *args, world_size: int = 4):
    """What rank 0 returned, of fn on this many fresh ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (world_size, folder, fn, args), nprocs=world_size)
        return torch.load(f"{folder}/result")


def _rank(rank, world_size, folder, fn, args):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", world_size), rank=rank, world_size=world_size
    )
    result = fn(*args)
    if rank == 0:
        torch.save(result, f"{folder}/result")
    dist.destroy_process_group()


def seconds_of(schedules: list[Schedule], nbytes: int, repeats: int) -> list[float]:
    """Rank function: seconds of dist.all_reduce, then of each schedule: the fastest of `repeats`, each by the slowest rank."""
    ways = [dist.all_reduce, *(s.program() for s in schedules)]
    times: list[list[float]] = [[] for _ in ways]
    x = torch.ones(nbytes // 4)
    for _ in range(repeats):
        for way, found in zip(ways, times):
            x.fill_(1)
            dist.barrier()
            start = time.perf_counter()
            way(x)
            taken = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            found.append(taken.item())
    return [min(found) for found in times]


def seconds_to_add(nbytes: int) -> float:
    """Rank function: seconds to add a buffer of this size to another, all ranks at once, neither in the cache."""
    buffers = torch.ones(8, nbytes // 4)
    best = float("inf")
    for k in range(8):
        dist.barrier()
        start = time.perf_counter()
        buffers[k] += buffers[k - 4]
        best = min(best, time.perf_counter() - start)
    return best


def ring_against_gloo() -> None:
    own, ring = on_ranks(seconds_of, [ring_all_reduce(4)], 64 * MB, 7)
    row("all_reduce of 64 MiB, 4 ranks: gloo's own", f"{own * 1e3:.0f} ms")
    row("  our ring with isend and irecv", f"{ring * 1e3:.0f} ms")
    row("  ring / gloo", f"{ring / own:.2f} x", "at most 2.5")
    adding = 3 * on_ranks(seconds_to_add, 16 * MB)
    row("  of which adding, after receiving", f"{adding * 1e3:.0f} ms")


def model_against_this_machine() -> None:
    """Fits single messages, and four at once; then predicts what five algorithms take."""
    pair, crowd = fit(on_ranks(ping_pong, world_size=2)), fit(on_ranks(exchange))
    for what, line in (("one message", pair), ("each of 4 at once", crowd)):
        row(f"{what}: latency", f"{line.latency * 1e6:.0f} µs", f"the line's median error is {line.error:.0%}")
        row(f"{what}: bandwidth", f"{line.bandwidth / 1e9:.2f} GB/s")
    machine = loopback(pair, crowd, 4, on_ranks(seconds_to_add, 16 * MB) / (16 * MB))
    makers = (naive_all_reduce, tree_all_reduce, ring_all_reduce, doubling_all_reduce, rabenseifner_all_reduce)
    schedules = [make(4) for make in makers]
    errors = []
    for nbytes in (4 * 1024, 256 * 1024, 4 * MB, 64 * MB):
        _, *measured = on_ranks(seconds_of, schedules, nbytes, 5)
        for s, seconds in zip(schedules, measured):
            model = cost(s, nbytes, machine).seconds
            errors.append(abs(model / seconds - 1))
            row(
                f"  {nbytes // 1024:>6} KiB, {s.name}",
                f"{seconds * 1e3:.2f} ms",
                f"model {model * 1e3:.2f} ms, {model / seconds - 1:+.0%}",
            )
    row("median error of the predictions", f"{statistics.median(errors):.0%}")


def model_at_scale() -> None:
    for what, make in {
        "hierarchical ring, 131,072 ranks": lambda: price(outline(hierarchical_all_reduce, 131_072, 8), rails(16_384)),
        "double tree of 8 pieces, 131,072 ranks": lambda: price(
            outline(double_tree_all_reduce, 131_072, 8), rails(16_384)
        ),
        "ring, 16,384 ranks": lambda: price(outline(ring_all_reduce, 16_384), rails(2048)),
    }.items():
        start = time.perf_counter()
        seconds = make()(2**30).seconds
        row(f"{what}: 1 GiB", f"{seconds * 1e3:.1f} ms", f"modelled in {time.perf_counter() - start:.1f} s")
    row("memory of this process, most", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def row(what: str, value: str, goal: str = "") -> None:
    print(f"{what:<58} {value:>12}   {goal}".rstrip(), flush=True)


def main() -> None:
    print(f"{platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}")
    ring_against_gloo()
    model_against_this_machine()
    model_at_scale()
    print(calibration())


if __name__ == "__main__":
    main()
