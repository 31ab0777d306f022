"""Events of all ranks, put together into calls, in an order every rank agrees with."""

from bisect import insort
from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, groupby
from operator import attrgetter
from typing import Iterator

from .collectives import ONE_SIDED, RECEIVES, SENDS
from .event import Event


@dataclass(eq=False)
class Call:
    """One collective over all its ranks, or one message: the events that belong together."""

    op: str
    group: tuple[int, ...]
    index: int  # k-th collective on this group; k-th message between these two ranks
    events: list[Event]  # in group order; a rank that never made the call is missing
    unseen: set[int] = field(default_factory=set)  # ranks that made it, whose events are lost
    one_line: bool = True  # whether all of them made it from the same line

    @property
    def is_message(self) -> bool:
        return self.op in SENDS or self.op in RECEIVES

    @property
    def is_complete(self) -> bool:
        """Whether every rank it needs has made it."""
        needed = 2 - (self.op in ONE_SIDED) if self.is_message else len(self.group)
        return len(self.events) + len(self.unseen) >= needed

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(e.rank for e in self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


class Matcher:
    """Puts the events of all ranks together into calls, one event at a time.

    The k-th collective a rank makes on a group belongs with the k-th of every other member, whatever its op: that is
    how the backends pair them.  A send pairs with the k-th recv of the same source, target, tag and group.
    """

    def __init__(self) -> None:
        self.of: dict[int, Call] = {}  # id(event) -> the call it is part of
        self._calls: dict[tuple, dict[int, Call]] = defaultdict(dict)  # Lane.shared -> its calls, by number
        self._made: dict[tuple, int] = defaultdict(int)  # lane -> events of it until now
        self._skipped: dict[tuple, dict[int, int]] = defaultdict(dict)  # Lane.shared -> rank -> its events, see skip

    def add(self, e: Event) -> Call:
        """The call that `e` is part of, with `e` added.

        A recv from anyone is a call by itself; add it again once its source is known.
        """
        if e.is_from_anyone:
            self.of[id(e)] = Call(e.op, e.group, 0, [e])
            return self.of[id(e)]
        lane = e.lane
        k = self._made[lane]
        self._made[lane] = k + 1
        calls = self._calls[lane.shared]
        if (call := calls.get(k)) is None:
            call = calls[k] = Call(e.op, e.group, k, [])
            call.unseen = {rank for rank, n in self._skipped.get(lane.shared, {}).items() if k < n}
        call.one_line = call.one_line and (not call.events or e.line == call.events[0].line)
        if not call.events or call.events[-1].lane.place < lane.place:
            call.events.append(e)
        else:
            insort(call.events, e, key=attrgetter("lane.place"))
        call.op = call.events[0].op
        self.of[id(e)] = call
        return call

    def skip(self, rank: int, made: dict[tuple, int]) -> None:
        """Record how many events of its lanes a rank has made, of which some are lost."""
        self._made.update(made)
        for lane, n in made.items():
            self._skipped[lane[1:]][rank] = n
            for k, call in self._calls[lane[1:]].items():
                if k < n and rank not in call.ranks:
                    call.unseen.add(rank)

    def counts(self, lane: tuple) -> bool:
        """Whether the number of events of a lane is known."""
        return lane in self._made

    def before(self, call: Call, most: int = 8) -> list[Call]:
        """The calls just before this one on its group, oldest first."""
        if call.is_message:
            return []
        calls = self._calls[call.events[0].lane.shared]
        known = map(calls.get, range(max(0, call.index - most), call.index))
        return [call for call in known if call]

    def forget(self, call: Call) -> None:
        """Drop a call and its events. Later calls keep their numbers."""
        if not call.events[0].is_from_anyone:
            self._calls[call.events[0].lane.shared].pop(call.index, None)
        for e in call:
            self.of.pop(id(e), None)


def pair(events: list[list[Event]]) -> list[Call]:
    """The calls of a whole run, in an order every rank agrees with.

    A call comes once nothing before it is left on its ranks.  Calls that a rank had in flight at the same
    time (async calls) may come in either order.  Takes O(n log n) for n events, however many stay open.
    """
    matcher = Matcher()
    for e in chain.from_iterable(events):
        matcher.add(e)
    of = matcher.of
    ordered: dict[int, Call] = {}  # by id(call)
    ranks = [_ready_events(mine, of, ordered) for mine in events]
    reached: dict[int, int] = defaultdict(int)  # id(call) -> ranks on which nothing comes before it
    age: dict[int, tuple[int, int]] = {}  # id(call) -> the oldest comes first
    heads: list[tuple] = []  # heap of calls that have been reached on some rank
    ready: list[tuple] = []  # heap of calls that have been reached on all their ranks

    def advance(rank: Iterator[Event | None]) -> None:
        for e in iter(lambda: next(rank, None), None):
            call = of[id(e)]
            if id(call) not in age:
                age[id(call)] = min(e.index for e in call), call.events[0].rank
            reached[id(call)] += 1
            heappush(heads, (*age[id(call)], e.rank, e.index, call))
            if reached[id(call)] == len(call.events):
                heappush(ready, (*age[id(call)], *min((e.rank, e.index) for e in call), call))

    for rank in ranks:
        advance(rank)
    while queue := ready or heads:  # ranks in different orders leave nothing ready
        *_, call = heappop(queue)
        if id(call) not in ordered:
            ordered[id(call)] = call
            for e in call:
                advance(ranks[e.rank])
    return list(ordered.values())


def _ready_events(events: list[Event], of: dict[int, Call], ordered: dict[int, Call]) -> Iterator[Event | None]:
    """One rank's events, each once it began before any earlier one that is not in order yet had ended; None: not yet."""
    ends: list[tuple[float, int]] = []  # heap: ends of events that have been reached, and their places

    def remains(e: Event) -> bool:
        return id(of[id(e)]) not in ordered

    for place, e in enumerate(events):
        while remains(e):
            while ends and not remains(events[ends[0][1]]):
                heappop(ends)
            if not ends or ends[0][0] > e.start:
                if e.end is not None:
                    heappush(ends, (e.end, place))
                yield e
                break
            yield None


def blocks(calls: list[Call]) -> list[list[Call]]:
    """Calls that are shown together: a collective by itself, consecutive messages as one exchange."""
    return [list(block) for _, block in groupby(calls, lambda call: None if call.is_message else id(call))]
