"""a sampler copies weights out of memory that it shares with the trainer, while the optimizer is writing there.

pytorch/torchtitan pull request 3795.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

SOURCE = "weights for a sampler"
CAUSE = r"(read|copied|copies)\b.*\bwhile\b.*\b(writ|chang)"


def job(rank, n):
    path = [tempfile.mkstemp()[1] if rank == 0 else None]
    dist.broadcast_object_list(path)
    weights = torch.from_file(path[0], shared=True, size=4)
    dist.barrier()  # version 1, zeros, is there
    if rank == 0:
        Path(path[0]).unlink()
        weights[:2] = 1.0
        dist.send(torch.ones(1), 1)  # only so that each run shows the same moment
        dist.recv(torch.ones(1), 1)
        weights[2:] = 1.0
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        copy = weights.clone()
        dist.send(torch.ones(1), 0)
        return copy.tolist()
