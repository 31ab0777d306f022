"""each rank asks its own file system for a checkpoint, and only rank 0 has it."""

import torch
import torch.distributed as dist

SOURCE = "a training script that resumes"
CAUSE = r"rank 0 .*os\.path\.exists|only rank 0 .*inside an `if`"


def job(rank, n):
    exists = rank == 0  # what os.path.exists answers on each host
    if exists:
        dist.broadcast(torch.tensor([40.0]), src=0)
    for _ in range(3):
        dist.all_reduce(torch.ones(16))
