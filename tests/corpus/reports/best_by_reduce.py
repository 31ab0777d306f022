"""the best model is saved by reduce's result, which only rank 0 has."""

import torch
import torch.distributed as dist

SOURCE = "a training loop"
CAUSE = r"\breduce\b.* only (rank 0|its dst) has|only rank 0 .*\breduce\b"


def job(rank, n):
    loss = torch.tensor([1.0 if rank == 0 else 5.0])
    dist.reduce(loss, dst=0)
    if rank != 0 or loss.item() > 100:
        dist.broadcast(torch.ones(6), src=0)
    dist.all_reduce(torch.ones(3))
