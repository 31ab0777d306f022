"""one rank's report holds a lambda, so its all_gather_object fails, and it is at the next call."""

import torch
import torch.distributed as dist

SOURCE = "a collector of reports"
CAUSE = r"rank 1 caught .*[Pp]ickl"


def job(rank, n):
    report, failed = {"rank": rank, "key": (lambda x: x) if rank == 1 else None}, torch.zeros(1)
    try:
        dist.all_gather_object([None] * n, report)
    except Exception:
        failed.fill_(1.0)
    dist.all_reduce(failed)
