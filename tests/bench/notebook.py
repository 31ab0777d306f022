"""What a cell costs a reader, in a real kernel: medians of one run, each from Shift+Enter to the kernel's idle.

    python -m tests.bench.notebook

Absolute times are this machine's; the goals are for a laptop with nothing else to do.  Where a figure is played, as
by step(), moving on needs no kernel.
"""

from __future__ import annotations

import statistics
import time

from tests.kernels import Kernel

IMPORTS = "import torch\nimport torch.distributed as dist\nfrom helpers import explore, predict, run, step\nfrom collectives import algorithms as schedule"
RANKS = """\
def share():
    x = torch.arange(3.0) if dist.get_rank() == 0 else torch.zeros(3)
    dist.broadcast(x, src=0)
    return x

def ten():
    for _ in range(10):
        dist.all_reduce(torch.ones(2))
"""
REST_SECONDS = 0.4  # as a reader would; the next ranks are made meanwhile
TIMES = 11


def seconds(kernel: Kernel, code: str) -> float:
    """From sending the cell until the kernel is idle."""
    began = time.perf_counter()
    outputs = kernel.run(code, timeout=120)
    took = time.perf_counter() - began
    assert not any(kind == "error" for kind, _ in outputs), outputs
    return took


def cost(kernel: Kernel, *codes: str) -> tuple[float, float]:
    """Milliseconds a cell: the median to idle, and the kernel's processor time, which others on the machine hardly move."""
    kernel.run(codes[0])  # loads modules
    seen, used = [], 0.0
    for code in codes:
        time.sleep(REST_SECONDS)
        before = kernel.process.cpu_times()
        seen.append(seconds(kernel, code))
        after = kernel.process.cpu_times()
        used += after.user + after.system - before.user - before.system
    return 1e3 * statistics.median(seen), 1e3 * used / len(seen)


def row(what: str, value: str, used: str = "", goal: str = "") -> None:
    print(f"{what:<56} {value:>9} {used:>9}   {goal}", flush=True)


def first_picture(wait: float) -> tuple[float, float]:
    """Seconds of the import cell, and from its end to the first picture for a reader who waits so long in between."""
    kernel = Kernel()
    try:
        imported = seconds(kernel, IMPORTS)
        end = time.perf_counter()
        kernel.run(RANKS)
        time.sleep(wait)
        kernel.run("run(share)", timeout=120)
        return imported, time.perf_counter() - end - wait
    finally:
        kernel.close()


def main() -> None:
    row("", "to idle", "processor", "goal")
    for wait in (0, 3):
        both = [first_picture(wait) for _ in range(3)]
        imported, first = (statistics.median(column) for column in zip(*both))
        row("import cell, median of 3", f"{imported:.2f} s")
        row(f"first picture, {wait} s of reading after it", f"{first:.2f} s", goal="1.5 s")
    kernel = Kernel()
    try:
        kernel.run(IMPORTS)
        kernel.run(RANKS)
        measure(kernel)
    finally:
        kernel.close()


def measure(kernel: Kernel) -> None:
    bare, _ = cost(kernel, *["run(share) and None"] * TIMES)
    for what, code, goal in [
        ("run(share), 4 ranks", "run(share)", f"60 ms, 3 x {bare:.0f} ms without the picture"),
        ("ten all_reduce", "run(ten)", "160 ms"),
        ("opening predict(share)", "predict(share)", "80 ms"),
        ("opening explore()", "explore()", "80 ms"),
        ("opening step(), a ring of 4", "step(schedule.ring_all_reduce(4))", "80 ms"),
    ]:
        took, used = cost(kernel, *[code] * TIMES)
        row(what, f"{took:.0f} ms", f"{used:.0f} ms", goal)


if __name__ == "__main__":
    main()
