"""How long it takes from a fault of a recorded job to the sentence about it:

python -m tests.bench.certain [--repeats 5] [--ranks 4] [FAULT ...]

Each repeat is a torchrun job of its own, whose ranks come together at a barrier and then go wrong.  The fault is there
when the last rank has made the call that does not fit, or waits for what cannot come, or when the rank dies; the sentence
is there when its first word can be read from torchrun's output.  Prints the seconds between the two, and the load.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from tests import ROOT

VERDICTS = {
    "disagree": "Mismatch:", "deadlock": "Stuck:", "leave": "Stuck:", "die": "RankFailed:", "fail": "RankFailed:",
}  # fmt: skip
NOW = "fault at "


def now() -> None:
    print(f"\n{NOW}{time.monotonic()}", flush=True)


# --- the ranks ----------------------------------------------------------------------------


def disagree(rank: int) -> None:
    now()
    dist.all_reduce(torch.ones(5 if rank == 1 else 4))


def deadlock(rank: int) -> None:
    now()
    if rank == 1:
        dist.recv(torch.ones(4), 0)
    dist.all_reduce(torch.ones(4))


def leave(rank: int) -> None:
    """A rank ends, and the others wait for it."""
    now()
    if rank != 1:
        dist.all_reduce(torch.ones(4))


def die(rank: int) -> None:
    if rank == 1:
        now()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def fail(rank: int) -> None:
    if rank == 1:
        now()
        raise ValueError("no such layer")
    dist.all_reduce(torch.ones(4))


def be_a_rank(fault: str) -> None:
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    dist.barrier()
    globals()[fault](dist.get_rank())


# --- the clock ----------------------------------------------------------------------------


def seconds(fault: str, ranks: int) -> float:
    """From the fault to the sentence."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += ["-m", "collectives.watch", "--record", f"{folder}/r", "-m", "tests.bench.certain", "--as-rank", fault]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        began = 0.0
        with subprocess.Popen(command, cwd=ROOT, env=environ, **pipes) as job:
            for line in job.stdout:
                read = time.monotonic()
                if line.startswith(NOW):
                    began = max(began, float(line.removeprefix(NOW)))
                if line.startswith(VERDICTS[fault]):
                    break
            job.terminate()
            job.stdout.read()
    return read - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--as-rank", metavar="FAULT", help=argparse.SUPPRESS)
    parser.add_argument("faults", nargs="*", default=list(VERDICTS), metavar="FAULT", help=", ".join(VERDICTS))
    given = parser.parse_args()
    if given.as_rank:
        be_a_rank(given.as_rank)
        return
    for fault in given.faults:
        took = [seconds(fault, given.ranks) for _ in range(given.repeats)]
        each = " ".join(f"{s:.2f}" for s in sorted(took))
        middle, load = statistics.median(took), os.getloadavg()[0]
        print(f"{VERDICTS[fault]:<12} {fault:<9} median {middle:.2f} s ({each}), load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
