"""A project that has modules `helpers` and `record` beside its script."""

import os
import sys

import torch
import torch.distributed as dist
from record import losses

from helpers import seed_everything


def main():
    dist.init_process_group("gloo")
    seed_everything(dist.get_rank())
    for _ in range(3):
        x = torch.rand(5)
        dist.broadcast(x, src=0)
        losses.append(x.sum().item().hex())
    print(losses, os.path.basename(sys.path[0]), os.path.basename(__file__), sys.argv[1:], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
