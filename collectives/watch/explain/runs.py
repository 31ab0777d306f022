"""Several runs of a job in one folder, separated by what a rank can't do twice, and cut at the longest silence between.

A rank ends once, and its calls on a group are numbered upward; a launcher starts before anything fails.
"""

from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Sequence

from ...judge.wording.phrases import alike
from .text import clock, listed, stamp

SLACK_SECONDS = 120.0  # after a rank's end, in which its last lines may still come
START_SECONDS = 20.0  # after a failure, beyond which a launcher's start is a new run
MARGIN_SECONDS = 300.0  # after a run's last line, in which kernels' lines are still of it
DAY = 86400.0
MOST_RUNS = 4  # that are explained, the last ones


class RunMoment(NamedTuple):
    """A line about a run.  group, number: a rank's failing call; kind: "call", "end" or "start"."""

    at: float
    kind: str
    rank: int | None = None
    group: str = ""
    number: int = -1


class RunSpan(NamedTuple):
    """The time of a run, in seconds since the epoch, and its first and last line."""

    since: float = -inf
    until: float = inf
    first: float | None = None
    last: float | None = None

    def holds(self, at: float) -> bool:
        return self.since < at <= self.until


EVER = RunSpan()


def windows(moments: Iterable[RunMoment], is_zone: Callable[[float], int]) -> list[RunSpan]:
    """The windows of the runs, in order.  is_zone: whether a distance in seconds may be one of two clocks' zones."""
    ordered = sorted(moments, key=lambda moment: moment.at)
    runs: list[list[RunMoment]] = []
    rest = ordered
    while rest:
        end = _end(rest, is_zone)
        runs.append(rest[:end])
        rest = rest[end:]
    cuts = [before[-1].at + min((after[0].at - before[-1].at) / 2, MARGIN_SECONDS) for before, after in pairwise(runs)]
    edges = [-inf, *cuts, inf]
    return [RunSpan(edges[k], edges[k + 1], run[0].at, run[-1].at) for k, run in enumerate(runs)]


def _end(moments: Sequence[RunMoment], is_zone: Callable[[float], int]) -> int:
    """The number of moments, from the first, that one run can have made."""
    ends: dict[int, int] = {}
    calls: dict[tuple, int] = {}
    failure: int | None = None
    for k, moment in enumerate(moments):
        before: int | None = None
        key = moment.rank, moment.group
        if moment.kind == "call" and key in calls and moment.number < moments[calls[key]].number:
            before = calls[key]
        elif moment.rank in ends:
            apart = moment.at - moments[ends[moment.rank]].at
            before = ends[moment.rank] if apart > SLACK_SECONDS and not is_zone(apart) else None
        elif moment.kind == "start" and failure is not None and moment.at - moments[failure].at > START_SECONDS:
            before = failure
        if before is not None:
            return max(range(before + 1, k + 1), key=lambda place: moments[place].at - moments[place - 1].at)
        if moment.kind == "call":
            calls[key] = k
        if moment.kind == "end" and moment.rank is not None:
            ends[moment.rank] = k
        if moment.kind in ("call", "end"):
            failure = k
    return len(moments)


def place(path: str, spans: dict[str, tuple[float, float]], in_order: Sequence[RunSpan]) -> RunSpan:
    """The run of a file without times: the one of the files in its folder; else the last."""
    for folder in Path(path).parents:
        inside = [span for name, span in spans.items() if folder in Path(name).parents]
        fitting = {window for window in in_order for span in inside if window.holds(span[0]) or window.holds(span[1])}
        if fitting:
            return fitting.pop() if len(fitting) == 1 else in_order[-1]
    return in_order[-1]


def is_within(span: tuple[float, float] | None, window: RunSpan) -> bool:
    """Whether all of a file is of a run."""
    return span is not None and window.holds(span[0]) and window.holds(span[1])


def headline(in_order: Sequence[RunSpan]) -> str:
    """A sentence on the runs, and on when each ended and began."""
    days = {at // DAY for window in in_order for at in (window.first, window.last) if at}
    at = [[_moment_in(edge, len(days) > 1) for edge in (window.first, window.last)] for window in in_order]
    parts = [f"until {at[0][1]}", *(f"from {first} to {last}" for first, last in at[1:])]
    note = f" The last {MOST_RUNS} are explained." if len(in_order) > MOST_RUNS else ""
    return f"These files are of {len(in_order)} runs, by their failures: {listed(parts, 6, '; ')}.{note}"


def _moment_in(at: float | None, with_day: bool) -> str:
    """'14:13:41', or '2025-11-18 14:13:41'"""
    return stamp(at)[:10] * with_day + clock(at).removeprefix(" at")[not with_day :]


def repeats(steps: Sequence[int | None], hosts: Sequence[Sequence[str]]) -> list[str]:
    """A sentence on runs that stopped after the same step.  hosts: each run's."""
    lines = []
    for step, runs in alike((k, step) for k, step in enumerate(steps) if step is not None).items():
        if len(runs) < 2:
            continue
        names = " and ".join([", ".join(str(k + 1) for k in runs[:-1]), str(runs[-1] + 1)])
        lists = [set(hosts[k]) for k in runs]
        if all(lists) and any(hosts_of != lists[0] for hosts_of in lists):
            changed = sorted(set.union(*lists) - set.intersection(*lists))
            lines.append(
                f"Runs {names} stopped after the same step, {step}, and not on the same hosts ({listed(changed)} changed): "
                "look at the data and the program of the next step, before any machine."
            )
        else:
            lines.append(
                f"Runs {names} stopped after the same step, {step}: that points at the data or the program of the next step. Run it on other "
                "hosts to be sure."
            )
    return lines
