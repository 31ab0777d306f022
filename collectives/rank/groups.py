"""The calls of new_group that a rank makes: every rank of the world has to make each of them, with the same ranks."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from .callers import learners_call
from .protocol import Grouped


class Groups:
    """From its beginning to its end, tells of each such call before it is made, which may never end.

    Those are not told of that a group's members make alone, that torch refuses, or that are made in another world:
    one of fewer ranks, in a default group of the program's own.
    """

    def __init__(self, world_size: int, tell: Callable[[Grouped], None]) -> None:
        self._world_size, self._tell = world_size, tell
        self.made = 0

    def __enter__(self) -> "Groups":
        self._torchs = new_group = dist.new_group
        signature = inspect.signature(new_group)

        @functools.wraps(new_group)
        def followed(*args, **kwargs):
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError:
                return new_group(*args, **kwargs)  # torch itself says what's wrong with the arguments
            if isinstance(given.arguments.get("ranks"), Iterator):  # which is read once
                given.arguments["ranks"] = list(given.arguments["ranks"])
            if ranks := _ranks(given.arguments, self._world_size):
                self._tell(Grouped(self.made, ranks, learners_call()[0]))
            group = new_group(*given.args, **given.kwargs)
            self.made += bool(ranks)
            return group

        dist.new_group = distributed_c10d.new_group = followed
        return self

    def __exit__(self, *_: object) -> None:
        dist.new_group = distributed_c10d.new_group = self._torchs


def _ranks(given: dict[str, Any], world_size: int) -> tuple[int, ...] | None:
    """The ranks that a call of new_group names; None if not all have to make it, or torch refuses them."""
    with suppress(TypeError, ValueError):
        everybody = tuple(range(dist.get_world_size()))
        ranks = everybody if given.get("ranks") is None else tuple(sorted(map(int, given["ranks"])))
        by_all = not given.get("use_local_synchronization") and len(everybody) == world_size
        return ranks if by_all and set(ranks) <= set(everybody) else None
