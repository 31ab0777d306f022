"""a loss that is already summed over a sequence's ranks is summed over all ranks for the log."""

import torch
import torch.distributed as dist

SOURCE = "context parallelism"
CAUSE = r"copies .*summed|summed (twice|again)|3(\.0+)? times"
SAME = True


def job(rank, n):
    loss = torch.tensor([0.5 + rank])
    dist.all_reduce(loss)
    dist.all_reduce(loss)
    return loss.item()
