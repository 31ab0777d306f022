"""the loss is a mean over a rank's tokens, and gradients are averaged over ranks with different numbers of tokens."""

import torch
import torch.distributed as dist

SOURCE = "batches with padding"
CAUSE = r"mean of means|weighs? .*more"
SAME = True


def job(rank, n):
    tokens = torch.tensor([2.0] * 10 if rank == 0 else [11.0])
    weight = torch.ones(1, requires_grad=True)
    (weight * tokens).mean().backward()
    dist.all_reduce(weight.grad)
    return (weight.grad / n).item()
