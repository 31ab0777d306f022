"""The world of pretended ranks: which calls belong together, what each rank gets of them, and the messages of the log.

It keeps no rank running: whoever does (scheduler.py) asks it whether a rank can go on.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Callable, NamedTuple

from ..judge import diagnose
from ..judge.diagnose import needs
from ..judge.monitor import Monitor
from ..judge.verdict import Verdict
from ..log import messages
from ..log.calls import Call
from ..log.collectives import of
from ..log.event import MAIN, Event, Failure, Line
from .tensor_values import TensorValues, cut

LIBRARY = str(Path(__file__).resolve().parent.parent.parent)
LIBRARY_FOLDERS = tuple(f"{LIBRARY}/{folder}/" for folder in ("collectives", "helpers"))
STANDARD = str(Path(linecache.__file__).resolve().parent) + "/"
TICK = 1e-6  # seconds between two messages: time here only orders them
HARMLESS = {"aliased", "read", "returned", "written", "layout"}  # flaws of calls that end all the same
HANDLED_CHARACTERS = 300


class RankGroup(NamedTuple):
    """A process group: its ranks in the world."""

    name: str
    ranks: tuple[int, ...]


class Suspended(BaseException):
    """A rank can't go on now."""


class Poll(NamedTuple):
    """A rank asked whether a call is complete, and it wasn't.  moves: what had happened in the world by then."""

    moves: int


class World:
    """N ranks and their calls.

    memory: for the kind of tensors that the program has.  judging: the Monitor's other arguments.
    """

    def __init__(
        self, world_size: int, memory: TensorValues | None = None, check: bool = True, **judging: Any
    ) -> None:
        self.size, self.memory = world_size, memory or TensorValues()
        self.monitor = Monitor(world_size, check, **judging)
        self.ranks = [self.make_rank(number) for number in range(world_size)]
        self.everybody = RankGroup("0", tuple(range(world_size)))
        self.current: Rank | None = None
        self.run_others: Callable[[], None] = lambda: None  # the scheduler's
        self.moves = 0  # messages so far
        self._posted: dict[int, int] = {}  # id(event) -> moves when it was made
        self._released: dict[int, int] = {}  # the same of a send whose Work was dropped
        self._refused: set[int] = set()  # the same of calls that the backend refused
        self._complete: set[int] = set()  # the same of the first event of a call that all its ranks have made
        self._totals: dict[int, Any] = {}  # the same of a complete call's first event -> its result

    def make_rank(self, number: int) -> Rank:
        return Rank(self, number)

    def here(self) -> Rank:
        """The rank that is running."""
        assert self.current is not None
        return self.current

    def now(self) -> float:
        return self.moves * TICK

    def emit(self, rank: int, message: messages.Message) -> None:
        self.moves += 1
        self.monitor.feed(rank, message)

    # --- calls --------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        """A rank makes a call."""
        event.start = self.now()
        self.emit(event.rank, messages.Called(event))
        self._posted[id(event)] = self.moves

    def is_complete(self, event: Event) -> bool:
        """Whether a call has ended for its rank, or would if it waited."""
        if event.is_from_anyone and not self._found_sender(event):
            return False
        call = self.monitor.call_of(event)
        first = id(call.events[0])
        if first in self._complete:
            return True
        if needs(event, call) or self._is_lost(call) or any(id(e) in self._refused for e in call):
            return False
        if event.op == "reduce" and not call.is_complete and not self._has_sums(event, call):
            return False
        complete = (diagnose.mismatch(call) or "written") in HARMLESS
        if complete and call.is_complete:
            self._complete.add(first)  # it stays so
        return complete

    def refuse(self, event: Event) -> None:
        """The backend raises in this call: it never ends."""
        self._refused.add(id(event))

    def _found_sender(self, event: Event) -> bool:
        """Look for a message to a recv from anyone: the first that was sent and that no other recv takes."""
        sends = [
            e for rank in self.ranks for e in rank.events
            if e.op == "send" and e.dst == event.rank and e.group_name == event.group_name and e.tag == event.tag
            and not self.monitor.call_of(e).is_complete and id(e) not in self._released
        ]  # fmt: skip
        if not sends:
            return False
        self.monitor.found_sender(event, min(sends, key=lambda e: self._posted[id(e)]).rank)
        return True

    def _is_lost(self, call: Call) -> bool:
        """Whether this is a message whose sender dropped its Work before somebody received it."""
        if not call.is_message or len(call.events) < 2:
            return False
        send, recv = call.events
        return self._released.get(id(send), self.moves + 1) < self._posted[id(recv)]

    def released(self, event: Event, outputs: Any) -> None:
        """The program has dropped the Work of a message before it was complete."""
        if event.end is None:
            self._released[id(event)] = self.moves
            self.emit(event.rank, messages.Completed(event.index, self.snapshot(outputs), None, False, None))

    def snapshot(self, value: Any) -> Any:
        """Copies of a call's tensors."""
        if isinstance(value, list):
            return [self.memory.copy(x) for x in value]
        return None if value is None else self.memory.copy(value)

    def result(self, event: Event) -> Any:
        """The outcome of a complete call for its rank: a flat tensor, a list of them, or None for nothing."""
        call = self.monitor.call_of(event)
        if event.is_message:
            return call.events[0].before if event.op == "recv" else None
        collective = of(event.op)
        if collective.gives is None or not call.is_complete and not event.nbytes:
            return None  # nothing to move, and so nobody is waited for
        group, first = event.group, id(call.events[0])
        if first in self._totals:
            return self._totals[first]
        by_rank = {e.rank: e for e in call}
        inputs = [self._input_of(by_rank.get(rank), collective.gives) for rank in group]
        place = group.index(event.rank)
        root = group.index(event.root) if event.root in group else None
        if not collective.reduces:
            return collective.result(inputs, place, root, list)
        reduce_op = event.reduce_op or "SUM"
        if collective.in_place:
            only = place if root not in (None, place) else None
            total = self._around(inputs, only, reduce_op)
            if root is None and call.is_complete:
                self._totals[first] = total  # all ranks get the same
            return total
        return collective.result(inputs, place, root, lambda parts: self._summed(parts, place, place, reduce_op))

    def _input_of(self, event: Event | None, gives: str) -> Any:
        """A rank's input: a tensor, or a list with one for each rank; None if the call ends without it."""
        if event is None or event.before is None:
            return None
        if gives != "all":
            return event.before
        if isinstance(event.before, list):
            return event.before
        x, size = event.before, len(event.group)
        splits = event.splits[0] if event.splits and event.splits[0] else None
        rows = x.shape[0] if x.shape else 0
        return cut(x, splits or [rows // size] * size)

    def _has_sums(self, event: Event, call: Call) -> bool:
        """Whether a rank's part in a reduce that some have not made can have ended.

        One chunk's sum needs the ranks that it passed. Several chunks come around from the ranks below too, so all wait for all.
        """
        size, here = len(event.group), event.group.index(event.rank)
        count = event.nbytes // event.dtype.itemsize
        return count <= _chunk(count, size) and {event.group[at] for at in _passed(0, here, size)} <= set(call.ranks)

    def _summed(self, parts: list, chunk: int, until: int, op: str) -> Any:
        """The reduction of the ranks' parts of the k-th chunk as gloo makes it, up to a rank."""
        return self.memory.total(op, [parts[place] for place in _passed(chunk, until, len(parts))], len(parts))

    def _around(self, inputs: list, only: int | None, op: str) -> Any:
        """The reduction of whole tensors, chunk by chunk.  only: a rank that keeps what passed through it."""
        size, flat = len(inputs), [x if x is None else x.reshape(-1) for x in inputs]
        count = next(x.numel() for x in flat if x is not None)
        chunk = _chunk(count, size)
        ends = range(-(-count // chunk)) if count else range(1)
        pieces = [[x if x is None else x[k * chunk : (k + 1) * chunk] for x in flat] for k in ends]
        return self.memory.join([
            self._summed(parts, k, k if only is None else only, op) for k, parts in enumerate(pieces)
        ])  # fmt: skip

    # --- the end ------------------------------------------------------------------------------

    def verdict(self, seconds: float) -> Verdict | None:
        """The judge's, now that no rank can go on; None if all have returned and all is well."""
        monitor = self.monitor
        monitor.nothing_more()
        if verdict := monitor.verdict():
            return verdict
        left = [rank for rank in self.ranks if not rank.ended]
        if not left:
            return None
        for rank in left:
            if isinstance(rank.waits_for, tuple):
                monitor.locate(rank.number, rank.line, [])
        return monitor.final_verdict() if monitor.in_trouble else monitor.out_of_time(seconds)


def _chunk(count: int, size: int) -> int:
    """The elements of a rank's chunk in gloo's ring: two segments."""
    return 2 * -(-count // (2 * size))


def _passed(chunk: int, until: int, size: int) -> list[int]:
    """The places that the k-th chunk's sum comes through up to one of them: from k - 1 down, around the end, to k."""
    return [(chunk - 1 - step) % size for step in range((chunk - 1 - until) % size + 1)]


class Rank:
    """One rank: what it has done, and how far the function that is called again has come in that.

    results: by the index of a call, what it left.  polls: answers to whether a call was complete.
    waits_for: what it can't go on without: an Event, a Poll, or (index, ranks) of a group to be made; None if it runs.
    run: which of its runs this is; None when it is suspended, so that what dies then means nothing.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.events: list[Event] = []
        self.results: dict[int, Any] = {}
        self.polls: list[bool] = []
        self.groups: list[RankGroup] = []
        self.reported: set[tuple] = set()
        self.waits_for: Any = None
        self.line: Line | None = None
        self.ended = False
        self.result: Any = None
        self.run: object | None = None
        self._runs = 0
        self.open: dict[int, Work] = {}
        self.dropped: list[Work] = []  # messages' whose program has let go of them, until that is reported
        self.begin()

    def begin(self) -> None:
        """The function is about to be called, once more."""
        self.run = self._runs = self._runs + 1
        self._calls = self._polled = self._grouped = 0
        self.destroyed = False  # its process group
        self.open.clear()
        self.dropped.clear()

    def report_dropped(self) -> None:
        """Report the messages that the program has let go of."""
        while self.dropped:
            work = self.dropped.pop(0)
            work.close()
            if work.event.index not in self.results and self.once("complete", work.event.index):
                self.world.released(work.event, work.outputs)

    def once(self, *key: Any) -> bool:
        """Whether this happens for the first time, over all runs."""
        new_ = key not in self.reported
        self.reported.add(key)
        return new_

    def emit(self, message: messages.Message) -> None:
        self.world.emit(self.number, message)

    def suspend(self, waits_for: Any) -> None:
        """Stop here, until the world lets it continue: at once if the other ranks, run from here, come far enough."""
        self.waits_for, self.line = waits_for, learners_line()
        if sys.exc_info()[1] is None:  # an exception that is handled here would seem to be theirs
            self.world.run_others()
        if not self.can_go_on:
            self.run = None
            raise Suspended
        self.waits_for = None

    def call(self, event: Event, inputs: Any, outputs: Any, watched: bool) -> Work:
        """Make a call.  watched: whether its tensors must not be used until it is waited for."""
        if self.run is None:
            raise Suspended  # the function caught the first one, or has a `finally`
        self.report_dropped()
        index, self._calls = self._calls, self._calls + 1
        if index == len(self.events):
            event.index, event.line = index, learners_line()
            event.handling = handled()
            event.before = self.world.snapshot(inputs)
            self.events.append(event)
            self.world.post(event)
        work = Work(self, self.events[index], outputs)
        if event.is_message:
            return work
        self.open[index] = work
        return work

    def wait(self, work: Work, limited: bool = False) -> None:
        if self.run is None:
            raise Suspended
        self.report_dropped()
        event = work.event
        if event.index not in self.results:
            if self.once("waits", event.index):
                self.emit(messages.Waiting(event.index, self.world.now(), limited, MAIN))
            if not self.world.is_complete(event):
                self.suspend(event)
        self.deliver(work)

    def poll(self, work: Work) -> bool:
        """Whether a call is complete."""
        if self.run is None:
            raise Suspended
        if self._polled == len(self.polls):
            complete = work.event.index in self.results or self.world.is_complete(work.event)
            if not complete and not isinstance(self.waits_for, Poll):
                self.suspend(Poll(self.world.moves))  # others may go on in the meantime
            self.waits_for = None
            self.polls.append(complete)
        self._polled += 1
        if self.polls[self._polled - 1]:
            self.deliver(work)
        return self.polls[self._polled - 1]

    def deliver(self, work: Work, waited: bool = True) -> None:
        """Give the program what a complete call leaves it."""
        event, memory = work.event, self.world.memory
        if event.index not in self.results:
            self.results[event.index] = self.world.result(event)
        work.close()
        result = self.results[event.index]
        if result is not None and work.outputs is not None:
            if isinstance(work.outputs, list):
                for x, part in zip(work.outputs, result):
                    memory.write(x, part)
            else:
                memory.write(work.outputs, memory.join(result) if isinstance(result, list) else result)
        if self.once("complete", event.index):
            after = self.world.snapshot(work.outputs)
            src = event.src if event.op == "recv" else None
            self.emit(messages.Completed(event.index, after, self.world.now(), waited, src))

    def group(self, ranks: tuple[int, ...]) -> RankGroup | None:
        """Make a group; None where this rank isn't a member."""
        if self.run is None:
            raise Suspended
        index, self._grouped = self._grouped, self._grouped + 1
        if index == len(self.groups):
            if self.once("grouped", index):
                self.emit(messages.Grouped(index, ranks, learners_line()))
            if not self.has_members(index, ranks):
                self.suspend((index, ranks))
            self.groups.append(RankGroup(str(index + 1), ranks))
        return self.groups[index] if self.number in ranks else None

    def has_members(self, index: int, ranks: tuple[int, ...]) -> bool:
        """Whether all members make this group, with the same members in mind."""
        if self.number not in ranks:
            return True
        groupings = self.world.monitor.nth_groups(index)
        return all(rank in groupings and groupings[rank].ranks == ranks for rank in ranks)

    @property
    def can_go_on(self) -> bool:
        """Whether it isn't suspended for good, as far as is known."""
        match self.waits_for:
            case None:
                return True
            case Event() as event:
                return self.world.is_complete(event)
            case Poll(moves):
                return self.world.moves > moves
            case index, ranks:
                return self.has_members(index, ranks)
        raise AssertionError

    def returned(self, result: Any) -> None:
        """The function has returned."""
        for x in self.world.memory.tensors_in(result):
            x.storage.touch("returned", x.places())
        self.report_dropped()
        for work in list(self.open.values()):
            if work.event.index not in self.results and self.world.is_complete(work.event):
                self.deliver(work, waited=False)
            elif self.once("complete", work.event.index):
                after = self.world.snapshot(work.outputs)
                self.emit(messages.Completed(work.event.index, after, None, False, None))
        self.ended, self.result, self.waits_for = True, result, None
        self.emit(messages.Returned(b"", (None, None), None, [], self._grouped))

    def failed(self, error: BaseException) -> None:
        """The function has raised."""
        self.ended, self.waits_for = True, None
        self.emit(messages.Failed(failure(error)))


class Work:
    """A call under way.  outputs: the tensors that are filled once it is complete."""

    def __init__(self, rank: Rank, event: Event, outputs: Any) -> None:
        self._rank, self.event, self.outputs, self._run = rank, event, outputs, rank.run
        self._guards: list[tuple[Any, Callable]] = []
        self._closed = False

    def guard(self, inputs: list, outputs: list) -> None:
        """Report any use of the tensors until it is waited for: inputs must not be written to, outputs not used at all."""
        memory = {id(x): (x, False) for x in inputs} | {id(x): (x, True) for x in outputs}
        for x, all_uses in memory.values():
            spots = x.places()
            if spots:
                watch = partial(self._touched, min(spots), max(spots) + 1, all_uses)
                x.storage.guards.append(watch)
                self._guards.append((x.storage, watch))

    def _touched(self, first: int, last: int, all_uses: bool, how: str, start: int, end: int) -> None:
        touched = start < last and first < end and (all_uses or how in ("written",))
        if touched and self._rank.run == self._run and self._rank.once("misused", self.event.index, how):
            line = None if how == "returned" else learners_line()
            self._rank.emit(messages.Misused(self.event.index, how, line))

    def close(self) -> None:
        """It is waited for, or known to be complete."""
        self._closed = True
        for storage, watch in self._guards:
            storage.guards.remove(watch)
        self._guards.clear()
        self._rank.open.pop(self.event.index, None)

    def wait(self, timeout: Any = None) -> bool:
        if not self._closed:
            self._rank.wait(self, limited=timeout is not None)
        return True

    def is_completed(self) -> bool:
        return self._closed or self._rank.poll(self)

    is_success = is_completed

    def __getattr__(self, name: str) -> Any:
        from .dtypes import Absent

        if name.startswith("_"):
            raise AttributeError(name)
        raise Absent(f"this page has no Work.{name}")

    def __del__(self) -> None:
        rank = self._rank
        if self.event.is_message and not self._closed and rank.run is not None and rank.run == self._run:
            rank.dropped.append(self)


# --- the program's lines ----------------------------------------------------------------------


def is_learners(file: str) -> bool:
    """Whether a source file is the program's own."""
    return not file.startswith((*LIBRARY_FOLDERS, STANDARD, "<frozen"))


def learners_line() -> Line | None:
    """The program's innermost line that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_learners(frame.f_code.co_filename):
        if frame.f_code is RUNS.get("code"):
            return None
        frame = frame.f_back
    if frame is None:
        return None
    return line_of(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


RUNS: dict[str, Any] = {}  # "code" -> the function that calls the program's


def line_of(file: str, number: int | None, function: str) -> Line:
    return Line(file, number or 0, function, linecache.getline(file, number or 0).strip())


def handled() -> str | None:
    """The exception that the program is handling, in a few words."""
    error = sys.exc_info()[1]
    if error is None:
        return None
    return traceback.format_exception_only(error)[0].partition("\n")[0][:HANDLED_CHARACTERS]


def failure(error: BaseException) -> Failure:
    """An exception as data."""
    frames = [
        line_of(f.filename, f.lineno, f.name)
        for f in traceback.extract_tb(error.__traceback__)
        if is_learners(f.filename)
    ]
    if isinstance(error, SystemExit):
        kind, message = "SystemExit", f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        kind, message = type(error).__name__, str(error).strip()
    return Failure(kind, message, frames, True, "".join(traceback.format_exception(error)))
