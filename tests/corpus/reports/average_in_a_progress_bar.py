"""only rank 0 shows a progress bar, whose text asks for a mean over all ranks."""

import torch
import torch.distributed as dist

SOURCE = "a progress bar"
CAUSE = r"makes a call here that ranks 1 and 2 don.t"


def mean(total, count):
    sums = torch.tensor([total, count])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def job(rank, n):
    for step in range(4):
        dist.all_reduce(torch.ones(32))
        if step % 2 and rank == 0:
            mean(1.0, step)
    return mean(1.0, 4.0)
