"""a library broadcasts a seed over the world on some ranks only; the others take it for the learning rate."""

import torch
import torch.distributed as dist

SOURCE = "a library of random numbers"
CAUSE = r"made call #1 from different lines, which may have mixed up their data"


def job(rank, n):
    if rank == 0:
        dist.broadcast(torch.tensor([77.0]), src=0)
    dist.broadcast(torch.tensor([0.5]), src=0)
    dist.barrier()
