"""Training steps in words, no longer than a screen, and the share of a machine's bandwidth that their calls reached."""

from collections import Counter, defaultdict
from statistics import median
from typing import TYPE_CHECKING, Iterable, NamedTuple

import numpy as np

from ...cost.bill import whole_buffer
from ...cost.tuner import nccl
from ...format import align, duration, size, span
from ...log.calls import Call
from ...log.collectives import least
from ...log.event import Line
from .spans import CallSpan
from .step_times import StepTimes, TrainingStep

if TYPE_CHECKING:
    from ...machines.topology import Machine

ROWS = 8  # of ranks, at most
SLOWEST = LINES = 5
MAX_ROWS = 40  # rows of a table that is asked for
PLACE = 84  # characters of a line
OFTEN = 0.5  # of the waits, from which a rank holds up others
LARGE_SHARE = 0.05  # of the ranks' time, that is waited in all


def table(steps: StepTimes) -> str:
    """A summary, the ranks, the slowest steps and the lines that blocked longest."""
    run = steps.run
    head = f"{run.name}, {run.world_size} rank{'s' * (run.world_size != 1)}: "
    if not steps:
        return head + "no training step is marked, and no pattern of calls repeats."
    parts = [head + _summary(steps), _ranks(steps)]
    if len(steps) > 1:
        parts.append(_slowest(steps))
    parts.append(_lines(steps))
    return "\n\n".join(parts)


def _summary(steps: StepTimes) -> str:
    count, first, last = len(steps), steps[0].number, steps[-1].number
    how = "" if steps.counted else ", as calls repeat"
    told = f"{count:,} training step{'s' * (count > 1)} ({first:,} to {last:,}{how})"
    times = [step.seconds for step in steps]
    lines = [f"{told}, {duration(steps.seconds)} each (median; {duration(min(times))} to {duration(max(times))})."]
    lines.append(straggler(steps))
    if getattr(steps.run, "dropped", 0):
        lines.append(f"{steps.run.dropped:,} calls before these are not in the record: watch --last N keeps more.")
    if steps.outside:
        lines.append(f"{steps.outside:,} calls belong to no step that has ended.")
    return "\n".join(lines)


def usual(steps: StepTimes) -> list[TrainingStep]:
    """The steps that averages are about: all but the first of a job, in which its ranks start at different times."""
    return steps[1:] if _after(steps) else list(steps)


def _after(steps: StepTimes) -> str:
    return " after the first" if len(steps) > 2 and steps[0].number == 0 and steps.counted else ""


def straggler(steps: StepTimes) -> str:
    """A sentence on the rank that held the others up."""
    told = usual(steps)
    caused: dict[int, float] = defaultdict(float)
    for step in told:
        for rank, each in step.ranks.items():
            caused[rank] += each.caused
    waited = sum(step.waited for step in told)
    spent = sum(share.seconds for step in told for share in step.ranks.values())
    if not getattr(steps.run, "knows_blocked", True):
        return (
            "Who held up whom isn't known: these files do not say when a rank was blocked.\n"
            "Waiting and moving data count as work."
        )
    if waited < LARGE_SHARE * spent:
        return f"The ranks hardly waited for one another: {waited / spent if spent else 0:.1%} of their time."
    worst = max(caused, key=caused.__getitem__)
    share = f"{waited / spent:.0%} of their time"
    if caused[worst] < OFTEN * waited:
        return f"The ranks waited {share} for one another, and no one rank caused most of it."
    times = sum(step.late == worst for step in told)
    where = "in the step" if len(steps) == 1 else f"and most in {times:,} of {len(told):,} steps{_after(steps)}"
    return (
        f"Rank {worst} held up the others: of {_time(waited)} that ranks waited ({share}),\n"
        f"{_time(caused[worst])} were for it, {where}."
    )


def _ranks(steps: StepTimes) -> str:
    """A row for each rank, per step; of many, the ranks that caused and waited most."""
    told = usual(steps)
    ranks = {rank: part for rank, part in steps.by("rank").items() if any(rank in step.ranks for step in told)}
    rows = [("rank", "step", "worked", "waited", "moved", "others waited for it", "calls")]
    shown = sorted(ranks)
    if len(ranks) > ROWS:
        by_cause = sorted(ranks, key=lambda rank: -ranks[rank].caused)
        shown = sorted({*by_cause[: ROWS // 2], *sorted(ranks, key=lambda rank: -ranks[rank].waited)[: ROWS // 2]})
    for rank in shown:
        mine = [step.ranks[rank] for step in told if rank in step.ranks]
        means = [
            sum(getattr(each, name) for each in mine) / len(mine)
            for name in ("seconds", "worked", "waited", "moved", "caused")
        ]
        rows.append((str(rank), *map(duration, means), f"{sum(each.calls for each in mine) / len(mine):,.4g}"))
    rest = f"\n  and {len(ranks) - len(shown):,} more ranks" if len(shown) < len(ranks) else ""
    return f"by rank, an average step{_after(steps)}\n{align(rows, range(7), indent='  ')}{rest}"


def _slowest(steps: StepTimes) -> str:
    usual = Counter(sum(share.calls for share in step.ranks.values()) for step in steps).most_common(1)[0][0]
    rows = [("step", "took", "all ranks waited", "for", "that rank worked", "")]
    for step in sorted(steps, key=lambda step: -step.seconds)[:SLOWEST]:
        rows.append(
            (f"{step.number:,}", duration(step.seconds), duration(step.waited), *_late_cells(step), _calls(step, usual))
        )
    return f"slowest steps\n{align(rows, (0, 1, 2, 4), indent='  ')}"


def _late_cells(step: TrainingStep) -> tuple[str, str]:
    return ("-", "-") if step.late is None else (f"rank {step.late}", duration(step.ranks[step.late].worked))


def _calls(step: TrainingStep, usual: int) -> str:
    made = sum(share.calls for share in step.ranks.values())
    return "" if made == usual else f"{made:,} calls, usually {usual:,}"


def _lines(steps: StepTimes) -> str:
    parts = steps.by("line")
    rows = [("waited", "moved", "calls", "line")]
    for line, part in list(parts.items())[:LINES]:
        rows.append((_time(part.waited), _time(part.moved), f"{part.calls:,}", _place(line)))
    rest = f"\n  and {len(parts) - LINES:,} more lines" if len(parts) > LINES else ""
    return f"by line, all steps and ranks\n{align(rows, (0, 1, 2), indent='  ')}{rest}"


def step_table(steps: StepTimes, what: str) -> str:
    """The table of time blocked in each "group", "line" or "op", over all steps and ranks."""
    say = {"line": _place, "group": lambda ranks: f"ranks {span(ranks)}"}.get(what, str)
    rows = [("waited", "moved", "calls", what)]
    for key, part in list(steps.by(what).items())[:MAX_ROWS]:
        rows.append((_time(part.waited), _time(part.moved), f"{part.calls:,}", say(key)))
    return align(rows, (0, 1, 2))


def _time(seconds: float) -> str:
    return duration(seconds) if seconds < 1000 else f"{seconds:,.0f} s"


def _place(line: Line | None) -> str:
    words = "not known" if line is None else f"{line}:  {line.text}" if line.text else str(line)
    return words if len(words) <= PLACE else f"{words[: PLACE - 4]} ..."


# --- bus bandwidth ------------------------------------------------------------------------


class Kind(NamedTuple):
    """Calls that carry as much over as many ranks in the steps of a run."""

    op: str
    ranks: int  # of the group
    nbytes: float  # S, the whole buffer
    calls: int
    waited: float  # seconds, of all ranks
    moved: float
    seconds: float | None  # from when the last rank came until the first was through, the median; None: not known
    busbw: float | None  # bytes/s
    model: float | None  # seconds that NCCL takes on the machine


class Kinds(list[Kind]):
    """Kinds of calls, the longest blocked first. machine: to compare them with, or None."""

    def __init__(self, kinds: Iterable[Kind], machine: "Machine | None") -> None:
        super().__init__(kinds)
        self.machine = machine

    def __repr__(self) -> str:
        rows = [("op", "ranks", "S", "calls", "waited", "moved", "a call", "busbw, GB/s", "model", "reached")]
        for kind in self[:ROWS]:
            speed = [f"{kind.busbw / 1e9:.3g}"] if kind.busbw else ["-"]
            took = "-" if kind.seconds is None else duration(kind.seconds)
            if kind.model:
                speed += [duration(kind.model), f"{kind.model / kind.seconds:.0%}" if kind.seconds else "-"]
            times = _time(kind.waited), _time(kind.moved), took
            rows.append((kind.op, f"{kind.ranks:,}", size(kind.nbytes), f"{kind.calls:,}", *times, *speed))
        if self.machine is None:
            rows[0] = rows[0][:-2]
        more = f"\n... and {len(self) - ROWS:,} more kinds" if len(self) > ROWS else ""
        model = "" if self.machine is None else f"\nmodel: NCCL on {self.machine.name}"
        return align(rows, range(1, 10)) + more + model


def kinds(steps: StepTimes, machine: "Machine | None" = None) -> Kinds:
    """The kinds of calls in the steps, each with its blocked time and bus bandwidth.

    A call's time runs from its last rank's arrival to its first rank's end; if no rank was blocked in it at the end,
    it is unknown.  machine: NCCL's time on it is added for comparison; rank r is its GPU r.
    """
    of = {id(span.event): span for span in steps.in_steps()}
    found: dict[tuple, list[list[CallSpan]]] = defaultdict(list)
    places: dict[tuple, tuple[int, ...]] = {}  # of each kind, the ranks of its first call
    for call in steps.run.calls:
        spans = [of[id(e)] for e in call if id(e) in of]
        if spans and call.is_complete:
            op, nbytes = _model_cells(call)
            ranks = tuple(call.events[0].ends) if call.is_message else call.group
            kind = "send" if call.is_message else call.op, op, nbytes, len(ranks)
            found[kind].append(spans)
            places.setdefault(kind, ranks)
    rows = [_kind(*kind, calls, machine, places[kind]) for kind, calls in found.items()]
    return Kinds(sorted(rows, key=lambda kind: -kind.waited - kind.moved), machine)


def _kind(op: str, priced: str, nbytes: float, n: int, calls: list[list[CallSpan]], machine, ranks) -> Kind:
    """priced: NCCL's name of the op; none where there is no price."""
    times = [took for spans in calls if (took := _took(spans)) is not None]
    seconds = median(times) if times else None
    share = 0.0 if n == 1 or not priced else 1.0 if op == "send" else least(priced, n)
    busbw = share * nbytes / seconds if seconds and share else None
    model = nccl(priced, machine, np.array(ranks))(nbytes).seconds if machine is not None and share else None
    waited = sum(span.waits for spans in calls for span in spans)
    moved = sum(span.end - span.blocked - span.waits for spans in calls for span in spans)
    return Kind(op, n, nbytes, len(calls), waited, moved, seconds, busbw, model)


def _model_cells(call: Call) -> tuple[str, float]:
    """NCCL's name of a call and its whole buffer; no name where there is no price."""
    try:
        return whole_buffer(call)
    except ValueError:
        return "", float(max(e.nbytes for e in call))


def _took(spans: list[CallSpan]) -> float | None:
    met = max(span.start for span in spans)
    ends = [span.end for span in spans if span.blocked < span.end and span.event.end is not None]
    return max(min(ends) - met, 0.0) or None if ends else None
