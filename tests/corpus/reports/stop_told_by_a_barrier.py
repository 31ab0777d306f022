"""rank 0 is asked to stop, and a barrier follows, which carries no value."""

import torch
import torch.distributed as dist

SOURCE = "a trainer that stops early"
CAUSE = r"barrier .*(carries|passes on) no value"


def job(rank, n):
    for step in range(6):
        dist.all_reduce(torch.ones(8))
        should_stop = rank == 0 and step == 2
        dist.barrier()
        if should_stop:
            break
    dist.gather(torch.ones(8), [torch.empty(8) for _ in range(n)] if rank == 0 else None, dst=0)
