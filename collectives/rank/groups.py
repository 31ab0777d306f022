"""Reports the calls of new_group: those that every rank of the world must make, and those that only members make."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..log.messages import Grouped, Ungrouped
from .callers import learners_call
from .torch_private import name_among_members


class Groups:
    """While entered, reports each new_group call before it starts (it may block forever).

    made: how many calls were made that every rank must make.

    Not reported: calls that torch rejects, that leave this rank out, that wait for no other rank, or that are made in a
    different world: one of fewer ranks, in a default group of the program's own.
    """

    def __init__(self, world_size: int, tell: Callable[[Grouped | Ungrouped], None]) -> None:
        self._world_size, self._tell = world_size, tell
        self.made = 0
        self._alone = 0  # calls that only members make

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
            make = functools.partial(new_group, *given.args, **given.kwargs)
            ranks = _ranks(given.arguments, self._world_size)
            if ranks is None:
                return make()
            if given.arguments.get("use_local_synchronization"):
                return self._make_alone(make, ranks, given.arguments)
            self._tell(Grouped(self.made, ranks, learners_call()[0]))
            group = make()
            self.made += 1
            return group

        dist.new_group = distributed_c10d.new_group = followed
        return self

    def __exit__(self, *_: object) -> None:
        dist.new_group = distributed_c10d.new_group = self._torchs

    def _make_alone(self, make: Callable[[], Any], ranks: tuple[int, ...], given: dict[str, Any]) -> Any:
        """A group that only its members make."""
        in_order = list(given["ranks"]) if given.get("sort_ranks") is False and given.get("ranks") else ranks
        name = name_among_members(in_order)
        if name is None or dist.get_rank() not in ranks or not _meets(given.get("backend")):
            return make()
        index, self._alone = self._alone, self._alone + 1
        self._tell(Grouped(index, ranks, learners_call()[0], *name))
        try:
            return make()
        except BaseException:
            self._tell(Ungrouped(index))
            raise


def _ranks(given: dict[str, Any], world_size: int) -> tuple[int, ...] | None:
    """The ranks that a call of new_group names; None if torch rejects them, or its world is a different one."""
    with suppress(TypeError, ValueError):
        everybody = tuple(range(dist.get_world_size()))
        ranks = everybody if given.get("ranks") is None else tuple(sorted(map(int, given["ranks"])))
        return ranks if len(everybody) == world_size and set(ranks) <= set(everybody) else None


def _meets(backend: str | None) -> bool:
    """Whether members connect as soon as they make a group of this backend, as with gloo, but not NCCL or "fake"."""
    return "gloo" in str(backend or dist.get_backend_config()).lower()
