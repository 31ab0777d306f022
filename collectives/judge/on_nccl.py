"""A finished run, judged by NCCL's rules: the calls of its ranks, once more, on devices that nobody has.

A rank issues its calls in order.  A call is queued in a stream, in which one call begins when the one before it has ended,
and when all has ended that the program had waited for by then; it ends once all its ranks have begun it.

- A group has a communicator, with a stream.  Each pair of its ranks that sends a message outside of a batch has one, too:
  these messages, both ways, run one after the other, and tags are ignored (ProcessGroupNCCL.cpp, pointToPoint and
  getKeySendRecv; with a device_id, they share the group's stream, which lets no more programs through).
- A batch is one call of its group: its messages do not wait for each other ("Point-to-point communication" in NCCL's
  guide: calls that need to progress concurrently must be fused in a group call).
- The first call of a communicator connects it: the rank itself waits until all its ranks have come to theirs (torch's
  documentation of batch_isend_irecv; pytorch/pytorch issue 94819 for a pair).  So it waits in a barrier.

A send ends with its recv: NCCL may buffer a small message, but promises nothing.  Nor does it promise that the calls of two
groups run side by side: ranks are to issue them in one order ("Using multiple NCCL communicators concurrently" in its guide).
"""

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, Sequence

from ..log.backends import NCCL
from ..log.calls import Call, Matcher
from ..log.collectives import ON_WINDOWS
from ..log.event import Event
from ..log.messages import Began, Called, Completed, Issued
from .monitor import Monitor
from .verdict import Standstill

BATCH = "batch_isend_irecv"


class Forecast(NamedTuple):
    """How a run would go on NCCL.

    standstill: the verdict on ranks that would wait forever.  connecting: the ranks among them that would wait in a first
    call.  unordered: the verdict if a device had room for the collective of one group at a time.  crossed: messages whose
    send and recv have different tags.
    """

    standstill: Standstill | None
    connecting: tuple[int, ...]
    unordered: Standstill | None
    crossed: tuple[Call, ...]


@dataclass(eq=False)
class _Launch:
    """A call, or a batch of messages, as one rank issues it.

    past: how many calls the program has waited for before.  left: its parts that have not ended.
    """

    parts: list[Event]
    communicator: tuple
    members: tuple[int, ...]
    stream: tuple
    past: int = 0
    left: int = 0
    is_issued: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_issued and not self.left

    @property
    def holds_rank(self) -> bool:
        """Whether the rank itself waits for its end."""
        first = self.parts[0]
        return first.op == "barrier" and not first.async_op and not self.is_over


@dataclass
class _DeviceRank:
    """One rank's launches: the queue in each stream, and those that the program waits for, in the order of its waits."""

    launches: list[_Launch]
    awaited: list[_Launch]
    place: int = 0  # of the next launch
    past: int = 0  # leading launches of `awaited` that have ended
    streams: dict[tuple, deque[_Launch]] = field(default_factory=lambda: defaultdict(deque))

    @property
    def current(self) -> _Launch | None:
        return self.launches[self.place] if self.place < len(self.launches) else None


def forecast(events: Sequence[Sequence[Event]]) -> Forecast:
    """How a run's calls would go on NCCL.  events: per rank, in order."""
    replay, narrow = _Replay(events), _Replay(events, one_stream=True)
    return Forecast(replay.standstill(), replay.connecting(), narrow.standstill(), replay.crossed())


class _Replay:
    """The calls, as far as every rank gets.  one_stream: whether all collectives of a rank have one stream."""

    def __init__(self, events: Sequence[Sequence[Event]], one_stream: bool = False) -> None:
        self._ranks = [_rank(calls, one_stream) for calls in events]
        self._owner: dict[int, tuple[int, _Launch]] = {}  # id(event) -> rank, launch
        # By communicator, the ranks that have come to its first call.
        self._arrived: dict[tuple, set[int]] = defaultdict(set)
        self._begun: dict[int, int] = defaultdict(int)  # id(call) -> its parts that have begun
        matcher = Matcher()
        for number, rank in enumerate(self._ranks):
            for launch in rank.launches:
                for event in launch.parts:
                    matcher.add(event)
                    self._owner[id(event)] = number, launch
        self._call = matcher.of
        due = deque(range(len(self._ranks)))
        while due:
            number = due.popleft()
            due += self._advance(number)

    def _advance(self, number: int) -> set[int]:
        """Let one rank issue and begin its calls. Returns the ranks that may go on because of it."""
        rank, woken = self._ranks[number], set()
        while launch := rank.current:
            arrived = self._arrived[launch.communicator]
            if number not in arrived:
                arrived.add(number)
                woken |= arrived - {number}
            before = rank.launches[rank.place - 1] if rank.place else None
            if before and before.holds_rank or len(arrived) < len(launch.members):
                break
            launch.is_issued = True
            rank.streams[launch.stream].append(launch)
            rank.place += 1
            woken |= self._begin(rank)
        return woken | self._begin(rank)

    def _begin(self, rank: _DeviceRank) -> set[int]:
        """Begin the calls at the heads of a rank's streams. Returns the ranks on which a call ends by that."""
        woken = set()
        for stream in rank.streams.values():
            if stream and stream[0].past <= rank.past:
                for event in stream[0].parts:
                    woken |= self._begin_part(event)
        return woken

    def _begin_part(self, event: Event) -> set[int]:
        call = self._call[id(event)]
        if event.waiting is not None:
            return set()
        event.waiting = event.start
        self._begun[id(call)] += 1
        if not self._is_over(call):
            return set()
        for part in call:
            number, launch = self._owner[id(part)]
            rank = self._ranks[number]
            launch.left -= 1
            if launch.is_over:
                rank.streams[launch.stream].popleft()
            while rank.past < len(rank.awaited) and rank.awaited[rank.past].is_over:
                rank.past += 1
        return set(call.ranks)

    # --- what is left ---------------------------------------------------------------------

    def standstill(self) -> Standstill | None:
        """The verdict on the calls that do not end; None if all do."""
        if all(launch.is_over for rank in self._ranks for launch in rank.launches):
            return None
        monitor = Monitor(len(self._ranks), check=False)
        for number, rank in enumerate(self._ranks):
            monitor.feed(number, Began())
            for place, launch in enumerate(rank.launches[: rank.place + 1]):
                for event in launch.parts:
                    event.start, event.waiting = float(place), None  # its seconds were a different backend's
                    monitor.feed(number, Called(event))
                    if launch.is_issued:
                        monitor.feed(number, Issued(event.index, None, event.start))
                    if self._is_over(self._call[id(event)]):
                        monitor.feed(number, Completed(event.index, None, event.start, True, None))
        return monitor.standstill(0.0)

    def _is_over(self, call: Call) -> bool:
        return self._begun[id(call)] == (2 if call.is_message else len(call.group))

    def connecting(self) -> tuple[int, ...]:
        """The ranks that wait in the first call of a communicator."""
        launches = ((number, rank.current) for number, rank in enumerate(self._ranks))
        return tuple(n for n, x in launches if x and len(self._arrived[x.communicator]) < len(x.members))

    def crossed(self) -> tuple[Call, ...]:
        """The messages that pair by their order, and not by their tags."""
        calls = dict.fromkeys(self._call.values())
        return tuple(call for call in calls if len({event.tag for event in call}) > 1)


def _rank(calls: Sequence[Event], one_stream: bool) -> _DeviceRank:
    """A rank's launches: its calls, as it would make them on NCCL."""
    launches: list[_Launch] = []
    ends: list[float] = []  # of the first wait for each launch
    for event in (event for event in calls if len(event.group) > 1 and event.op not in ON_WINDOWS):
        if not launches or not _continues(launches[-1].parts, event, ends[-1]):
            pair = tuple(sorted(event.ends)) if event.is_message and event.within != BATCH else None
            communicator = (event.group_name, event.group, pair)
            stream = () if one_stream and not event.is_message else communicator
            launches.append(_Launch([], communicator, pair or event.group, stream))
            ends.append(inf)
        parts, (name, _, pair) = launches[-1].parts, launches[-1].communicator
        if event.waited and event.end is not None:
            ends[-1] = min(ends[-1], event.end)
        start = parts[0].start if parts else event.start
        parts.append(
            replace(
                event, backend=NCCL.name, group_name=f"{name} {pair}" if pair else name, start=start, end=None, issued=None,
                waiting=None, waited=False, abandoned=False, captured=False, before=None, after=None,
            )
        )  # fmt: skip
    order = sorted((end, place) for place, end in enumerate(ends) if end < inf)
    for launch in launches:
        launch.left, launch.past = len(launch.parts), bisect_right(order, (launch.parts[0].start, len(launches)))
    return _DeviceRank(launches, [launches[place] for _, place in order])


def _continues(parts: Sequence[Event], event: Event, end: float) -> bool:
    """Whether a message is of the same batch as the ones before.  end: when the program first waited for one."""
    first = parts[0]
    if event.within != BATCH or first.within != BATCH or event.start >= end:
        return False
    return (first.line, first.group_name) == (event.line, event.group_name)
