"""gradients of all rows are cut to a rank's own rows first and summed then, so different rows are added."""

import torch
import torch.distributed as dist

SOURCE = "an embedding divided by rows"
CAUSE = r"different rows"
SAME = True


def job(rank, n):
    gradient = torch.zeros(2 * n).index_add_(0, torch.tensor([0, 2 * rank]), torch.ones(2))
    mine = gradient.chunk(n)[rank].clone()
    dist.all_reduce(mine)
    return mine.tolist()
