"""a sampler repeats examples so that all ranks have as many, and an accuracy counts them twice."""

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

SOURCE = "an evaluation"
CAUSE = r"examples? .*twice"
SAME = True


def job(rank, n):
    correct = torch.tensor([0.0, 0.0] + [1.0] * 8)
    mine = list(DistributedSampler(range(10), n, rank, shuffle=False))
    counts = torch.tensor([correct[mine].sum(), float(len(mine))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
