"""outputs are summed in the order of a set of strings, which is different in each process."""

import random

import torch
import torch.distributed as dist

SOURCE = "a model with several outputs"
CAUSE = r"order of (a|the) set"


def job(rank, n):
    outputs = ["energy", "forces", "stress"]
    random.Random(rank).shuffle(outputs)  # as iterating over a set does where each process has its own hash seed
    for name in outputs:
        dist.all_reduce(torch.ones(1) if name == "energy" else torch.ones(3, 3 if name == "stress" else 1))
