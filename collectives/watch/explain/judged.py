"""Dumps as the messages that their ranks would have sent, and the judge's verdict on them.

The judge is given the calls that have not ended on all ranks. For the earlier ones it gets counts alone, as for a
rank some of whose messages are lost.
"""

from bisect import bisect_left
from math import prod
from typing import Iterator

from ...judge import causes
from ...judge.monitor import Monitor
from ...judge.verdict import Cause, Slip, Wait
from ...log import messages
from ...log.calls import Call
from ...log.collectives import of
from ...log.event import Event, Line
from . import ops
from .dump import Launch, ProcessGroup, Signature
from .dumped_job import DumpedJob, LaneKey


class Judged:
    """A job's dumps, judged.

    causes: which ranks hold up which others.  waits: by rank, the calls that it is waiting in.
    """

    def __init__(self, job: DumpedJob) -> None:
        self.job = job
        self._launches: dict[tuple[int, int], Launch] = {}  # (rank, index of an event) -> the launch it was made from
        self._numbers: dict[tuple[int, int], int] = {}  # likewise -> its number in its lane
        self._forms: dict[tuple[ProcessGroup, int], dict[Signature, tuple]] = {}  # see _form
        self._first = min((min(dump.launches.made) for dump in job.dumps.values() if dump.launches), default=0)
        monitor = Monitor(job.world_size, check=False)
        begin = self._begin()
        for rank in job.dumps:
            for message in self._messages(rank, begin):
                monitor.feed(rank, message)
        still = monitor.standstill(0.0, self._slip, self._history)
        self.waits: tuple[tuple[Wait, ...], ...] = still.waits if still else ((),) * job.world_size
        self.causes: tuple[Cause, ...] = still.causes if still else ()

    def launch(self, event: Event) -> Launch:
        """A call's entry in its dump."""
        return self._launches[event.rank, event.index]

    def number(self, event: Event) -> int:
        """The number of a call in its lane."""
        return self._numbers[event.rank, event.index]

    def lane(self, event: Event) -> LaneKey:
        group = self.job.same[self.launch(event).group]
        return (group, *event.ends) if event.is_message else group

    # --- messages -------------------------------------------------------------------------

    def _begin(self) -> dict[LaneKey, int]:
        """Per lane, the first number of a call that has not ended on all its ranks."""
        begin: dict[LaneKey, int] = {}
        job = self.job
        for lane in {key for lanes in job.lanes.values() for key in lanes}:
            for rank in job.needed(lane):
                if rank not in job.dumps:
                    continue
                reached = job.reached(rank, lane)
                first = job.open[rank].get(lane, None if reached is None else reached + 1)
                if first is not None:
                    begin[lane] = min(first, begin.get(lane, first))
        return begin

    def _messages(self, rank: int, begin: dict[LaneKey, int]) -> Iterator[messages.Message]:
        """The messages that a rank would have sent."""
        job, dump = self.job, self.job.dumps[rank]
        complete = dump.whole and not dump.dropped
        calls: list[tuple[Launch, LaneKey | None, int]] = []
        reached: dict[LaneKey, int] = {}
        for key, lane in job.lanes[rank].items():
            if len(job.needed(key)) > 1 and rank in job.needed(key):  # else it is only queued behind something
                at = bisect_left(lane.numbers, begin[key])
                reached[key] = lane.numbers[at] - 1 if at < len(lane.numbers) else lane.numbers[-1]
                calls += [(launch, key, number) for number, launch in lane.calls(at)]
        forms = {
            x for x in set(dump.launches.forms) if x.over is False and any(part.ends is None for part in x.messages)
        }
        alone = (dump.launches[at] for at, form in enumerate(dump.launches.forms) if form in forms) if forms else ()
        calls += [(launch, None, launch.number) for launch in alone]
        calls.sort(key=lambda call: call[0].index)
        yield messages.Began()
        made = {self._counted(rank, key): number for key, number in reached.items()}
        yield messages.Skipped(dump.dropped, made, set(), complete)
        for index, (launch, key, number) in enumerate(calls):
            if key is not None and number != reached[key] + 1:
                yield messages.Skipped(index, {self._counted(rank, key): number - 1}, set(), complete)
            if key is not None:
                reached[key] = number
            event = self._event(rank, index, launch, key, number)
            yield messages.Called(event)
            if event.end is None:
                yield messages.Issued(index, None, event.start)
                if launch.began:
                    yield messages.Started(index)

    def _counted(self, rank: int, key: LaneKey) -> tuple:
        """The lane of a rank's events, see Event.lane."""
        if type(key) is tuple:
            group, source, target = key
            op = "send" if rank == source else "recv"
            return op, group.name, self.job.members[group], source, target, None
        return rank, key.name, self.job.members[key]

    def _event(self, rank: int, index: int, launch: Launch, key: LaneKey | None, number: int) -> Event:
        start = (launch.made - self._first) / 1e9
        open_ = key is None or self.job.is_open(rank, key, number)
        group = self.job.same[launch.group]
        event = Event(
            rank, index, "recv", self.job.members[group], line=launch.place and Line(*launch.place), start=start,
            end=None if open_ else start, backend=self.job.dumps[rank].backend, group_name=group.name, async_op=True,
        )  # fmt: skip
        self._note(event, launch, number)
        if type(key) is tuple:
            _, source, target = key
            event.op, event.src, event.dst = ("send", None, target) if rank == source else ("recv", source, None)
        elif key is not None:
            event.op, event.dtype, event.shape = self._form(key, number, launch.what)
        return event  # without a key, a message whose other end is unknown: as a recv from anyone

    # --- arguments that must agree --------------------------------------------------------

    def _form(self, group: ProcessGroup, number: int, what: Signature) -> tuple:
        """The op, dtype and sizes of a rank's part in a collective that must agree, where all dumps have them."""
        if (forms := self._forms.get((group, number))) is None:
            lanes = (self.job.lanes[rank].get(group) for rank in self.job.needed(group) if rank in self.job.dumps)
            made = (lane and lane.at(number) for lane in lanes)
            told = dict.fromkeys(launch.what for launch in made if launch and launch.what.op != ops.UNTOLD)
            sizes, dtypes = [_sizes(one) for one in told], [_dtype(one) for one in told]
            known = [None not in of_all for of_all in zip(*sizes)]
            dtypes = dtypes if None not in dtypes else [None] * len(dtypes)
            forms = self._forms[group, number] = {
                one: (_op(one), dtype, tuple(n for n, is_known in zip(each, known) if is_known))
                for one, each, dtype in zip(told, sizes, dtypes)
            }
        # A call that a log gives by number alone is assumed to match the others.
        return forms.get(what) or next(iter(forms.values()), (ops.UNTOLD, None, ()))

    # --- slips ----------------------------------------------------------------------------

    def _slip(self, rank: int, call: Call) -> Slip | None:
        """As a Monitor finds it, by all that dumps hold: the judge has been given the last calls alone."""
        group = self.lane(call.events[0])
        lanes = {r: lane for r in self.job.needed(group) if (lane := self.job.lanes.get(r, {}).get(group))}
        own = lanes.pop(rank, None)
        if not own or not lanes:
            return None
        other = max(lanes, key=lambda r: len(lanes[r].numbers))
        slipped = causes.slip(dict(own.calls()), dict(lanes[other].calls()), _is_same)
        if not slipped:
            return None
        by, launch = slipped
        event = Event(other if by > 0 else rank, -1 - launch.index, _op(launch.what), self.job.needed(group))
        self._note(event, launch, launch.number)
        return Slip(rank, by, event)

    def _history(self, rank: int) -> list[causes.RankCall]:
        """As a Monitor's, of all that its dump holds."""
        steps: list[causes.RankCall] = []
        for launch in self.job.dumps[rank].launches if rank in self.job.dumps else ():
            group = self.job.same[launch.group]
            about = group.name, self.job.members[group], launch.number
            if launch.number >= 0:
                steps.append(causes.RankCall(_op(launch.what), *about))
            for part in launch.what.messages if launch.number < 0 else ():
                if part.ends:
                    steps.append(causes.RankCall(part.op, *about, part.ends[part.op == "send"]))
        return steps

    def _note(self, event: Event, launch: Launch, number: int) -> None:
        self._launches[event.rank, event.index], self._numbers[event.rank, event.index] = launch, number


def _is_same(one: Launch, other: Launch) -> bool:
    return one.what == other.what and one.place == other.place and one.place is not None


def _op(what: Signature) -> str:
    """One name for all forms of a collective: the form in which all tensors have one size, if there is one."""
    if what.parts:
        return " ".join([ops.COALESCED, *map(_op, what.parts)])
    family = ops.family(what.op)
    return f"{family}_single" if family in ("all_gather", "reduce_scatter") else family


def _dtype(what: Signature) -> str | None:
    """The name of the dtype of all its parts, if they have one that is known."""
    dtypes = {part.dtypes[:1] for part in what.parts or (what,)}
    [names] = dtypes if len(dtypes) == 1 else [()]
    return names[0] if names and ops.bytes_of(names[0]) else None


def _sizes(what: Signature) -> tuple[int | None, ...]:
    """Per part, the number of elements that must be the same on all ranks; None where it may differ."""
    return tuple(map(elements, what.parts or (what,)))


def elements(what: Signature) -> int | None:
    """The number of elements that must be the same on all ranks of a collective; None where it may differ."""
    collective = of(ops.family(what.op))
    if collective.in_place:
        return _count(what.sizes or what.results)
    if "own" not in (collective.gives, collective.gets):
        return None
    own, row = (what.sizes, what.results) if collective.gives == "own" else (what.results, what.sizes)
    uneven = len(set(row)) > 1 or len(own) != 1
    return None if uneven and collective.root is None else _count(own)


def _count(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(prod, shapes))
