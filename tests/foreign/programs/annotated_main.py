"""main's annotations are its command line, resolved by typing, as typed command lines do."""

from __future__ import annotations

import enum
import inspect
import sys
import typing
from typing import Optional

import torch
import torch.distributed as dist


class Mode(enum.Enum):
    sum = "sum"
    mean = "mean"


def main(steps: int = 2, mode: Mode = Mode.mean, scale: Optional[float] = None) -> None:
    dist.init_process_group("gloo")
    for step in range(steps):
        value = torch.tensor([1.0 + step, dist.get_rank()]) * (scale or 1.0)
        dist.all_reduce(value)
        print(mode.name, step, (value / (dist.get_world_size() if mode is Mode.mean else 1)).tolist(), flush=True)
    dist.destroy_process_group()


def parsed(function):
    kinds = typing.get_type_hints(function)
    given = dict(argument.removeprefix("--").split("=") for argument in sys.argv[1:])
    for name in given:
        assert name in inspect.signature(function).parameters, name
    kinds["scale"] = float
    return {name: kinds[name](value) for name, value in given.items()}


if __name__ == "__main__":
    main(**parsed(main))
