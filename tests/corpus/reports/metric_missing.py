"""one rank's dict of metrics lacks a key, so its all_reduce meets the next metric's."""

import torch
import torch.distributed as dist

SOURCE = "a logger of metrics"
CAUSE = r"(?i)rank 1 may have made fewer calls there"


def job(rank, n):
    metrics = {"precision": 0.5, "recall": 0.25, "loss": 2.0}
    if rank == 1:
        del metrics["recall"]
    for value in metrics.values():
        dist.all_reduce(torch.tensor([value]))
    dist.barrier()
