"""The calls of new_group that a rank makes: every rank of the world has to make each of them."""

import functools
import inspect
from contextlib import contextmanager
from typing import Iterator

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..record.event import Line
from .callers import learners_call


@contextmanager
def kept() -> Iterator[list[Line | None]]:
    """The learner's lines that call new_group from here on, in order, except those for a group's members alone."""
    lines, new_group = [], dist.new_group
    signature = inspect.signature(new_group)

    @functools.wraps(new_group)
    def followed(*args, **kwargs):
        group = new_group(*args, **kwargs)  # first, so that torch itself says what's wrong with the arguments
        if not signature.bind(*args, **kwargs).arguments.get("use_local_synchronization"):
            lines.append(learners_call()[0])
        return group

    dist.new_group = distributed_c10d.new_group = followed
    try:
        yield lines
    finally:
        dist.new_group = distributed_c10d.new_group = new_group
