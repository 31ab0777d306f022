"""one rank skips a batch, so gradients of different steps are added, and its last call is missing."""

import torch
import torch.distributed as dist

SOURCE = "a training loop without enough memory"
CAUSE = r"(skips|leaves out|doesn.t get to) the call in line 14"


def job(rank, n):
    for step in range(4):
        if rank == 1 and step == 2:
            continue
        dist.all_reduce(torch.full((4,), float(step)))
