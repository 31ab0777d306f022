"""Process groups: facts about each, and reports of the new_group calls that make them."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

from ..log.backends import configured
from ..log.messages import Grouped, Ungrouped
from .callers import learners_call
from .torch_private import backend_name, name_among_members, time_limit

SHORT_SECONDS = 30 * 60  # torch's own timeout for a group; a shorter one was set by the program


def refuse(place: str) -> NoReturn:
    """Raise: the program initialized its own default group, and this process has a different rank in it."""
    raise RuntimeError(
        f"run() records the calls of the world that it starts, and here an init_process_group of your own made this rank {place}. "
        "Try run(..., record=False)."
    )


class KnownGroups:
    """Facts about process groups, kept as long as a group lives: after its end, another may have its name.

    rank: this process's global one.
    is_short: whether the program itself set a group's timeout, in seconds: waits in the group end by themselves.
    astray: called with our rank in a default group that the program made itself.
    """

    def __init__(
        self,
        rank: int,
        is_short: Callable[[float, ProcessGroup], bool] = lambda timeout, group: timeout < SHORT_SECONDS,
        astray: Callable[[str], None] = refuse,
    ) -> None:
        self._rank, self._is_short, self._astray = rank, is_short, astray
        self._ranks: WeakKeyDictionary[ProcessGroup, tuple[int, ...]] = WeakKeyDictionary()
        self._backends: WeakKeyDictionary[ProcessGroup, dict[str, str | None]] = WeakKeyDictionary()  # by device type
        self._short: WeakKeyDictionary[ProcessGroup, bool] = WeakKeyDictionary()  # its first timeout

    def ranks(self, group: ProcessGroup) -> tuple[int, ...] | None:
        """A group's global ranks; None if they aren't the job's, or unknown (torchft bypasses torch.distributed)."""
        if (known := self._ranks.get(group)) is not None:
            return known
        try:
            ranks = tuple(dist.get_process_group_ranks(group))
        except KeyError:
            return None
        if dist.is_initialized() and dist.get_rank() != self._rank:
            self._astray(f"{dist.get_rank()} of {dist.get_world_size()}")
            return None
        self._ranks[group], self._backends[group] = ranks, {}
        return ranks

    def backend(self, group: ProcessGroup, device: torch.device | None) -> str | None:
        """The name of a group's backend for this device, the CPU's by default. Its ranks must be known."""
        names, kind = self._backends[group], "" if device is None else device.type
        if kind not in names:
            names[kind] = backend_name(group, device or torch.device("cpu"))
        return names[kind]

    def has_short_timeout(self, group: ProcessGroup, is_message: bool = False) -> bool:
        """Whether waits in a group end by themselves, because the program gave it a short timeout.

        It may set another one at any time, which gloo's collectives heed; messages keep to the group's first."""
        timeout = time_limit(group)
        short = timeout is not None and self._is_short(timeout, group)
        first = self._short.setdefault(group, short)
        return first if is_message else short


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
        self._torchs = dist.new_group
        self._signature = inspect.signature(self._torchs)

        @functools.wraps(self._torchs)
        def followed(*args, **kwargs):
            return self._make(*args, **kwargs)

        dist.new_group = distributed_c10d.new_group = followed
        return self

    def __exit__(self, *_: object) -> None:
        dist.new_group = distributed_c10d.new_group = self._torchs

    def _make(self, *args, **kwargs) -> Any:
        """The group that torch's new_group makes, reported before the call."""
        try:
            given = self._signature.bind(*args, **kwargs)
        except TypeError:
            return self._torchs(*args, **kwargs)  # torch itself says what's wrong with the arguments
        if isinstance(given.arguments.get("ranks"), Iterator):  # which is read once
            given.arguments["ranks"] = list(given.arguments["ranks"])
        make = functools.partial(self._torchs, *given.args, **given.kwargs)
        ranks = _ranks(given.arguments, self._world_size)
        if ranks is None:
            return make()
        if given.arguments.get("use_local_synchronization"):
            return self._make_alone(make, ranks, given.arguments)
        self._tell(Grouped(self.made, ranks, learners_call()[0]))
        group = make()
        self.made += 1
        return group

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
    return any(row.connects_at_once for row in configured(str(backend or dist.get_backend_config())))
