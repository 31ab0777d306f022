"""one rank handles its error, leaves out the barrier and is at the next job's call."""

import torch
import torch.distributed as dist

SOURCE = "a worker with a queue of jobs"
CAUSE = r"rank 1 caught ZeroDivisionError"


def job(rank, n):
    try:
        share = 1 / (rank - 1)
        dist.barrier()
    except ZeroDivisionError:
        share = 0.0
    dist.broadcast(torch.tensor([share]), src=0)
