"""the last message of a rank is an isend that nobody waits for, and its program is over."""

import torch
import torch.distributed as dist

SOURCE = "a pipeline by hand"
CAUSE = r"dropped the handle of isend"


def job(rank, n):
    if rank == 0:
        dist.isend(torch.arange(1000.0), 1)
    elif rank == 1:
        torch.randn(1500, 1500) @ torch.randn(1500, 1500)
        dist.recv(torch.empty(1000), 0)
