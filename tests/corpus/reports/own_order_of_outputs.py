"""outputs are summed in the order of a set of strings, which is different in each process."""

import torch
import torch.distributed as dist

SOURCE = "a model with several outputs"
CAUSE = r"order of (a|the) set"


class Output(str):
    """A name with its own hash in each process, as strings have where PYTHONHASHSEED isn't set."""

    shift = 0

    def __hash__(self):
        return (ord(self[1]) + self.shift) % 3


def job(rank, n):
    Output.shift = rank
    names = {Output("energy"), Output("forces"), Output("stress")}
    for name in names:
        dist.all_reduce(torch.ones(3) if name == "forces" else torch.ones(1))
