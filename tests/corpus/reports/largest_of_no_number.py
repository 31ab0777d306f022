"""MAX over ranks, one of which has a NaN, gives a number on some ranks, or loses a larger one."""

import torch
import torch.distributed as dist

SOURCE = "a log of the largest gradient"
CAUSE = r"NaN .*(lost|loses|MAX)|MAX .*NaN"


def job(rank, n):
    largest = torch.tensor([float("nan") if rank == 1 else rank + 1.0])
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()
