"""all_reduce(x.contiguous()) sums a copy, and the transposed x keeps its numbers."""

import torch
import torch.distributed as dist

SOURCE = "a helper for any layout"
CAUSE = r"a copy that nothing keeps"


def job(rank, n):
    columns = torch.full((3, 2), rank + 1.0).t()
    dist.all_reduce(columns.contiguous())
    return columns.sum().item()
