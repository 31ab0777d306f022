"""A module of the learner's: its functions travel to the ranks by name, not by value."""

import torch
import torch.distributed as dist


def share(start):
    x = torch.full((1,), start + dist.get_rank())
    dist.broadcast(x, src=1)
    return x.item()


class Net(torch.nn.Linear):
    pass
