"""the handle of an isend is dropped at once, and its message gets lost."""

import torch
import torch.distributed as dist

SOURCE = "a pipeline"
CAUSE = r"dropped the handle of isend #1"


def job(rank, n):
    dist.barrier()
    if rank == 0:
        dist.isend(torch.ones(500), 1)
        dist.recv(torch.empty(1), 1)
    elif rank == 1:
        dist.recv(torch.empty(500), 0)
        dist.send(torch.ones(1), 0)
