"""a rank without tokens leaves out a step's exchanges, and is at the next collective."""

import torch
import torch.distributed as dist

SOURCE = "serving a model with experts"
CAUSE = r"Rank 2 may have made fewer calls there|make a call here that rank 2 doesn.t"


def step(tokens, n):
    if not len(tokens):
        return
    for _ in range(4):
        dist.all_to_all_single(torch.empty_like(tokens), tokens)


def job(rank, n):
    for number in range(3):
        step(torch.zeros(0 if rank == 2 and number == 1 else 2 * n), n)
        dist.all_reduce(torch.ones(1))
