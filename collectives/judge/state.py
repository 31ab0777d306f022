"""Every rank's state, as far as its messages have reported it."""

import time
from collections import defaultdict, deque
from types import MappingProxyType
from typing import Callable, Hashable, Mapping

from ..log import backends, messages
from ..log.backends import is_consequence
from ..log.calls import Call, Matcher, pair
from ..log.collectives import COUNTERPART
from ..log.event import MAIN, Event, Failure, Line
from . import open_calls
from .diagnose import needs
from .verdict import Grouping, RankState, Wait

KEPT_CATCHES = 32  # of each rank


class State:
    """Every rank's state, as far as its messages have reported it: a Monitor's knowledge, before it judges.

    with_text and keep: as the Monitor's.
    """

    def __init__(self, world_size: int, with_text: Callable[[Line | None], Line | None], keep: int | None) -> None:
        self._world_size, self._with_text, self._keep = world_size, with_text, keep
        self._events: list[dict[int, Event]] = [{} for _ in range(world_size)]  # by index, those not forgotten
        self._last: list[Event | None] = [None] * world_size
        self._matcher = Matcher()
        self._calls: list[Call] | None = None  # of all messages until now, if asked
        self._began: set[int] = set()
        self._returned: set[int] = set()
        # By rank, its calls of new_group that all others make, too, by index; and how many it has made, once it returned.
        self._groups: list[dict[int, Grouping]] = [{} for _ in range(world_size)]
        self._groups_made: dict[int, int] = {}
        # Groups that their members make alone: by member, the calls that not all have made under this name, by index.
        self._alone: dict[tuple[int, ...], dict[int, dict[int, Grouping]]] = {}
        self._last_group: dict[int, Grouping] = {}  # by rank
        self._unheard: set[int] = set()  # ranks with lost messages
        self._failures: dict[int, Failure] = {}
        # By rank, what its program has caught, the latest last: by line and kind, as it was reported last.
        self._caught: list[dict[tuple[Line, str], messages.Caught]] = [{} for _ in range(world_size)]
        self._failed_at: dict[int, float] = {}  # time.monotonic()
        self._lost: dict[int, float] = {}  # ranks whose connection has ended, in this order -> time.monotonic()
        self._exits: dict[int, tuple[int | str | None, str]] = {}  # status and last words
        self._blocked: dict[int, Event] = {}  # rank -> the event its main thread waits in, without limit
        self._where: dict[int, tuple[Line | None, tuple[str, ...]]] = {}  # rank -> its line, see RankState, if asked
        # rank -> anything else that may act there -> the event that it waits for, if any: its other threads,
        # and what hangs on the future of a call under way.
        self._beside: dict[int, dict[Hashable, Event | None]] = defaultdict(dict)
        # rank whose function has ended -> the threads that it waits for; daemons are not among them.
        self._joined: dict[int, set[Hashable]] = {}
        self._over: dict[int, set[int]] = defaultdict(set)  # id(call) -> id(event) of those that are complete
        self._complete: deque[Call] = deque()
        self._started: set[tuple[int, int]] = set()  # (rank, index) of calls that a device is known to have come to
        self._partly_counted: set[int] = set()  # ranks that may have made calls of lanes that nobody has counted

    # --- input ----------------------------------------------------------------------------

    def lost(self, rank: int, at: float | None = None) -> None:
        """Record that a rank's connection has ended. at: its time.monotonic(); by default now."""
        self._lost.setdefault(rank, time.monotonic() if at is None else at)
        if rank in self.ended_early:
            self._left_in_call(rank)

    def exited(self, rank: int, status: int | str | None, last_words: str = "") -> None:
        """Process the exit of a rank's process, and the end of its standard error.

        status: an exit code, or minus a signal number; or how it ended, in words. None: not known yet.
        """
        self._exits[rank] = status, last_words

    def note_stop(self, rank: int, number: int) -> None:
        """Process a signal that stopped a rank's process. By itself, that isn't the end of anything."""

    def found_sender(self, event: Event, src: int) -> None:
        """Set the source of a recv from anyone."""
        event.src, self._calls = src, None
        self._matcher.add(event)

    def event(self, rank: int, index: int) -> Event | None:
        """A rank's call; None for one that is forgotten."""
        return self._events[rank].get(index)

    def locate(self, rank: int, line: Line | None, inside: list[str]) -> None:
        """Set the learner's line at which a rank is, and the functions that it is inside of, innermost first."""
        self._where[rank] = self._with_text(line), tuple(inside)

    def _take(self, rank: int, message: messages.Message) -> Call | None:
        """Process one message of a rank; messages about forgotten calls are ignored.

        Return the call that it makes suspect, if it does.
        """
        self._calls, known = None, self._events[rank]
        match message:
            case messages.Called():
                event = message.event
                event.line = self._with_text(event.line)
                known[event.index] = self._last[rank] = event
                call = self._matcher.add(event)
                if event.end is not None:
                    self._blocked.pop(rank, None)
                    self._completes(event)
                return call
            case messages.Completed() if event := known.get(message.index):
                note(event, message)
                if message.src is not None:
                    self._matcher.add(event)
                if message.end is not None or rank not in self._failures:  # else it ended inside the call
                    self._completes(event)
            case messages.Waiting() if event := known.get(message.index):
                note(event, message)
                if not message.limited:
                    self._waits(event, message.thread)
            case messages.Began():
                self._began.add(rank)
            case messages.Returned():
                self._returned.add(rank)
                if message.groups is not None:
                    self._groups_made[rank] = message.groups
                    self._groups[rank].pop(message.groups, None)  # a call that failed
            case messages.Failed(failure):
                failure.frames = [self._with_text(line) for line in failure.frames]
                self._failures[rank] = failure
                self._failed_at[rank] = time.monotonic()
                if is_consequence(failure.kind, failure.message):
                    self._left_in_call(rank)
            case _:
                return self._take_rare(rank, message, known)
        return None

    def _take_rare(self, rank: int, message: messages.Message, known: dict[int, Event]) -> Call | None:
        """Process a message that few programs cause, as _take does: of devices, threads, new groups and mistakes."""
        match message:
            case messages.Issued(index) | messages.NotFinite(index) if event := known.get(index):
                note(event, message)
                if event.captured:  # its end will not be reported
                    self._completes(event)
            case messages.Caught(_, line):
                caught, place = self._caught[rank], (line, message.kind)
                caught.pop(place, None)
                if message.times:
                    caught[place] = message._replace(line=self._with_text(line))
                if len(caught) > KEPT_CATCHES:
                    del caught[next(iter(caught))]
            case messages.Resumed():
                self._blocked.pop(rank, None)
            case messages.Misused(index, how, line) if event := known.get(index):
                note(event, message._replace(line=self._with_text(line)))
                return None if how == "viewed" else self._matcher.of[id(event)]
            case messages.WorkBegan(work, index):
                self._beside[rank][work] = known.get(index)
            case messages.WorkEnded(work):
                self._beside[rank].pop(work, None)
            case messages.Started(index):
                self._started.add((rank, index))
            case messages.Skipped(_, made, works, complete):
                self._skip(rank, made, works)
                if not complete:
                    self._partly_counted.add(rank)
            case messages.Joining(threads):
                self._joined[rank] = threads
                if waiting := [e for work, e in self._beside[rank].items() if e is not None and work in threads]:
                    self._blocked[rank] = waiting[0]
            case messages.Grouped(index, ranks, line, name, groups):
                made = self._last_group[rank] = Grouping(ranks, self._with_text(line), self.made(rank), name, groups)
                if name is None:
                    self._groups[rank][index] = made
                else:
                    self._comes(rank, index, made)
            case messages.Ungrouped(index):
                for by_rank in self._alone.values():
                    by_rank.get(rank, {}).pop(index, None)
        return None

    def _comes(self, rank: int, index: int, group: Grouping) -> None:
        """A rank makes a group with its members alone. Forget the group's calls once all members have made theirs."""
        made = self._alone.setdefault(group.ranks, {member: {} for member in group.ranks})
        made[rank][index] = group
        found = {member: self._under(group.name, calls) for member, calls in made.items()}
        if None not in found.values():
            for member, at in found.items():
                del made[member][at]
            if not any(made.values()):
                del self._alone[group.ranks]

    @staticmethod
    def _under(name: str, calls: dict[int, Grouping]) -> int | None:
        """The index of the first of these calls with that name."""
        return next((index for index, call in calls.items() if call.name == name), None)

    def _skip(self, rank: int, made: dict[tuple, int], works: set[Hashable]) -> None:
        """Some messages of a rank are lost. Nobody is accused for anything that they may have reported."""
        self._unheard.add(rank)
        self._matcher.skip(rank, made)
        self._blocked.pop(rank, None)
        self._beside[rank] = dict.fromkeys(works)
        if self._keep is not None:
            for event in list(self._events[rank].values()):
                self._remember(event)

    def _left_in_call(self, rank: int) -> None:
        """A rank has ended inside a call: if it is not known in which, in the first that others had not made.

        Otherwise, gloo refused its last call because the partner is gone.
        """
        if rank not in self._blocked:
            left = [event for event in self._events[rank].values() if event.end is None]
            event = next((event for event in left if not self.call_of(event).is_complete), None)
            failure = self._failures.get(rank)
            if event is None and left and failure and is_consequence(failure.kind, failure.message):
                event = left[-1]
            if event is not None:
                self._blocked[rank] = event

    def _waits(self, event: Event, thread: Hashable) -> None:
        """A thread of the event's rank waits for it, without limit."""
        if thread in self._beside[event.rank]:
            self._beside[event.rank][thread] = event
        if thread == MAIN or thread in self._joined.get(event.rank, ()):
            self._blocked[event.rank] = event

    def _completes(self, event: Event) -> None:
        """A call is complete for this rank: its event is no longer waited for."""
        if self._blocked.get(event.rank) is event:
            del self._blocked[event.rank]
        for thread, waited in self._beside[event.rank].items():
            if waited is event:
                self._beside[event.rank][thread] = None
        if self._keep is not None:
            self._remember(event)

    def _remember(self, event: Event) -> None:
        """Count a complete event. If too many calls are complete, forget the oldest."""
        call = self.call_of(event)
        over = self._over[id(call)]
        if id(event) in over:
            return
        over.add(id(event))
        if call.is_complete and len(over) == len(call.events):
            self._complete.append(call)
        if len(self._complete) > self._keep:
            oldest = self._complete.popleft()
            self._matcher.forget(oldest)
            del self._over[id(oldest)]
            for e in oldest:
                del self._events[e.rank][e.index]
                self._started.discard((e.rank, e.index))

    # --- where the ranks are --------------------------------------------------------------

    @property
    def caught(self) -> list[dict[tuple[Line, str], messages.Caught]]:
        return self._caught

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def events(self) -> list[list[Event]]:
        """By rank, the events that are remembered."""
        return [list(known.values()) for known in self._events]

    @property
    def calls(self) -> list[Call]:
        """The calls of these events, in an order that all ranks agree with."""
        if self._calls is None:
            self._calls = pair(self.events)
        return self._calls

    def made(self, rank: int) -> int:
        """The number of a rank's calls so far, including forgotten ones."""
        last = self._last[rank]
        return last.index + 1 if last else 0

    def call_of(self, event: Event) -> Call:
        """The call that an event is part of, as far as it has been made."""
        return self._matcher.of[id(event)]

    @property
    def standing(self) -> tuple[RankState, ...]:
        """Every rank's state."""
        return tuple(map(self._standing, range(self.world_size)))

    def _standing(self, rank: int) -> RankState:
        event, (line, inside) = self._blocked.get(rank), self._where.get(rank, (None, ()))
        call = event and self.call_of(event)
        made, returned, began = self.made(rank), rank in self._returned, rank in self._began or bool(self._last[rank])
        return RankState(rank, made, self._last[rank], returned, event, call, line, inside, began, self._lacking(rank))

    def _lacking(self, rank: int) -> frozenset[int] | None:
        """The members that a rank's last group, if its members make it alone, still lacks."""
        group = self._last_group.get(rank)
        if group is None or group.name is None:
            return None
        made = self._alone.get(group.ranks, {})
        if self._unheard & set(group.ranks) or group not in made.get(rank, {}).values():
            return frozenset()
        return frozenset(member for member, calls in made.items() if self._under(group.name, calls) is None)

    @property
    def unlocated(self) -> set[int]:
        """Ranks that are in no call, and whose line is not known."""
        return set(range(self.world_size)) - self._returned - set(self._blocked) - set(self._where)

    @property
    def cut_off(self) -> frozenset[int]:
        """Ranks whose connection has ended."""
        return frozenset(self._lost)

    @property
    def ended_early(self) -> set[int]:
        """Ranks that ended without having returned or failed."""
        return self._lost.keys() - self._returned - self._failures.keys()

    @property
    def dead(self) -> set[int]:
        """Ranks whose end is a reason for a verdict."""
        return self.ended_early

    @property
    def losses(self) -> Mapping[int, str]:
        """The ranks that are lost and not waited for, each with how: 'was killed by SIGKILL'. See launch/lost.py."""
        return {}

    @property
    def exits(self) -> Mapping[int, int | str | None]:
        """By rank, the exit statuses that are known: see Died.status."""
        return MappingProxyType({rank: status for rank, (status, _) in self._exits.items()})

    @property
    def returned(self) -> frozenset[int]:
        """Ranks whose function has returned."""
        return frozenset(self._returned)

    @property
    def failures(self) -> Mapping[int, Failure]:
        """By rank, the exceptions."""
        return MappingProxyType(self._failures)

    def _open_events(self, rank: int) -> list[Event]:
        """The calls in which one of a rank's threads or its device waits; empty if it will make no more calls."""
        if rank in self._returned or rank in self._lost or rank in self._failures:
            return []
        waited = {id(e) for e in (self._blocked.get(rank), *self._beside[rank].values())}
        if (last := self._last[rank]) and last.waiting is not None:
            waited.add(id(last))  # until its time limit, perhaps
        known = (e for e in self._events[rank].values() if e.end is None and not e.captured and len(e.group) > 1)
        return [e for e in known if e.issued is not None or backends.of(e.backend).in_stream or id(e) in waited]

    @property
    def _open_waits(self) -> list[list[Wait]]:
        """By rank, the calls that it waits in, see Standstill."""
        lacked: dict[int, tuple[frozenset[int], ...]] = {}  # by id(call)
        waits: list[list[Wait]] = []
        for rank in range(self.world_size):
            firsts = {None if e.is_from_anyone else e.lane: e for e in reversed(self._open_events(rank))}
            mine = []
            for e in sorted(firsts.values(), key=lambda e: e.index):
                call = self.call_of(e)
                if id(call) not in lacked:
                    lacked[id(call)] = self._lacked(call)
                mine.append(Wait(e, call, *lacked[id(call)], started=(rank, e.index) in self._started))
            waits.append(mine)
        return waits

    def _lacked(self, call: Call) -> tuple[frozenset[int], ...]:
        """The ranks that have not made a call; the ones that may have; and the ones that have reported nothing."""
        if call.is_complete or call.events[0].is_from_anyone:
            return frozenset(), frozenset(), frozenset()
        absent, lane = open_calls.absent(call), call.events[0].lane
        silent = {rank for rank in absent if rank not in self._began and self._last[rank] is None}
        other = COUNTERPART.get(call.op)
        doubtful = (absent - silent) & self._partly_counted
        unsure = {rank for rank in doubtful if not self._matcher.counts((other or rank, *lane.shared))}
        return frozenset(absent - silent), frozenset(unsure), frozenset(silent)

    def _needs(self, event: Event) -> set[int]:
        """The ranks whose call an event waits for."""
        return needs(event, self.call_of(event))

    def _waits_of(self, rank: int) -> list[set[int]]:
        """For each part of a rank that may act (a thread, a future), the ranks it waits for: empty if it runs."""
        acting = list(self._beside[rank].values())
        if rank not in self._returned and not self._joined.get(rank):
            acting.append(self._blocked.get(rank))
        return [set() if event is None else self._needs(event) for event in acting]


def note(event: Event, message: messages.Message) -> None:
    """Update an event from a message about its call."""
    match message:
        case messages.Waiting(_, since):
            event.waiting = since
        case messages.Issued(_, after, at):
            event.after, event.issued, event.waited = after, at, True
        case messages.Completed(_, after, end, waited, src):
            event.after = event.after if after is None else after
            event.end, event.waited, event.abandoned = end, waited, end is None
            event.src = event.src if src is None else src
        case messages.NotFinite():
            event.non_finite = True
        case messages.Misused(_, "viewed", line):  # correct, if it is read only after the wait
            event.viewed_at = line
        case messages.Misused(_, how, line) if event.misuse is None:  # the first is the one that is judged
            event.misuse, event.misused_at = how, line
