"""Traces of torch.profiler (Kineto's JSON): the collectives of each rank, their durations and concurrent kernels.

A collective is an NCCL kernel, or gloo's work on its own thread. Since torch 2.4 a kernel carries its collective,
elements, dtype and group ("Collective name", "In msg nelems", ...); in older traces it is found by the launch that
it correlates with, inside of the annotation "nccl:all_reduce" of that thread.
"""

import ast
import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from statistics import median
from typing import Any, NamedTuple

from ...format import align, duration, name_ranks, size
from ...intervals import covered, merge
from ...judge.wording.phrases import alike
from ...log.backends import GLOO, NCCL, Backend
from ...log.collectives import least, of
from . import ops
from .plain import Unusable

# The part of a GPU's name -> the machine of machines.csv that it is compared with.
MACHINES = {
    "GB300": "GB300, racks of 64",
    "GB200": "GB200 NVL72",
    "B300": "HGX B300, RoCE",
    "B200": "HGX B200, EFA",
    "H200": "HGX H200, RoCE",
    "H100": "DGX H100",
    "A100": "DGX A100",
}
OFTEN = 0.5  # of the calls, in which a rank that holds up others comes last
MUCH = 0.05  # of their time, which the others wait for it
KERNEL_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast", "reduce": "reduce"}  # fmt: skip


class Span(NamedTuple):
    """One collective of one rank. into, out: elements; None where the trace lacks them. Times in seconds."""

    op: str
    dtype: str
    into: int | None
    out: int | None
    group: str
    ranks: tuple[int, ...] | None
    stream: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class Trace:
    rank: int
    path: str
    world_size: int
    gpu: str  # its name; "" for a trace without one
    backend: str  # "nccl" or "gloo"
    spans: list[Span]
    busy: list[tuple[float, float]]  # when other kernels ran
    unknown: list[str] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)  # when each "ProfilerStep#N" began, and N

    def step(self, at: float) -> int:
        """The number of the step in progress at that time; 0 before the first, and in a trace without steps."""
        place = bisect_right(self.steps, (at, float("inf")))
        return self.steps[place - 1][1] if place else 0

    def exposed_since(self, span: Span) -> float:
        """The time from which no other kernel runs until a collective's end."""
        place = bisect_right(self.busy, (span.end, span.end)) - 1
        return span.start if place < 0 else min(span.end, max(span.start, self.busy[place][1]))

    @property
    def seconds(self) -> float:
        times = [t for span in self.spans for t in (span.start, span.end)] + [t for pair in self.busy for t in pair]
        return max(times, default=0.0) - min(times, default=0.0)

    @property
    def moving(self) -> float:
        """Seconds with a collective in flight."""
        return covered((span.start, span.end) for span in self.spans)

    @property
    def exposed(self) -> float:
        """Seconds of collectives beside which no kernel ran."""
        return covered([*((span.start, span.end) for span in self.spans), *self.busy]) - covered(self.busy)


def is_trace(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("traceEvents"), list)


def read(data: dict, path: str) -> Trace:
    """A trace. Raises Unusable."""
    about = data.get("distributedInfo") or {}
    found = re.search(r"rank[-_]?(\d+)", path.rpartition("/")[2])
    rank = about.get("rank", int(found[1]) if found else None)
    try:
        return _read(data, path, about, 0 if rank is None else int(rank), rank is None)
    except (KeyError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise Unusable(f"is not a complete trace of torch.profiler: {type(error).__name__}: {error}") from error


def _read(data: dict, path: str, about: dict, rank: int, guessed: bool) -> Trace:
    complete = [e for e in data["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X" and "dur" in e]
    kernels = [e for e in complete if e.get("cat") == "kernel"]
    spoken = [e for e in kernels if NCCL.kernels in e["name"].lower()]
    busy = merge(_when(e) for e in kernels if NCCL.kernels not in e["name"].lower())
    groups = {g["pg_name"]: tuple(g["ranks"]) for g in about.get("pg_config", ()) if g.get("ranks")}
    unknown = ["of which rank it is: taken as rank 0"] if guessed else []
    if spoken:
        annotations = _annotations(complete)
        launched = (e for e in complete if e.get("cat") == "cuda_runtime" and "correlation" in e.get("args", {}))
        launches = {e["args"]["correlation"]: e for e in launched}
        spans = [_of_kernel(e, annotations, launches, groups) for e in spoken]
        if any(span.into is None for span in spans):
            unknown.append("what some collectives carried, and in which group: it is of an older torch")
    else:
        spans = [_of_thread(e) for e in complete if _announces(e, GLOO)]
        if spans:
            unknown.append("in which group a call of gloo was made")
    spans.sort(key=lambda span: span.start)
    devices, backend = data.get("deviceProperties") or [], (NCCL if spoken else GLOO).name
    gpu = devices[0].get("name", "") if isinstance(devices, list) and devices else ""
    return Trace(rank, path, int(about.get("world_size", 0)), gpu, backend, spans, busy, unknown, _steps(complete))


def _steps(complete: list[dict]) -> list[tuple[float, int]]:
    """The steps that the program marked for torch.profiler, with the GPU's times if it has them."""
    for category in ("gpu_user_annotation", "user_annotation"):
        marks = [(e, re.fullmatch(r"ProfilerStep#(\d+)", e["name"])) for e in complete if e.get("cat") == category]
        if steps := sorted((_when(e)[0], int(number[1])) for e, number in marks if number):
            return steps
    return []


def _when(e: dict) -> tuple[float, float]:
    return e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6


def _announces(e: dict, backend: Backend) -> bool:
    return e.get("cat") == "user_annotation" and e["name"].startswith(f"{backend.name}:")


def _annotations(complete: list[dict]) -> dict[tuple, tuple[list[float], list[dict]]]:
    """By thread: the starts of the calls that torch announced as NCCL's, and the calls."""
    by_thread = alike((e, (e["pid"], e["tid"])) for e in complete if _announces(e, NCCL))
    for marks in by_thread.values():
        marks.sort(key=lambda e: e["ts"])
    return {thread: ([e["ts"] for e in marks], marks) for thread, marks in by_thread.items()}


def _of_kernel(e: dict, annotations: dict, launches: dict, groups: dict) -> Span:
    args = e.get("args", {})
    start, end = _when(e)
    stream = str(args.get("stream", e.get("tid")))
    if "Collective name" in args:
        ranks = args.get("Process Group Ranks")
        marks = tuple(ast.literal_eval(ranks)) if isinstance(ranks, str) and "..." not in ranks else None
        name = str(args.get("Process Group Name", ""))
        desc = args.get("Process Group Description", name)
        return Span(
            ops.op_of(args["Collective name"]), ops.dtype_of(args.get("dtype", "")), args.get("In msg nelems"),
            args.get("Out msg nelems"), desc or name, marks or groups.get(name), stream, start, end,
        )  # fmt: skip
    launch = launches.get(args.get("correlation"))
    begins, marks = annotations.get((launch["pid"], launch["tid"]), ((), ())) if launch else ((), ())
    place = bisect_right(begins, launch["ts"]) - 1 if launch else -1
    if place >= 0 and launch["ts"] <= marks[place]["ts"] + marks[place]["dur"]:
        op, dtype, into = _announced(marks[place])
        return Span(op, dtype, into, None, "", None, stream, start, end)
    kernel = re.search(r"nccl(?:Dev)?Kernel_([A-Za-z]+?)(?:_|\(|$)", e["name"])
    op = KERNEL_OPS.get(kernel[1].lower(), kernel[1]) if kernel else e["name"]
    return Span(op, "", None, None, "", None, stream, start, end)


def _of_thread(e: dict) -> Span:
    op, dtype, into = _announced(e)
    return Span(op, dtype, into, None, "", None, f"thread {e['tid']}", *_when(e))


def _announced(e: dict) -> tuple[str, str, int | None]:
    """The op, dtype and elements of an annotation."""
    args = e.get("args", {})
    dims, types = args.get("Input Dims") or [], args.get("Input type") or [""]
    into = prod(dims[0]) if dims and dims[0] and not isinstance(dims[0][0], list) else None
    return ops.op_of(e["name"]), ops.dtype_of(types[0]) if types[0] else "", into


# --- in words -----------------------------------------------------------------------------


def words(traces: list[Trace], machine: str | None = None) -> list[str]:
    """The rank that came last, the others' wait, how much of the collectives was hidden, and the bandwidth of each."""
    lines = [_headline(traces), "", _ranks(traces), "", _collectives(traces, machine)]
    for what in dict.fromkeys(what for trace in traces for what in trace.unknown):
        of = [trace.rank for trace in traces if what in trace.unknown]
        lines.append(f"The trace{'s' * (len(of) > 1)} of {name_ranks(of)} do{'es' * (len(of) == 1)}n't say {what}.")
    world = max(trace.world_size for trace in traces)
    if len(traces) < world:
        lines.append(f"{len(traces)} of {world:,} ranks have a trace here.")
    return lines


def _headline(traces: list[Trace]) -> str:
    late, waited, times, calls = stragglers(traces)
    if late is None:
        calls = sum(len(trace.spans) for trace in traces)
        return f"No rank lacks a call: {name_ranks([t.rank for t in traces])} made {calls:,} collectives" + (
            ", and none of them came last in most."
            if len(traces) > 1
            else "; who came last takes the traces of several ranks."
        )
    others = len(traces) - 1
    traced = " of those that have a trace here" if len(traces) < max(trace.world_size for trace in traces) else ""
    return (
        f"Rank {late} holds up the other {others if others > 1 else 'rank'}{traced}: it came last in {times:,} of {calls:,} collectives, "
        f"for which {f'each waited {duration(waited)} on average' if others > 1 else f'the other waited {duration(waited)}'}."
    )


def stragglers(traces: list[Trace]) -> tuple[int | None, float, int, int]:
    """(rank that came last most often, seconds that each other waited for it on average, how often, of how many calls).

    All ranks leave a collective at about the same time, so the last one spent least time in it: no clocks are compared.
    The rank is None if no rank is conspicuous.
    """
    lanes = _lanes(traces)
    last: dict[int, int] = defaultdict(int)
    waited: dict[int, float] = defaultdict(float)
    calls = 0
    for by_rank in lanes.values():
        for together in zip(*by_rank.values()):
            times = dict(zip(by_rank, (span.seconds for span in together)))
            first = min(times, key=times.__getitem__)
            last[first] += 1
            waited[first] += sum(t - times[first] for t in times.values()) / max(1, len(times) - 1)
            calls += 1
    worst = max(waited, key=waited.__getitem__, default=None)
    seconds = max((trace.seconds for trace in traces), default=0.0)
    if worst is None or last[worst] < OFTEN * calls or waited[worst] < MUCH * seconds or calls < 2:
        return None, 0.0, 0, calls
    return worst, waited[worst], last[worst], calls


def _lanes(traces: list[Trace]) -> dict[tuple, dict[int, list[Span]]]:
    """By group and op: of each rank the calls, where all its traces hold as many."""
    lanes: dict[tuple, dict[int, list[Span]]] = defaultdict(dict)
    for trace in traces:
        for span in trace.spans:
            if span.op not in ("send", "recv"):
                lanes[span.group, span.ranks, span.op].setdefault(trace.rank, []).append(span)
    return {
        key: by_rank for key, by_rank in lanes.items() if len(by_rank) > 1 and len(set(map(len, by_rank.values()))) == 1
    }


def _ranks(traces: list[Trace]) -> str:
    rows = [("rank", "GPU", "time", "in collectives", "exposed", "streams", "collectives")]
    for trace in traces:
        moving, total = trace.moving, trace.seconds or 1.0
        streams = len({span.stream for span in trace.spans})
        exposed = f"{duration(trace.exposed)}, {trace.exposed / total:.0%}" if trace.busy else "?"
        rows.append(
            (str(trace.rank), trace.gpu or "none", duration(total), f"{duration(moving)}, {moving / total:.0%}", exposed,
             str(streams), f"{len(trace.spans):,}")
        )  # fmt: skip
    return align(rows, right=(0, 2, 3, 4, 5, 6), indent="  ")


def _collectives(traces: list[Trace], machine: str | None) -> str:
    """A row for each op, group and size: its time on the rank that came last, and the bandwidth."""
    world = max((trace.world_size for trace in traces), default=0) or len(traces)
    kinds: dict[tuple, list[list[float]]] = defaultdict(list)
    for trace in traces:
        mine = alike((span.seconds, (span.op, span.group, span.ranks, span.dtype, span.into)) for span in trace.spans)
        for kind, times in mine.items():
            kinds[kind].append(times)
    model = _model(traces, machine, world)
    rows = [("op", "group", "ranks", "carries", "calls", "seconds", "busbw, GB/s", "model")]
    for (op, group, ranks, dtype, into), times in sorted(kinds.items(), key=lambda item: -sum(map(sum, item[1])))[:25]:
        n = len(ranks) if ranks else world
        seconds = median(min(together) for together in zip(*times)) if times else 0.0
        nbytes = into * ops.bytes_of(dtype) * (n if _collects(op) else 1) if into else 0
        busbw = least(op, n) * nbytes / seconds / 1e9 if nbytes and seconds and of(op).least else 0.0
        rows.append(
            (op, "all" if group in ("default_pg", "") else group, str(n), size(nbytes) if nbytes else "?",
             f"{max(map(len, times)):,}", duration(seconds), f"{busbw:.3g}" if busbw else "", model(op, n, ranks, nbytes))
        )  # fmt: skip
    whose = "of the rank that came last" if len(traces) > 1 else "of this rank, with its waits for others"
    name = getattr(model, "name", "")
    note = f"\n  seconds: {whose}." + (f" model: NCCL on {name}." if name else "")
    return align(rows, right=(2, 3, 4, 5, 6, 7), indent="  ") + note


def _collects(op: str) -> bool:
    """Whether the call's buffer holds a part from each rank: all_gather, gather."""
    collective = of(ops.family(op))
    return (collective.gives, collective.gets) == ("own", "all")


def _model(traces: list[Trace], machine: str | None, world: int):
    """A function for a collective's time on a machine, in words; it returns "" where no machine is known."""
    gpu = next((trace.gpu for trace in traces if trace.gpu), "")
    name = machine or next((name for part, name in MACHINES.items() if part in gpu), None)

    def silent(op: str, n: int, ranks: tuple[int, ...] | None, nbytes: int) -> str:
        return ""

    if name is None:
        return silent
    from ...cost import nccl
    from ...machines import machine as made

    try:
        on = made(name, world)
    except ValueError:
        if machine:
            raise
        return silent

    def seconds(op: str, n: int, ranks: tuple[int, ...] | None, nbytes: int) -> str:
        try:
            return duration(nccl(ops.family(op), on, ranks or range(n))(nbytes).seconds) if nbytes and n > 1 else ""
        except ValueError:
            return ""

    seconds.name = on.name
    return seconds
