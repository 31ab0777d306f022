"""Each rank's seconds of work, waits and moving data in each training step, and the rank the others waited for."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate, groupby
from statistics import median
from typing import Iterable, NamedTuple

from ...intervals import merge
from ...outcome.run import Run
from .spans import CallSpan, spans_of
from .step_numbers import Numbers, has_steps, number_steps


class RankStep(NamedTuple):
    """One training step of one rank, in seconds since the first call of the run.

    It begins when the rank continues after the last call of the step before, and ends when it does after its own last:
    work after its last call counts for the next step.
    """

    start: float
    end: float
    waited: float  # blocked, because others had not come yet
    moved: float  # blocked, while data moved: communication that nothing hides
    caused: float  # that other ranks waited for it, all of them together
    calls: int

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def worked(self) -> float:
        """Its own work, whatever was in flight meanwhile."""
        return max(0.0, self.seconds - self.waited - self.moved)


class TrainingStep(NamedTuple):
    number: int  # from 0, as its ranks count
    ranks: dict[int, RankStep]

    @property
    def seconds(self) -> float:
        """From when the first rank begins until the last one ends."""
        return max(share.end for share in self.ranks.values()) - min(share.start for share in self.ranks.values())

    @property
    def waited(self) -> float:
        """Seconds of all ranks together."""
        return sum(share.waited for share in self.ranks.values())

    @property
    def late(self) -> int | None:
        """The rank that the others waited for longest; None: no rank waited."""
        late = max(self.ranks, key=lambda rank: self.ranks[rank].caused)
        return late if self.ranks[late].caused else None


@dataclass
class StepPart:
    """Calls that have something in common, of all ranks, in seconds."""

    calls: int = 0
    waited: float = 0.0
    moved: float = 0.0
    caused: float = 0.0  # by rank only


class StepTimes(list[TrainingStep]):
    """The steps that have ended, in order; see TrainingStep.

    counted: whether its ranks counted their steps, else they are the repetitions of a pattern of calls.
    outside: the number of events outside all of them.
    """

    def __init__(self, run: Run) -> None:
        calls = run.calls
        if not calls:
            raise ValueError(f"{run.name} made no calls: its steps cannot be told apart.")
        self.run, self.spans, self.counted = run, spans_of(run, calls), has_steps(run.events)
        numbers = number_steps(run.events, calls)
        ended = _ended_steps(run, numbers, self.counted)
        by_rank = _by_rank(run, self.spans)
        steps: dict[int, dict[int, RankStep]] = defaultdict(dict)
        caused = _Causes(by_rank)
        for rank, spans in enumerate(by_rank):
            for number, step in _steps(spans, numbers[rank]):
                if number in ended:
                    steps[number][rank] = step
        super().__init__(TrainingStep(number, caused.of(ranks)) for number, ranks in sorted(steps.items()))
        self.outside = sum(number not in ended for mine in numbers for number in mine)
        self._numbers = {
            id(e): n if n in ended else None for mine, told in zip(run.events, numbers) for e, n in zip(mine, told)
        }

    def in_steps(self) -> Iterable[CallSpan]:
        """The calls that belong to a step."""
        return (span for span in self.spans if self._numbers[id(span.event)] is not None)

    def by(self, what: str) -> dict:
        """All steps' sums by "rank", "group", "line" or "op", the parts that blocked longest first.

        Calls that a rank waits for together each count in full; by rank, the time that passed counts.
        Its keys are ranks, tuples of ranks, Lines (None: not known) and names of calls. Raises ValueError for another word.
        """
        keys = {
            "rank": lambda e: e.rank, "group": lambda e: tuple(sorted(e.group)), "line": lambda e: e.line, "op": lambda e: e.op
        }  # fmt: skip
        if what not in keys:
            raise ValueError(f"steps are added up by {', '.join(keys)}, not by {what!r}.")
        parts: dict = defaultdict(StepPart)
        if what == "rank":
            for step in self:
                for rank, each in step.ranks.items():
                    part = parts[rank]
                    part.calls, part.waited = part.calls + each.calls, part.waited + each.waited
                    part.moved, part.caused = part.moved + each.moved, part.caused + each.caused
            return dict(sorted(parts.items()))
        for span in self.in_steps():
            part = parts[keys[what](span.event)]
            part.calls += 1
            part.waited += span.waits
            part.moved += span.end - span.blocked - span.waits
        return dict(sorted(parts.items(), key=lambda item: -item[1].waited - item[1].moved))

    @property
    def seconds(self) -> float:
        """The median time of a step."""
        return median(step.seconds for step in self)


# --- how a rank spent a step --------------------------------------------------------------


def _ended_steps(run: Run, numbers: Numbers, counted: bool) -> set[int]:
    """The steps that every rank has ended.

    A counted step has ended once its rank makes a call of the next. The last counts as ended if every rank made all the
    calls that it made in the step before, and is in none of them.
    """
    made = [Counter(number for number in mine if number is not None) for mine in numbers if mine]
    open_ = {n for mine, events in zip(numbers, run.events) for n, e in zip(mine, events) if e.end is None}
    last = min((max(counts) for counts in made if counts), default=-1)
    if counted and (last in open_ or any(counts[last] != counts.get(last - 1) for counts in made if last in counts)):
        last -= 1
    return {number for counts in made for number in counts if number <= last}


def _by_rank(run: Run, spans: list[CallSpan]) -> list[list[CallSpan]]:
    """The spans of each rank, as its events."""
    of = {id(span.event): span for span in spans}
    return [[of[id(e)] for e in mine] for mine in run.events]


def _steps(spans: list[CallSpan], numbers: list[int | None]) -> Iterable[tuple[int | None, RankStep]]:
    """One rank's consecutive calls of one step as a RankStep each, `caused` still 0."""
    blocked = Coverage((span.blocked, span.end) for span in spans)
    waits = Coverage((span.blocked, span.met) for span in spans)
    over = min((span.start for span in spans), default=0.0)
    for number, group in groupby(zip(numbers, spans), lambda pair: pair[0]):
        mine = [span for _, span in group]
        start, over = over, max(over, *(span.end if span.blocked < span.end else span.start for span in mine))
        waited = waits.within(start, over)
        yield number, RankStep(start, over, waited, blocked.within(start, over) - waited, 0.0, len(mine))


class Coverage:
    """Intervals of time; `within` returns the seconds of a given interval that they cover."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        apart = merge(intervals)
        self._starts, self._ends = [start for start, _ in apart], [end for _, end in apart]
        self._before = [0.0, *accumulate(end - start for start, end in apart)]

    def within(self, start: float, end: float) -> float:
        return self._until(end) - self._until(start)

    def _until(self, at: float) -> float:
        k = bisect_right(self._starts, at)
        return self._before[k] - (max(0.0, self._ends[k - 1] - at) if k else 0.0)


class _Causes:
    """The ranks that made others wait. One that was late because it waited passes this on to the rank it waited for."""

    def __init__(self, by_rank: list[list[CallSpan]]) -> None:
        self._waits = [_split(spans) for spans in by_rank]  # of each rank: (start, end, for which rank), in order
        self._starts = [[start for start, _, _ in waits] for waits in self._waits]
        self._ends = [[end for _, end, _ in waits] for waits in self._waits]

    def of(self, ranks: dict[int, RankStep]) -> dict[int, RankStep]:
        """The step with `caused` filled in for its ranks."""
        caused: dict[int, float] = defaultdict(float)
        for rank, step in ranks.items():
            for start, end, late in self._between(rank, step.start, step.end):
                self._blame(late, start, end, caused, {rank})
        return {rank: step._replace(caused=caused[rank]) for rank, step in ranks.items()}

    def _blame(self, late: int, start: float, end: float, caused: dict[int, float], waiting: set[int]) -> None:
        """Attribute a wait to the late rank; the part in which it was itself waiting, to the rank that it waited for.

        waiting: the ranks that wait, one for the other.
        """
        at = start
        for begin, until, other in self._between(late, start, end):
            if other not in waiting:
                caused[late] += begin - at
                self._blame(other, begin, until, caused, waiting | {late})
                at = until
        caused[late] += end - at

    def _between(self, rank: int, start: float, end: float) -> Iterable[tuple[float, float, int]]:
        """A rank's waits within a stretch of time."""
        waits = self._waits[rank]
        for k in range(bisect_right(self._ends[rank], start), bisect_left(self._starts[rank], end)):
            yield max(start, waits[k][0]), min(end, waits[k][1]), waits[k][2]


def _split(spans: list[CallSpan]) -> list[tuple[float, float, int]]:
    """Waits (start, end, for whom) without overlap: calls that are waited for together are met one after the other."""
    apart, over = [], float("-inf")
    for start, end, late in sorted((s.blocked, s.met, s.late) for s in spans if s.late is not None):
        if end > over:
            apart.append((max(start, over), end, late))
            over = end
    return apart
