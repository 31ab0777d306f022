"""A run as a trace file, for ui.perfetto.dev and chrome://tracing, alone or merged with traces of torch.profiler.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Each rank is a process. A
call the rank was blocked in is a slice ("X") of a thread; a call in flight meanwhile, an asynchronous slice ("b", "e").
Slices of one thread are nested or apart, so several threads of the program, or calls that are waited for together,
have several threads here.
"""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Iterator, NamedTuple

from ...format import size
from ...log.calls import Call
from ...log.event import Event
from ...outcome.run import Run
from .spans import CallSpan, limits

# A process has this number and its rank's: Linux numbers no process as high, and torch.profiler none of its GPUs.
FIRST_PROCESS = 10_000_000
PROCESSES = 1000  # of another trace, at most
FLOWS = 100_000_000  # arrows of a trace, at most
MARK = 1000  # nanoseconds that the start of an asynchronous call takes in the file: the real time is unknown


class _Slice(NamedTuple):
    """Times in nanoseconds."""

    name: str
    start: int
    end: int
    args: dict
    event: int  # id(event)


def save(path: Path, run: Run, calls: list[Call], spans: list[CallSpan], beside: list[Path]) -> None:
    """Write the file, compressed if its name ends in .gz. beside: traces of torch.profiler to be merged into it.

    Raises ValueError if one of these isn't a trace, or if the run does not know when it began.
    """
    if beside and not run.began:
        raise ValueError(f"{run.name} does not say when it began, so it cannot be aligned with other traces.")
    others = [_read_trace(Path(each)) for each in beside]
    base = int(others[0].get("baseTimeNanoseconds", 0)) if others else int(run.began) * 1_000_000_000
    first = round((run.began + limits(run)[0]) * 1e9) - base if run.began else 0
    events = [*_events(run, calls, spans, first)]
    for place, other in enumerate(others):
        rank = other.get("distributedInfo", {}).get("rank")
        events += _move_events(other, place, rank, run.world_size, int(other.get("baseTimeNanoseconds", 0)) - base)
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": base}
    text = json.dumps(whole, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _events(run: Run, calls: list[Call], spans: list[CallSpan], first: int) -> Iterator[dict]:
    """first: the nanosecond of the file at which the run's first call was made."""
    hosts = getattr(run, "hosts", None)
    slices: list[list[list[_Slice]]] = [[] for _ in range(run.world_size)]
    for span in spans:
        slices[span.event.rank] += _slices(span, first)
        if span.event.async_op:
            yield from _flight(span, first)
    at: dict[int, list[dict]] = defaultdict(list)  # id(event) -> where its slices are
    for rank, mine in enumerate(slices):
        host = f" on {hosts[rank]}" if hosts and hosts[rank] else ""
        yield _metadata(rank, "process_name", name=f"rank {rank}, {run.name}{host}")
        yield _metadata(rank, "process_sort_index", sort_index=rank * PROCESSES)
        threads = 0
        for each, thread in _threads(mine):
            where = {"pid": FIRST_PROCESS + rank, "tid": thread}
            at[each.event].append(where)
            times = {"ts": each.start / 1000, "dur": (each.end - each.start) / 1000}
            yield {"ph": "X", "name": each.name, "cat": "call", **where, **times, "args": each.args}
            threads = max(threads, thread + 1)
        for thread in range(threads):
            yield _metadata(rank, "thread_name", thread, name="calls" if thread == 0 else f"at the same time, {thread}")
    yield from _flows(calls, {id(span.event): span for span in spans}, at, first)


def _metadata(rank: int, what: str, thread: int = 0, **args) -> dict:
    return {"ph": "M", "name": what, "pid": FIRST_PROCESS + rank, "tid": thread, "args": args}


def _slices(span: CallSpan, first: int) -> Iterator[list[_Slice]]:
    """The slices of one call, in lists for one thread each: all but the first are nested in the first."""
    e, name = span.event, span.name
    start, blocked, met, end = (first + round(t * 1e9) for t in (span.start, span.blocked, span.met, span.end))
    told = _event_args(e)
    if e.async_op:
        yield [_Slice(f"start {name}", start, start + MARK, told, id(e))]
    if blocked < end or not e.async_op:
        inside = [] if span.late is None else [_Slice(f"rank {span.late} has not come", blocked, met, {}, id(e))]
        if inside and met < end:
            inside.append(_Slice("all have come", met, end, {}, id(e)))
        yield [_Slice(f"wait for {name}" if e.async_op else name, blocked, end, told, id(e)), *inside]


def _event_args(e: Event) -> dict:
    """A call's details, which a viewer shows when it is clicked."""
    told = {"call": e.index + 1, "step": e.step, "size": size(e.nbytes), "line": str(e.line), "ranks": len(e.group)}
    told |= {"issued": True} if e.issued is not None else {}
    return told | {k: v for k, v in (("src", e.src), ("dst", e.dst), ("reduce_op", e.reduce_op)) if v is not None}


def _flight(span: CallSpan, first: int) -> Iterator[dict]:
    """A call from its start until it was complete, whatever its rank did meanwhile.

    Perfetto gives each name a lane, so the call's number is not in it; "id2" is local to a process, "id" would not be.
    """
    e = span.event
    where = {"id2": {"local": hex(e.index)}, "pid": FIRST_PROCESS + e.rank, "tid": 0}
    same = {"cat": "in flight", "name": f"{e.op} in flight", **where}
    start, end = first + round(span.start * 1e9), first + round(span.end * 1e9)
    yield {"ph": "b", **same, "ts": start / 1000, "args": _event_args(e)}
    yield {"ph": "e", **same, "ts": end / 1000}


def _threads(slices: list[list[_Slice]]) -> Iterator[tuple[_Slice, int]]:
    """Each slice with its thread: the first that is free when it begins."""
    until: list[int] = []  # of each thread: when it is free
    for piece in sorted(slices, key=lambda piece: (piece[0].start, -piece[0].end)):
        start, end = piece[0].start, piece[0].end
        thread = next((number for number, free in enumerate(until) if free <= start), len(until))
        until[thread : thread + 1] = [end]
        for one in piece:
            yield one, thread


# --- arrows -------------------------------------------------------------------------------


def _flows(calls: list[Call], of: dict[int, CallSpan], at: dict[int, list[dict]], first: int) -> Iterator[dict]:
    """From each send to its recv, and in collectives from the rank that came last to the ranks that it kept waiting.

    Perfetto takes only numbers as identifiers, and turns an arrow around that begins in the later one of its two slices.
    """
    number = 0
    for call in calls:
        if call.is_message and len(call.events) == 2 and call.events[1].end is not None:
            arrows = [("message", call.events[0], call.events[1])]
        elif not call.is_message:
            by_rank = {e.rank: e for e in call}
            kept = [e for e in call if of[id(e)].late in by_rank]
            arrows = [("kept waiting", by_rank[of[id(e)].late], e) for e in kept]
        else:
            continue
        for name, source, target in arrows:
            flow = {"id": number, "name": name, "cat": name}
            begin, until = of[id(source)].start, of[id(target)]
            arrives = until.met if until.blocked < until.end else until.start
            if arrives < begin:  # it came meanwhile, and no slice began after that
                continue
            number += 1
            yield {"ph": "s", **flow, **at[id(source)][0], "ts": (first + round(begin * 1e9)) / 1000}
            yield {"ph": "f", **flow, **at[id(target)][-1], "ts": (first + round(arrives * 1e9)) / 1000, "bp": "e"}


# --- other traces -------------------------------------------------------------------------


def _read_trace(path: Path) -> dict:
    data = path.read_bytes()
    try:
        found = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        if isinstance(found["traceEvents"], list):
            return found
    except (ValueError, KeyError, TypeError, EOFError, OSError):
        pass
    raise ValueError(f"{path} is not a trace of torch.profiler: it is not JSON with traceEvents.")


def _move_events(trace: dict, place: int, rank: int | None, world_size: int, nanoseconds: int) -> Iterator[dict]:
    """The events of another trace, `nanoseconds` later, with processes and identifiers that no other trace has.

    Its processes come after the rank's own if it names its rank, or after all ranks.
    """
    processes: dict = {}
    numbers: dict = {}
    whose = "" if rank is None else f"rank {rank}, "
    first = (world_size + place if rank is None else rank) * PROCESSES + 1
    for event in trace["traceEvents"]:
        moved = dict(event)
        if "ts" in moved:
            moved["ts"] = moved["ts"] + nanoseconds / 1000
        if (pid := moved.get("pid")) is not None:
            is_new, known = pid not in processes, processes.setdefault(pid, len(processes))
            moved["pid"] = number = 2 * FIRST_PROCESS + PROCESSES * place + known
            if is_new and isinstance(pid, str) and pid:  # which was its name
                yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": whose + pid}}
            if moved.get("name") == "process_sort_index":
                moved["args"] = {"sort_index": first + known}
            elif moved.get("name") == "process_name":
                moved["args"] = {"name": f"{whose}{moved['args']['name']}"}
        if "id" in moved:  # a number, as Perfetto wants it of an arrow
            moved["id"] = FLOWS * (place + 1) + numbers.setdefault(moved["id"], len(numbers))
        yield moved
