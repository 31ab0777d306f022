"""Messages from a run's sends and recvs: their steps in time, and whose data they carry.

A rank forwards values that arrived before it made its call.  Only the numbers identify their
source, so where a rank holds equal numbers of its own as well, their source is not known.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import islice
from typing import Hashable, Iterator, NamedTuple

from .calls import Call
from .collectives import RECEIVES, SENDS
from .event import Event, Summary, Value


class Transfer(NamedTuple):
    """One send and its recv, or only one of them."""

    source: int | None  # global rank; None: a recv from anyone, to which no rank sent anything
    target: int  # global rank
    step: int  # from 0, see steps_of
    value: Value  # the value that arrived; the one to be sent, if it did not arrive
    origin: int | None  # the first rank to send this value; None: several may be
    sent: bool
    arrived: bool
    events: list[Event]


def read(calls: list[Call]) -> list[Transfer]:
    """The messages, by step."""
    found = []
    brought: dict[tuple, list[tuple[float, int | None]]] = defaultdict(list)  # rank, value -> arrival time, origin
    own: set[tuple] = set()  # rank, value: sent before it can have arrived
    for step, k in sorted((step, k) for k, step in enumerate(steps_of(calls))):
        events = calls[k].events
        first, last = events[0], events[-1]
        source, target = events[0].ends
        sent, arrived = first.op in SENDS, calls[k].is_complete and last.end is not None
        value = delivered(first, last) if arrived else first.before if sent else None
        key = id(first) if first.op == "signal" else _key(value)
        candidates = {whose for end, whose in brought[source, key] if end <= first.start}
        if not candidates or (source, key) in own:
            candidates.add(source)
        origin = candidates.pop() if len(candidates) == 1 else None
        if origin == source:
            own.add((source, key))
        if arrived:
            brought[target, key].append((last.end, origin))
        found.append(Transfer(source, target, step, value, origin, sent, arrived, events))
    return found


def delivered(send: Event, recv: Event) -> Value:
    """The value that a message delivered: the numbers in its receiver's tensor, as far as they were sent.

    It differs from the argument of `send` if the sender overwrote that before it left.
    A tensor of a different dtype holds the sender's bytes: those are shown as the numbers that were sent.
    """
    before, after = send.before if send.op != "get" else send.after, recv.after
    if recv.async_op and not recv.waited or send.dtype != recv.dtype or type(before) is not type(after):
        return before
    if isinstance(before, Summary):
        return after if before.nbytes == after.nbytes else before
    if before is None or after.numel() < before.numel():
        return before
    return after.flatten()[: before.numel()].reshape(before.shape)


def _key(value: Value) -> Hashable:
    """The same for equal values of any shape."""
    if value is None or isinstance(value, Summary):
        return value
    import torch  # takes a second, which whoever has values has paid

    memory = value.contiguous().reshape(-1).view(torch.uint8)
    try:
        return value.dtype, memory.numpy().tobytes()
    except AttributeError:  # a page has no NumPy
        return value.dtype, bytes(memory.tolist())


def steps_of(calls: list[Call]) -> list[int]:
    """The step of each message, from 0: one more than the last it had to wait for.

    A message follows those that had ended on one of its two ranks before its call there was made.  So isend and irecv
    that were in flight together share a step.  Takes O(n log n) for n events.
    """
    made: dict[int, list[tuple[Event, int]]] = defaultdict(list)
    for k, call in enumerate(calls):
        for e in call:
            made[e.rank].append((e, k))
    ranks = {rank: _RankSteps(mine) for rank, mine in made.items()}
    steps = [-1] * len(calls)  # -1: not known yet
    free: list[int] = []  # calls that follow only calls with a step
    loose: list[int] = []  # calls that follow only recvs with a step
    held = [len(call.events) for call in calls], [len(call.events) for call in calls]  # events not released yet
    left = (k for k in range(len(calls)) if steps[k] < 0)

    def release(rank: _RankSteps) -> None:
        for front, events, queue in zip(rank.fronts, held, (free, loose)):
            for k in iter(lambda: next(front, None), None):
                events[k] -= 1
                if not events[k]:
                    queue.append(k)

    def taken(queue: list[int]) -> list[int]:
        found = [k for k in queue if steps[k] < 0]
        queue.clear()
        return found

    for rank in ranks.values():
        release(rank)
    # Sends that end before they are received can make a cycle: such a send holds nobody up.
    while now := taken(free) or taken(loose) or list(islice(left, 1)):
        for k, last in [(k, max(ranks[e.rank].last(e) for e in calls[k])) for k in now]:
            steps[k] = last + 1
            for e in calls[k]:
                ranks[e.rank].settle(e, steps[k])
                release(ranks[e.rank])
    return steps


class _RankSteps:
    """The events of one rank, and the steps of the ended ones, as they become known.

    The events that one follows are a prefix of the ended ones, in the order of their ends.
    """

    def __init__(self, made: list[tuple[Event, int]]) -> None:
        """made: the rank's events, each with the number of its call.  No rank waits
        for a put to end, and a signal is on its way whatever the rank that will wait for it does."""
        over = (e for e, _ in made if e.end is not None and e.op not in ("put", "signal"))
        ended = sorted(over, key=lambda e: (e.end, e.index))
        ends = [(e.end, e.index) for e in ended]
        self._place = {id(e): place for place, e in enumerate(ended)}
        self._follows = {id(e): bisect_left(ends, (e.start, e.index)) * (e.op != "wait") for e, _ in made}
        self._highest = [-1] * (len(ended) + 1)  # a Fenwick tree: entry i is for the i & -i places up to i
        # Whether each ended event has a step; and the same, as if all except recvs had.
        self._known = [False] * len(ended), [e.op not in RECEIVES for e in ended]
        waiting = sorted((self._follows[id(e)], k) for e, k in made)
        self.fronts = [_matched(waiting, known) for known in self._known]

    def last(self, e: Event) -> int:
        """The highest known step of the events that `e` follows; -1 if no step is known."""
        i, highest = self._follows[id(e)], -1
        while i:
            highest = max(highest, self._highest[i])
            i &= i - 1
        return highest

    def settle(self, e: Event, step: int) -> None:
        """Set the step of an event, which others may follow if it ended."""
        if id(e) not in self._place:
            return
        i = self._place[id(e)] + 1
        for known in self._known:
            known[i - 1] = True
        while i < len(self._highest):
            self._highest[i] = max(self._highest[i], step)
            i += i & -i


def _matched(waiting: list[tuple[int, int]], known: list[bool]) -> Iterator[int | None]:
    """The calls of a rank's events, each once all that the event follows is known; None: not yet.

    waiting: the number of ended events that an event follows, and its call; in ascending order.
    """
    at = 0  # ended events before this one are known
    for count, call in waiting:
        while at < count:
            if known[at]:
                at += 1
            else:
                yield None
        yield call
