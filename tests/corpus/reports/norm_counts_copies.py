"""the norm of all gradients sums the squares of copies that every rank holds, once per rank."""

import torch
import torch.distributed as dist

SOURCE = "clipping with tensor parallelism"
CAUSE = r"copies .*(too large|counted)|counted .*times"
SAME = True


def job(rank, n):
    shard, copy = torch.tensor([3.0]), torch.tensor([4.0])
    squares = shard.square() + copy.square()
    dist.all_reduce(squares)
    return squares.sqrt().item()
