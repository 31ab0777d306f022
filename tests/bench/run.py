"""What a call of run() costs, beside torch.multiprocessing.spawn doing the same, in one run.

    make bench        (python -m tests.bench.run)

Absolute times are this machine's; the ratios are what carries over.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from helpers import run


def one_sum():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x


def _spawned(rank, world_size, path):
    dist.init_process_group("gloo", store=dist.FileStore(path, world_size), rank=rank, world_size=world_size)
    one_sum()
    dist.destroy_process_group()


def by_spawn(world_size: int = 4) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        mp.spawn(_spawned, (world_size, f"{folder}/store"), nprocs=world_size)
        return time.perf_counter() - start


def by_run(world_size: int = 4) -> float:
    start = time.perf_counter()
    run(one_sum, world_size=world_size)
    return time.perf_counter() - start


def private_memory():
    """MiB of this process that it shares with nobody."""
    return psutil.Process().memory_full_info().uss / 2**20


def row(what: str, value: str, goal: str = "") -> None:
    print(f"{what:<58} {value:>12}   {goal}", flush=True)


def main() -> None:
    print(
        f"{platform.machine()}, {psutil.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"
    )
    row("first call, 4 ranks (starts the server)", f"{by_run():.2f} s")
    spawn = statistics.median(by_spawn() for _ in range(3))
    calls = [by_run() for _ in range(200)]
    median = statistics.median(calls)
    row("torch.multiprocessing.spawn, 4 ranks, median of 3", f"{spawn:.2f} s")
    row("run, 4 ranks, back to back, median of 200", f"{median * 1e3:.1f} ms", "under 80 ms where spawn takes 3.5 s")
    row("  spawn / run", f"{spawn / median:.0f} x", "at least 40")
    row("  slowest of 200 / median", f"{max(calls) / median:.1f} x", "at most 5")
    rested = []
    for _ in range(30):
        time.sleep(0.3)  # as a reader would; the next ranks are made meanwhile
        rested.append(by_run())
    row("run, 4 ranks, a moment after the last, median of 30", f"{statistics.median(rested) * 1e3:.1f} ms")
    for n in (2, 8, 16, 32, 64):
        row(f"run, {n} ranks, best of 3", f"{min(by_run(n) for _ in range(3)):.2f} s", "under 2.5 s" if n == 64 else "")
    grown = run(private_memory).results
    row("private memory a rank, 4 ranks, most", f"{max(grown):.1f} MiB", "under 15")

    me = psutil.Process()

    def left():
        return me.num_fds(), len(me.children(recursive=True)), me.memory_full_info().uss / 2**20

    def settled():
        time.sleep(2)  # ranks of the last call are ended in the background
        return left()

    before = settled()
    for _ in range(1000):
        by_run(2)
    after = settled()
    for what, a, b, unit in zip(("open files", "processes", "memory"), before, after, ("", "", " MiB")):
        row(f"1,000 calls: {what} before -> after", f"{a:.0f} -> {b:.0f}{unit}")


if __name__ == "__main__":
    main()
