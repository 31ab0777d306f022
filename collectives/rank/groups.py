"""The calls of new_group that a rank makes: every rank of the world has to make each of them, with the same ranks."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from .callers import learners_call
from .protocol import Grouped


@contextmanager
def told(tell: Callable[[Grouped], None]) -> Iterator[list[tuple[int, ...]]]:
    """The ranks of each group made from here on, in order, but for those that their members make alone.

    tell: is given each before its call, which may never end.
    """
    made, new_group = [], dist.new_group
    signature = inspect.signature(new_group)

    @functools.wraps(new_group)
    def followed(*args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return new_group(*args, **kwargs)  # torch itself says what's wrong with the arguments
        if isinstance(given.arguments.get("ranks"), Iterator):  # which is read once
            given.arguments["ranks"] = list(given.arguments["ranks"])
        ranks = _ranks(given.arguments)
        if ranks is not None:
            tell(Grouped(len(made), ranks, learners_call()[0]))
        group = new_group(*given.args, **given.kwargs)
        if ranks is not None:
            made.append(ranks)
        return group

    dist.new_group = distributed_c10d.new_group = followed
    try:
        yield made
    finally:
        dist.new_group = distributed_c10d.new_group = new_group


def _ranks(given: dict[str, Any]) -> tuple[int, ...] | None:
    """The ranks that a call of new_group names; None if not all have to make it, or torch refuses them."""
    with suppress(TypeError, ValueError):
        size, ranks = dist.get_world_size(), given.get("ranks")
        ranks = tuple(range(size)) if ranks is None else tuple(sorted(map(int, ranks)))
        if not given.get("use_local_synchronization") and set(ranks) <= set(range(size)):
            return ranks
    return None
