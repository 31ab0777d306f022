"""DistributedDataParallel's Join covers the gradients of uneven batches, not the loop's own sum of losses."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

SOURCE = "uneven batches"
CAUSE = r"Join matches only the calls"


def job(rank, n):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with Join([model]):
        for _ in range(2 + 2 * rank):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            dist.all_reduce(loss.detach().reshape(1).clone())
