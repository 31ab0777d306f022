"""a benchmark repeats for a fixed time, each rank by its own clock."""

import time

import torch
import torch.distributed as dist

SOURCE = "a benchmark"
CAUSE = r"own clock"


def job(rank, n):
    dist.barrier()
    began = time.perf_counter() + 0.1 * rank
    while time.perf_counter() - began < 0.4:
        dist.all_reduce(torch.ones(64))
