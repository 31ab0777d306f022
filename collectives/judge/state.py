"""Where every rank stands, as far as its messages have told."""

from collections import Counter, defaultdict, deque
from typing import Callable, Hashable

from ..rank import protocol
from ..record.calls import Call, Matcher, pair
from ..record.event import MAIN, Event, Failure, Line
from .gloo import needs
from .log import Log, note
from .verdict import Standing


class State:
    """Where every rank stands, as far as its messages have told. Only the Monitor writes to it.

    with_text and keep: as the Monitor's.
    """

    def __init__(
        self, world_size: int, with_text: Callable[[Line | None], Line | None], keep: int | None = None
    ) -> None:
        self.world_size, self._with_text = world_size, with_text
        self.logs = [Log() for _ in range(world_size)]
        self.matcher = Matcher()
        self.began: set[int] = set()
        self.returned: set[int] = set()
        self.failures: dict[int, Failure] = {}
        self.lost: set[int] = set()  # ranks whose connection has ended
        self.exits: dict[int, tuple[int | str | None, str]] = {}  # status and last words
        self.blocked: dict[int, Event] = {}  # rank -> the event its main thread waits in, without limit
        self.where: dict[int, tuple[Line | None, tuple[str, ...]]] = {}  # rank -> its line, see Standing, if asked
        # rank -> what else may act there -> the event that it waits for, if it does: its other threads,
        # and what hangs on the future of a call under way.
        self._beside: dict[int, dict[Hashable, Event | None]] = defaultdict(dict)
        # rank whose function has ended -> the threads that it waits for; daemons are not among them.
        self._joined: dict[int, set[Hashable]] = {}
        self._calls: list[Call] | None = None  # of all messages until now, if asked
        self._keep = keep
        self._ended: Counter[int] = Counter()  # id(call) -> its events that are complete
        self._over: set[int] = set()  # id(event) of those
        self._complete: deque[Call] = deque()

    # --- what arrives ---------------------------------------------------------------------

    def feed(self, rank: int, message: protocol.Message) -> Call | None:
        """Take in one message of a rank. Return the call that it makes suspect, if it does."""
        self._calls = None
        handle = _HANDLERS.get(type(message))
        return handle(self, rank, message) if handle else None

    def found_sender(self, event: Event, src: int) -> None:
        event.src, self._calls = src, None
        self.matcher.add(event)

    def locate(self, rank: int, line: Line | None, inside: list[str]) -> None:
        self.where[rank] = self._with_text(line), tuple(inside)

    def _called(self, rank: int, message: protocol.Called) -> Call:
        event = message.event
        event.line = self._with_text(event.line)
        self.logs[rank].append(event)
        return self.matcher.add(event)

    def _misused(self, rank: int, message: protocol.Misused) -> Call | None:
        event = self._event(rank, message.index)
        if not event:
            return None
        note(event, message._replace(line=self._with_text(message.line)))
        return None if message.how == "viewed" else self.matcher.of[id(event)]

    def _waiting(self, rank: int, message: protocol.Waiting) -> None:
        if event := self._event(rank, message.index):
            note(event, message)
            if not message.limited:
                self._waits(event, message.thread)

    def _resumed(self, rank: int, message: protocol.Resumed) -> None:
        self.blocked.pop(rank, None)

    def _work_began(self, rank: int, message: protocol.WorkBegan) -> None:
        waits_for = None if message.index is None else self._event(rank, message.index)
        self._beside[rank][message.work] = waits_for

    def _work_ended(self, rank: int, message: protocol.WorkEnded) -> None:
        self._beside[rank].pop(message.work, None)

    def _joining(self, rank: int, message: protocol.Joining) -> None:
        self._joined[rank] = message.threads
        waiting = [e for work, e in self._beside[rank].items() if e is not None and work in message.threads]
        if waiting:
            self.blocked[rank] = waiting[0]

    def _completed(self, rank: int, message: protocol.Completed) -> None:
        if event := self._event(rank, message.index):
            note(event, message)
            if message.src is not None:
                self.matcher.add(event)
            self._completes(event)

    def _returned(self, rank: int, message: protocol.Returned) -> None:
        self.returned.add(rank)

    def _failed(self, rank: int, message: protocol.Failed) -> None:
        message.failure.frames = [self._with_text(line) for line in message.failure.frames]
        self.failures[rank] = message.failure

    def _has_begun(self, rank: int, message: protocol.Began) -> None:
        self.began.add(rank)

    def _event(self, rank: int, index: int) -> Event | None:
        """None: its call is forgotten."""
        return self.logs[rank].get(index)

    def _waits(self, event: Event, thread: Hashable) -> None:
        """A thread of the event's rank waits for it, without limit."""
        if thread in self._beside[event.rank]:
            self._beside[event.rank][thread] = event
        if thread == MAIN or thread in self._joined.get(event.rank, ()):
            self.blocked[event.rank] = event

    def _completes(self, event: Event) -> None:
        """A call is complete for this rank: nobody waits for its event any more."""
        if self.blocked.get(event.rank) is event:
            del self.blocked[event.rank]
        for thread, waited in self._beside[event.rank].items():
            if waited is event:
                self._beside[event.rank][thread] = None
        if self._keep is not None and id(event) not in self._over:
            self._remember(event, self._keep)

    def _remember(self, event: Event, keep: int) -> None:
        """Count a complete event. Of too many complete calls, forget the oldest."""
        call = self.matcher.of[id(event)]
        self._over.add(id(event))
        self._ended[id(call)] += 1
        if self._ended[id(call)] < (2 if call.is_message else len(call.group)):
            return
        self._complete.append(call)
        if len(self._complete) > keep:
            self._forget(self._complete.popleft())

    def _forget(self, call: Call) -> None:
        self.matcher.forget(call)
        self._ended.pop(id(call), None)
        for event in call:
            self._over.discard(id(event))
            self.logs[event.rank].forget(event.index)

    # --- what follows ---------------------------------------------------------------------

    @property
    def events(self) -> list[list[Event]]:
        """By rank, the events that are remembered."""
        return [list(log) for log in self.logs]

    @property
    def calls(self) -> list[Call]:
        """The calls of these events, in an order that all ranks agree with."""
        if self._calls is None:
            self._calls = pair(self.events)
        return self._calls

    @property
    def dead(self) -> set[int]:
        """Ranks that ended without having returned or failed."""
        return self.lost - self.returned - set(self.failures)

    @property
    def unlocated(self) -> set[int]:
        """Ranks that are in no call, and whose line is not known."""
        return set(range(self.world_size)) - self.returned - set(self.blocked) - set(self.where)

    @property
    def standing(self) -> tuple[Standing, ...]:
        return tuple(self._standing(rank, log) for rank, log in enumerate(self.logs))

    def _standing(self, rank: int, log: Log) -> Standing:
        event, (line, inside) = self.blocked.get(rank), self.where.get(rank, (None, ()))
        call = event and self.matcher.of[id(event)]
        return Standing(rank, len(log), log.last, rank in self.returned, event, call, line, inside)

    def blocked_or_done(self) -> set[int]:
        """The ranks that will not move by themselves: returned, or waiting for a call not made."""
        return {r for r in range(self.world_size) if all(self.waits_of(r))}

    def waits_of(self, rank: int) -> list[set[int]]:
        """For all in a rank that may act, the ranks without which it cannot: none if it runs."""
        acting = list(self._beside[rank].values())
        if rank not in self.returned and not self._joined.get(rank):
            acting.append(self.blocked.get(rank))
        return [set() if e is None else needs(e, self.matcher.of[id(e)]) for e in acting]


_HANDLERS = {
    protocol.Began: State._has_begun,
    protocol.Called: State._called,
    protocol.Misused: State._misused,
    protocol.Waiting: State._waiting,
    protocol.Resumed: State._resumed,
    protocol.WorkBegan: State._work_began,
    protocol.WorkEnded: State._work_ended,
    protocol.Joining: State._joining,
    protocol.Completed: State._completed,
    protocol.Returned: State._returned,
    protocol.Failed: State._failed,
}
