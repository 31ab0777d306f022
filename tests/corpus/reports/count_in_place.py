"""the total of tokens is made of this rank's count in place, so both are the total."""

import torch
import torch.distributed as dist

SOURCE = "a router's loss"
CAUSE = r"in place .*clone|clone.* before"
SAME = True


def job(rank, n):
    count = torch.tensor([rank + 1.0])
    total = count
    dist.all_reduce(total)
    return (count / total).item()
