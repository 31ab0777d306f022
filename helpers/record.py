"""What happened in a run, as plain data: `Event`, `Call`, `Run`.

Nothing here starts a process or knows how a tensor was captured.  Everything that
explains a run (the picture, the diagnosis, the grader) reads these objects.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Iterator, NamedTuple

import torch

from .page import show
from .twin import block_table, numbers, short

LOST = 97  # exit code of a rank that can no longer reach the kernel
SHOWN_BLOCKS = 3  # a run with more than this is shortened on display
SHOWN_MESSAGES = 12  # likewise one exchange of messages


class Line(NamedTuple):
    """Where the learner's own code made a call."""

    file: str
    number: int  # 1-based
    function: str
    text: str = ""  # the source line, stripped

    def __str__(self) -> str:
        return f"{self.function}, line {self.number}"


@dataclass(frozen=True)
class Summary:
    """Stands for a tensor too large to keep: `run(..., whole=True)` keeps it instead.

    checksum: the sum of each block of 1024 int64 that the tensor's bytes make, then CRC32 of the sums.
    Equal tensors have equal checksums; different ones, in practice, different checksums.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int
    checksum: int
    head: tuple[float, ...]  # first three elements, in row-major order
    tail: tuple[float, ...]  # last three

    def __str__(self) -> str:
        ends = f"{numbers(self.head)} ... {numbers(self.tail)}"
        return f"{ends}  (#{self.checksum:08x})"


# What a rank passed to a call, or was left with: a CPU tensor that nobody else holds,
# a Summary of a large one, a list of these where the call takes a list, or None.
Value = Any


@dataclass(eq=False)
class Event:
    """One torch.distributed call, as one rank made it."""

    rank: int  # global
    index: int  # 0-based, in the order this rank made its calls
    op: str  # torch.distributed's name: "all_reduce", "all_gather_single", "send", ...
    group: tuple[int, ...]  # global ranks of the group, in group order
    src: int | None = None  # global rank: the root of broadcast and scatter, the source of recv
    dst: int | None = None  # global rank: the root of reduce and gather, the target of send
    reduce_op: str | None = None  # "SUM", "MAX", ...
    dtype: torch.dtype | None = None  # of what the rank passes in (of its buffer, if nothing)
    shape: tuple[int, ...] = ()  # likewise; a list's shape is its first tensor's
    nbytes: int = 0  # likewise, all tensors of a list together
    before: Value = None  # what the rank passes in; None where it passes nothing
    after: Value = None  # what the rank is left with; None where it gets nothing, or never got it
    line: Line | None = None
    start: float = 0.0  # seconds since the run began, when the call was made
    end: float | None = None  # when it was complete for this rank (async: waited for); None: never
    async_op: bool = False  # isend and irecv included
    waited: bool = False  # False: `after` is what stood when the rank function returned
    tag: int | None = None  # send and recv only
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # all_to_all_single: in, out
    within: str | None = None  # the torch function the learner called, if it was not `op` itself
    group_name: str = ""  # tells apart two groups of the same ranks
    gaps: tuple[str, ...] = ()  # "in", "out": whether what it passes or fills is a view with gaps
    layout: tuple[int, ...] | None = None  # strides of a tensor that is not contiguous
    flaw: str | None = None  # what this rank did wrong with its tensors: "aliased", "read", "written"
    touched: Line | None = None  # where it read or wrote them too early
    waiting: float | None = None  # since when the rank was blocked in it; None: it never waited

    def __reduce__(self):  # less than half the size of a pickle with the fields' names, and half the time to read
        return Event, _values(self)

    @property
    def is_message(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def is_undefined(self) -> bool:
        """After reduce only the root's tensor means anything; the backends leave differing things."""
        return self.op == "reduce" and self.rank != self.dst

    @property
    def is_scratch(self) -> bool:
        """A buffer that torch made itself: before the call it holds whatever its memory held."""
        return bool(self.within) and (self.op == "recv" or self.op == "broadcast" and self.rank != self.src)

    @property
    def root(self) -> int | None:
        """The global rank that is special in this collective, if any."""
        if self.is_message:
            return None
        return self.src if self.src is not None else self.dst


_values = attrgetter(*(f.name for f in fields(Event)))


@dataclass(eq=False)
class Call:
    """One collective over all its ranks, or one message: the events that belong together."""

    op: str
    group: tuple[int, ...]
    index: int  # k-th collective on this group; k-th message between these two ranks
    events: list[Event]  # in group order; a rank that never made the call is missing

    @property
    def is_message(self) -> bool:
        return self.events[0].is_message

    @property
    def is_complete(self) -> bool:
        """Whether every rank it needs has made it."""
        return len(self.events) == (2 if self.is_message else len(self.group))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(e.rank for e in self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


@dataclass
class Failure:
    """An exception as it left the learner's function."""

    kind: str  # the exception's class name
    message: str
    frames: list[Line]  # the learner's own, outermost first
    started: bool  # False: it never got as far as calling the function
    chain: str = ""  # the whole traceback, for those who want it


@dataclass(repr=False)
class Run:
    """What `run` returns: the results, and everything the ranks said to each other."""

    world_size: int
    results: list[Any] = field(default_factory=list)  # one a rank: what fn returned
    events: list[list[Event]] = field(default_factory=list)  # per rank, in call order
    stdout: list[str] = field(default_factory=list)  # per rank: the text it printed
    seconds: float = 0.0  # from the call of run to the last result
    # Per rank: bytes its sockets carried while fn ran, gloo's headers included; None where
    # the system does not tell (macOS).
    sent: list[int | None] = field(default_factory=list)
    received: list[int | None] = field(default_factory=list)
    name: str = "fn"  # of the function that ran

    @property
    def calls(self) -> list[Call]:
        """The events of all ranks, put together into collectives and messages, in order."""
        return pair(self.events)

    def draw(self, which: int | slice | None = None):
        """The picture of this run: a matplotlib Figure.

        which: the index of one call in `.calls`, or a slice of them; by default the
        first few.  Raises IndexError for a call that did not happen.
        """
        from .draw import draw_run  # the picture knows the record, not the other way round

        return draw_run(self, which)

    def table(self, which: int | slice | None = None) -> str:
        """The picture in words, for all calls or those told."""
        return "\n\n".join(map(block_table, blocks(self.chosen(which))))

    def chosen(self, which: int | slice | None) -> list[Call]:
        """The calls that `draw(which)` and `table(which)` are about."""
        calls = self.calls
        if which is None or isinstance(which, slice):
            return calls[which] if which is not None else calls
        if not -len(calls) <= which < len(calls):
            raise IndexError(f"there is no call {which}: this run made {len(calls)}, the first is call 0")
        return [calls[which]]

    def __repr__(self) -> str:
        calls = self.calls
        shown = blocks(calls)[:SHOWN_BLOCKS]
        parts = [block_table(block, SHOWN_MESSAGES) for block in shown]
        rest = len(calls) - sum(map(len, shown))
        if rest:
            parts.append(
                f"... and {rest} more call{'s' * (rest > 1)}: .draw({len(calls) - rest}) draws the next one, "
                f".table() lists all {len(calls)}"
            )
        returned = self._returned(calls)
        if returned:
            parts.append(returned)
        return "\n\n".join(parts) or f"{self.world_size} ranks ran {self.name}: no communication, nothing returned"

    def _returned(self, calls: list[Call]) -> str:
        """The results, unless there are none or they only repeat what the calls left."""
        if not self.results or all(r is None for r in self.results):
            return ""
        last = [events[-1].after if events else None for events in self.events]
        if calls and all(_same(r, value) for r, value in zip(self.results, last)):
            return ""
        lines = [f"  {rank:>4}   {short(result)}" for rank, result in enumerate(self.results)]
        return "\n".join([f"  rank   {self.name} returned", *lines])

    def _ipython_display_(self) -> None:
        show(self.draw() if any(self.events) else None, repr(self))


class Pairs:
    """Puts the events of all ranks together into calls, one event at a time.

    The k-th collective a rank makes on a group belongs with the k-th of every other
    member, whatever its op: that is how the backends pair them.  A send pairs with the
    k-th recv of the same source, target, tag and group.
    """

    def __init__(self) -> None:
        self.of: dict[int, Call] = {}  # id(event) -> the call it is part of
        self._calls: dict[tuple, Call] = {}
        self._made: dict[tuple, int] = defaultdict(int)

    def add(self, e: Event) -> Call:
        """The call that `e` is part of, with `e` in its place.

        A recv from anyone stands alone; add it again once its source is known.
        """
        if e.op == "recv" and e.src is None:
            self.of[id(e)] = Call(e.op, e.group, 0, [e])
            return self.of[id(e)]
        if e.is_message:
            source, target = (e.rank, e.dst) if e.op == "send" else (e.src, e.rank)
            lane = (e.op, e.group_name, e.group, source, target, e.tag)
        else:
            lane = (e.rank, e.group_name, e.group)
        k = self._made[lane]
        self._made[lane] += 1
        call = self._calls.setdefault((*lane[1:], k), Call(e.op, e.group, k, []))
        call.events.append(e)
        call.events.sort(key=lambda e: e.op != "send" if e.is_message else e.group.index(e.rank))
        call.op = call.events[0].op
        self.of[id(e)] = call
        return call

    def before(self, call: Call, most: int = 8) -> list[Call]:
        """The calls just before this one on its group, oldest first."""
        e = call.events[0]
        lane = (e.group_name, e.group)
        return [] if e.is_message else [self._calls[(*lane, k)] for k in range(max(0, call.index - most), call.index)]


def pair(events: list[list[Event]]) -> list[Call]:
    """The calls of a whole run, in an order every rank agrees with."""
    pairs = Pairs()
    for per_rank in events:
        for e in per_rank:
            pairs.add(e)
    return _in_order(events, pairs.of)


def _in_order(events: list[list[Event]], of: dict[int, Call]) -> list[Call]:
    """Merges the ranks' own orders: a call comes once nothing before it is left on its ranks.

    What a rank had under way at the same time (async calls) may come in either order.
    """
    left = [list(per_rank) for per_rank in events]
    ordered: list[Call] = []
    while any(left):
        reachable: dict[int, int] = defaultdict(int)
        heads: dict[int, Call] = {}
        for per_rank in left:
            earliest_end = math.inf
            for e in per_rank:
                if e.start >= earliest_end:
                    break
                earliest_end = min(earliest_end, math.inf if e.end is None else e.end)
                call = of[id(e)]
                reachable[id(call)] += 1
                heads[id(call)] = call
        ready = [c for c in heads.values() if reachable[id(c)] == len(c.events)]
        # Ranks in different orders leave nothing ready: then the oldest comes first.
        call = min(ready or heads.values(), key=lambda c: (min(e.index for e in c), c.events[0].rank))
        ordered.append(call)
        for e in call:
            left[e.rank].remove(e)
    return ordered


def blocks(calls: list[Call]) -> list[list[Call]]:
    """What is shown together: a collective by itself, messages that follow each other as one exchange."""
    together: list[list[Call]] = []
    for call in calls:
        if together and call.is_message and together[-1][-1].is_message:
            together[-1].append(call)
        else:
            together.append([call])
    return together


def _same(result: Any, value: Value) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and isinstance(value, torch.Tensor)
        and (result.shape == value.shape and torch.equal(result.detach().to(value.dtype), value))
    )
