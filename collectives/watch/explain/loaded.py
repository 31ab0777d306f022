"""Other tools' records as a Run, like one of our own records."""

from math import prod
from pathlib import Path
from typing import Iterable

import torch

from ...log import backends
from ...log.event import Event, Line, Summary, Value
from ..record import Record
from ..totals import Total, Totals
from . import traces, words
from .dump import Launch, Signature
from .evidence import gather
from .judged import Judged
from .dumped_job import DumpedJob, LaneKey


def load(*paths: str | Path) -> Record:
    """The calls in dumps, as a Run; its `.verdict` names the ranks that hold others up.

    Times are in seconds since the first call. A call whose end is not recorded ends when it began, and one that never
    ended has none. It has no values, roots, reduce ops or tags, since no dump has them.
    Raises FileNotFoundError, or ValueError for paths that hold no calls.
    """
    found = gather(paths)
    if not found.dumps and found.traces:
        return of_traces(found.traces, "\n".join([*traces.words(found.traces), *found.said]), str(paths[0]))
    if not found.dumps:
        raise ValueError("\n".join([f"no dump and no trace is under {', '.join(map(str, paths))}.", *found.said]))
    job = found.job
    verdict = "\n".join([words.explained(Judged(job), found.watchdog.failures()), *words.limits(job), *found.overlaps, *found.said])
    return of_job(job, verdict, str(paths[0]))


def of_job(job: DumpedJob, verdict: str, name: str) -> Record:
    """The Run of dumps that are put together."""
    first = min((min(dump.launches.made) for dump in job.dumps.values() if dump.launches), default=0)
    begin = _begin(job)
    events: list[list[Event]] = [[] for _ in range(job.world_size)]
    dropped = 0
    for rank, dump in job.dumps.items():
        numbered = _numbered(job, rank)
        index = dump.dropped
        for launch in dump.launches:
            lanes = numbered[launch.index]
            kept = [part for lane, number, part in lanes if number >= begin[lane]]
            open_ = launch.over is False or any(number == job.open[rank].get(lane) for lane, number, _ in lanes)
            events[rank] += _events(rank, index, launch, kept, job, open_, first)
            dropped += len(lanes) - len(kept)
            index += len(lanes)
        dropped += dump.dropped
    knows_blocked = all(backends.of(dump.backend).blocks for dump in job.dumps.values())
    return _record(events, name, verdict, knows_blocked, dropped)


def of_traces(found: list[traces.Trace], verdict: str, name: str) -> Record:
    """The Run of traces: each collective with its group, size and duration, where recorded."""
    n = max(max(trace.world_size for trace in found), 1 + max(trace.rank for trace in found))
    first = min(span.start for trace in found for span in trace.spans)
    events: list[list[Event]] = [[] for _ in range(n)]
    for trace in found:
        for index, span in enumerate(trace.spans):
            dtype = getattr(torch, span.dtype, None) if span.dtype else None
            known = dtype is not None and span.into is not None
            shape = (span.into,) if known else ()
            value = _value((shape,), dtype) if known else None
            start, end = span.start - first, span.end - first
            events[trace.rank].append(
                Event(
                    trace.rank, index, span.op, span.ranks or tuple(range(n)), dtype=dtype, shape=shape,
                    nbytes=span.into * dtype.itemsize if known else 0, before=value, after=value, start=start, end=end,
                    async_op=True, waited=True, group_name=span.group, backend=trace.backend, step=trace.step(span.start),
                    waiting=trace.exposed_since(span) - first if trace.busy else None,
                )
            )  # fmt: skip
    return _record(events, name, verdict, all(trace.busy for trace in found))


def _record(events: list[list[Event]], name: str, verdict: str, knows_blocked: bool, dropped: int = 0) -> Record:
    n = len(events)
    return Record(
        world_size=n, events=events, name=Path(name).name, results=[None] * n, stdout=[""] * n, sent=[None] * n, received=[None] * n,
        seconds=max((e.end or e.start for mine in events for e in mine), default=0.0), hosts=[""] * n, totals=_totals(events),
        verdict=verdict, dropped=dropped, about={"script": name, "world_size": n}, knows_blocked=knows_blocked,
    )  # fmt: skip


def _begin(job: DumpedJob) -> dict[LaneKey, int]:
    """Per lane, the first number from which the dumps of all its ranks cover it."""
    begin: dict[LaneKey, int] = {}
    for lanes in job.lanes.values():
        for key, lane in lanes.items():
            begin[key] = max(begin.get(key, lane.numbers[0]), lane.numbers[0])
    return begin


def _numbered(job: DumpedJob, rank: int) -> dict[int, list[tuple[LaneKey, int, Signature]]]:
    """By a launch's index: the lane of each of its parts, and its number there."""
    numbered: dict[int, list[tuple[LaneKey, int, Signature]]] = {
        launch.index: [] for launch in job.dumps[rank].launches
    }
    for key, lane in job.lanes[rank].items():
        for number, launch in lane.calls():
            parts = launch.what.parts or (launch.what,)
            mine = (part for part in parts if type(key) is not tuple or part.ends == key[1:])
            numbered[launch.index] += [(key, number, part) for part in mine]
    return numbered


def _events(
    rank: int, index: int, launch: Launch, parts: Iterable[Signature], job: DumpedJob, open_: bool, first: int
) -> Iterable[Event]:
    start = (launch.made - first) / 1e9
    end = None if open_ else start if launch.ended is None else (launch.ended - first) / 1e9
    place = launch.place and Line(launch.place.file, launch.place.number, launch.place.function)
    members = next((job.members[group] for group in job.members if group == launch.group), None)
    group = members or next(m for g, m in job.members.items() if g.name == launch.group.name)
    for k, part in enumerate(parts):
        dtype = getattr(torch, part.dtypes[0], None) if part.dtypes else None
        src, dst = (
            (None, None) if not part.ends else (part.ends[0], None) if part.op == "recv" else (None, part.ends[1])
        )
        shapes = part.sizes or part.results
        before = _value(part.sizes, dtype) if part.op != "recv" else None
        after = _value(part.results, dtype) if end is not None and part.op != "send" else None
        yield Event(
            rank, index + k, part.op, group, src=src, dst=dst, dtype=dtype, shape=shapes[0] if shapes else (),
            nbytes=sum(map(prod, shapes)) * (dtype.itemsize if dtype else 0), before=before, after=after, line=place,
            start=start, end=end, async_op=not backends.of(job.dumps[rank].backend).blocks, waited=end is not None,
            group_name=launch.group.name,
        )  # fmt: skip


def _value(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype | None) -> Value:
    if not shapes or dtype is None:
        return None
    values = [Summary(shape, dtype, prod(shape) * dtype.itemsize, 0, (), ()) for shape in shapes]
    return values[0] if len(values) == 1 else values


def _totals(events: list[list[Event]]) -> Totals:
    totals = Totals()
    for e in (e for each in events for e in each):
        kind = e.op, len(e.group), "" if e.dtype is None else str(e.dtype).removeprefix("torch.")
        total = totals.setdefault(kind, Total())
        total.calls += 1
        total.nbytes += e.nbytes
        total.seconds += 0.0 if e.end is None else e.end - e.start
    return totals
