"""Training scripts that go wrong, each in its own way:   faulty.py NAME

Nothing here knows of the course: this is what an engineer would have on disk.
"""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def steps(count=3):
    for _ in range(count):
        dist.all_reduce(torch.ones(4))


def deadlock(rank):
    steps()
    if rank == 2:
        dist.recv(torch.ones(4), 1)
    dist.all_reduce(torch.ones(4))


def shapes(rank):
    steps()
    dist.all_reduce(torch.ones(5 if rank == 2 else 4))


def killed(rank):
    steps()
    if rank == int(sys.argv[2]):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def raises(rank):
    steps()
    if rank == 1:
        raise ValueError("no such layer")
    dist.barrier()


def early(rank):
    """Rank 0 is done before the others."""
    steps()
    if rank:
        dist.all_reduce(torch.ones(4))


def sleeper(rank):
    """Rank 2 waits for something else before the call."""
    steps()
    if rank == 2:
        data_that_never_comes()
    dist.all_reduce(torch.ones(4))


def data_that_never_comes():
    time.sleep(1000)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    globals()[sys.argv[1]](dist.get_rank())


if __name__ == "__main__":
    main()
