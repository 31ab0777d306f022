"""each rank asks its own file system for a checkpoint, and only rank 0 has it."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

SOURCE = "a training script that resumes"
CAUSE = r"own file system"


def job(rank, n):
    with tempfile.TemporaryDirectory() as folder:  # the disk of each host
        path = f"{folder}/last.pt"
        if rank == 0:
            Path(path).touch()
        if os.path.exists(path):
            dist.broadcast(torch.tensor([40.0]), src=0)
        for _ in range(3):
            dist.all_reduce(torch.ones(16))
