"""The course's judge over a job that may run for weeks: calls that are complete are forgotten after a while."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Iterator, NamedTuple

from ..rank import protocol
from ..record.calls import Call
from ..record.event import Event, Line
from ..results.errors import RunError
from ..results.gloo import is_consequence
from ..results.monitor import Monitor
from ..results.nccl import lacking
from .words import Where, standstill

KEPT_CALLS = 256  # complete ones; those before a wrong call tell whether ranks swapped calls
GRACE_SECONDS = 0.5  # for more to arrive that belongs to a verdict
# Only the launcher of a process learns its exit code.
UNSEEN = "is gone without a word: killed, ended by os._exit, or its host is down,"
_OF_A_CALL = (protocol.Waiting, protocol.Completed, protocol.Misused)


class Seen(NamedTuple):
    """What a verdict is about: as much of a Run as is left of a job, without what draws it."""

    world_size: int
    events: list[list[Event]]


class Log:
    """A rank's events, counted from its first; the oldest are forgotten, the last never."""

    def __init__(self) -> None:
        self._kept: dict[int, Event] = {}
        self._count = 0

    def append(self, event: Event) -> None:
        self._kept[self._count] = self._last = event
        self._count += 1

    def forget(self, index: int) -> None:
        self._kept.pop(index, None)

    def __contains__(self, index: int) -> bool:
        return index in self._kept

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Event:
        return self._last if index == -1 else self._kept[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._kept.values())


class Judge:
    """Fed with the ranks' messages; `.verdict` is the RunError that follows from them, once there is one.

    patience: seconds without a message, after which a job whose ranks wait is taken to stand still.
    """

    def __init__(self, world_size: int, patience: float) -> None:
        self.monitor = Monitor(world_size, grace=GRACE_SECONDS)
        self.state = self.monitor.state
        self.state.events = [Log() for _ in range(world_size)]
        self.verdict: RunError | None = None
        self._left: dict[int, int] = defaultdict(int)  # id(call) -> its events that are complete
        self._over: set[int] = set()  # id(event) of those
        self._complete: deque[Call] = deque()
        self._patience, self._progress = patience, time.monotonic()
        self.shown_standstill = False

    # --- what arrives ---------------------------------------------------------------------

    def take(self, rank: int, message: protocol.Message) -> None:
        log = self.state.events[rank]
        if type(message) in _OF_A_CALL and message.index not in log:
            return  # the call was complete, and is forgotten
        self._progress, self.shown_standstill = time.monotonic(), False
        if type(message) is protocol.Failed and self.verdict:
            return
        self.monitor.feed(rank, message)
        if type(message) is protocol.Completed:
            self._completed(log[message.index])

    def _completed(self, event: Event) -> None:
        if id(event) in self._over:
            return
        call = self.state.matcher.of[id(event)]
        self._over.add(id(event))
        self._left[id(call)] += 1
        if self._left[id(call)] == (2 if call.is_message else len(call.group)):
            self._complete.append(call)
            if len(self._complete) > KEPT_CALLS:
                self._forget(self._complete.popleft())

    def _forget(self, call: Call) -> None:
        self.state.matcher.forget(call)
        self._left.pop(id(call), None)
        for event in call:
            self._over.discard(id(event))
            self.state.events[event.rank].forget(event.index)

    def lost(self, rank: int) -> None:
        """Take in that a rank's connection has ended. Those that follow the first went with it, or the launcher ended them."""
        if rank in self.state.returned or rank in self.monitor.failures or self.monitor.lost:
            return
        if all(map(is_consequence, self.monitor.failures.values())):  # else an error came before
            self.monitor.lost.add(rank)
            self.monitor.exits[rank] = UNSEEN
            self.monitor.began.add(rank)

    def all_told(self) -> None:
        """Nothing more will arrive: what follows from the rest is certain."""
        self.monitor.grace = 0.0

    # --- what follows ---------------------------------------------------------------------

    @property
    def certain(self) -> bool:
        """Whether there is a verdict, which is not worded yet."""
        return self.verdict is None and self.monitor.verdict() is not None

    @property
    def stands_still(self) -> bool:
        """Whether ranks wait, and none has told anything for a long time. Each standstill is told of once."""
        late = time.monotonic() - self._progress > self._patience
        if not late or self.verdict is not None or self.shown_standstill:
            return False
        return bool(self.state.blocked or lacking(self.state))

    def conclude(self) -> RunError | None:
        """Word the verdict."""
        found = self.monitor.verdict()
        self.verdict = found(Seen(self.state.world_size, [list(log) for log in self.state.events])) if found else None
        return self.verdict

    def standstill(self, where: dict[int, Where]) -> str:
        self.shown_standstill = True
        return standstill(self.state, time.monotonic() - self._progress, where)

    def locate(self, rank: int, line: Line | None, inside: list[str]) -> None:
        self.monitor.locate(rank, line, inside)
