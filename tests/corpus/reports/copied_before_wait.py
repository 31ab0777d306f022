"""a transposed copy of a result is made before its wait."""

import torch
import torch.distributed as dist

SOURCE = "tensor parallelism"
CAUSE = r"read the tensor of all_gather_single #1 before waiting for it"


def job(rank, n):
    rows = torch.empty(n, 2)
    work = dist.all_gather_single(rows, torch.full((1, 2), float(rank)), async_op=True)
    columns = rows.t().contiguous()
    work.wait()
    return columns.sum().item()
