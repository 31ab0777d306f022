"""When it happened: a lane a rank, each call as a bar, the part of it spent waiting for others, and the messages.

Times are measured, so no two runs give the same picture; what a run *is* shows in
`Run.draw()`.  The same can be saved for ui.perfetto.dev, where one can zoom.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Iterator, NamedTuple

from .canvas import FAINT, INK, SOFT, TRAY, WIDTH, Picture, Sketch, colour, heading, ink_on, text_width
from .lanes import GRID, label_width, rank_label
from .record import Call, Event, Run
from .twin import size

PITCH, HIGH = 44, 22  # pixels: from lane to lane, of a bar
MOST_ARROWS = 200


class Span(NamedTuple):
    """One call of one rank, in seconds since the first call of the run."""

    event: Event
    start: float  # the call was made
    blocked: float  # from here on the rank did nothing else
    met: float  # the last of those it needed had made the call too
    end: float  # it was complete
    late: int | None  # the rank that it waited for last; None: itself

    @property
    def waits(self) -> float:
        """Seconds blocked because others had not come yet."""
        return max(0.0, self.met - self.blocked)


class Timeline(Picture):
    """The picture, with `.spans` (see Span), `.text` (the same as a table) and `.save(path)`."""

    def __init__(self, run: Run, spans: list[Span], sketch: Sketch, text: str, alt: str) -> None:
        super().__init__([sketch], text, alt)
        self.run, self.spans = run, spans

    def save(self, path: str | Path) -> Path:
        """Writes a trace file (Trace Event Format, microseconds) that ui.perfetto.dev and chrome://tracing open."""
        path = Path(path)
        path.write_text(json.dumps({"traceEvents": list(_trace(self.run, self.spans))}, indent=1), encoding="utf-8")
        return path


def timeline(run: Run) -> Timeline:
    """The timeline of a run.

    Raises ValueError for a run without communication: there is nothing to show.
    """
    spans = _spans(run)
    if not spans:
        raise ValueError(f"{run.name} made no calls: there is no communication to show on a timeline")
    ranks = range(run.world_size)
    until = max(span.end for span in spans) or 1e-6
    sketch = Sketch()
    top = heading(sketch, f"timeline of {run.name}", _longest_wait(spans)) + HIGH / 2 + 6
    left = label_width(ranks)
    scale = (WIDTH - left - 8) / until
    y = {rank: top + PITCH * rank for rank in ranks}
    _axis(sketch, left, scale, until, y[0] - HIGH, y[run.world_size - 1] + HIGH)
    for rank in ranks:
        sketch.text(left - 14, y[rank], rank_label(rank), 13, align="right")
        sketch.line([(left, y[rank]), (left + until * scale, y[rank])], TRAY, 4)
    for span in spans:
        _bar(sketch, span, left, scale, y[span.event.rank])
    for source, target in _messages(run, spans)[:MOST_ARROWS]:
        down = 1 if y[target.event.rank] > y[source.event.rank] else -1
        start = left + max(source.start, target.start) * scale, y[source.event.rank] + down * HIGH / 2
        sketch.arrow(start, (left + target.end * scale, y[target.event.rank] - down * HIGH / 2), INK, 1.2, head=7)
    calls = len(run.calls)
    alt = f"Picture: timeline of {run.name}, {run.world_size} ranks, {calls} call{'s' * (calls != 1)}"
    return Timeline(run, spans, sketch, _text(spans), alt)


# --- what there is to show ----------------------------------------------------------------


def _spans(run: Run) -> list[Span]:
    calls = run.calls
    every = [e for events in run.events for e in events]
    if not every:
        return []
    origin = min(e.start for e in every)
    last = max(max((e.end for e in every if e.end is not None), default=0.0), max(e.start for e in every))
    return [_span(e, call, origin, last) for call in calls for e in call]


def _span(e: Event, call: Call, origin: float, last: float) -> Span:
    end = last if e.end is None else e.end
    blocked = e.start if not e.async_op else end if e.waiting is None else min(e.waiting, end)
    others = {o.rank: o.start for o in call if o is not e}
    late = max(others, key=others.__getitem__, default=None)
    met = min(max(others.get(late, 0.0), blocked), end)
    if e.end is None and len(call.events) < (2 if call.is_message else len(call.group)):
        met = end  # somebody never came
    times = (t - origin for t in (e.start, blocked, met, end))
    return Span(e, *times, late if met > blocked else None)


def _messages(run: Run, spans: list[Span]) -> list[tuple[Span, Span]]:
    """The (send, recv) pairs that met."""
    of = {id(span.event): span for span in spans}
    pairs = [call.events for call in run.calls if call.is_message and len(call.events) == 2]
    return [(of[id(a)], of[id(b)]) for a, b in pairs if b.end is not None]


def _longest_wait(spans: list[Span]) -> str:
    worst = max(spans, key=lambda span: span.waits)
    if worst.late is None:
        return "nobody waited for anybody"
    e = worst.event
    return f"the longest wait: rank {e.rank}, {_time(worst.waits)} in {e.op} #{e.index + 1}, for rank {worst.late}"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _text(spans: list[Span]) -> str:
    rows = [("rank", "call", "starts", "waits", "ends")]
    for span in sorted(spans, key=lambda span: (span.event.rank, span.event.index)):
        e = span.event
        ends = "never" if e.end is None else _time(span.end)
        rows.append((str(e.rank), f"{e.op} #{e.index + 1}", _time(span.start), _time(span.waits), ends))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths)).rstrip() for row in rows)


# --- the drawing --------------------------------------------------------------------------


def _axis(sketch: Sketch, left: float, scale: float, until: float, top: float, foot: float) -> None:
    step = 10 ** math.floor(math.log10(until / 4))
    step *= next(m for m in (1, 2, 5, 10) if until / (step * m) <= 8)
    for k in range(int(until / step) + 1):
        x = left + k * step * scale
        sketch.line([(x, top), (x, foot)], GRID, 1)
        if x + text_width(_time(k * step), 10.5) / 2 <= WIDTH:
            sketch.text(x, foot + 10, _time(k * step) if k else "0", 10.5, SOFT)


def _bar(sketch: Sketch, span: Span, left: float, scale: float, y: float) -> None:
    """Pale while it waits for others, full while data moves; a line below while the rank goes on with its own work."""
    e, tint = span.event, colour(span.event.rank)
    x0, x1, x2 = (left + t * scale for t in (span.blocked, span.met, span.end))
    if span.blocked > span.start:
        under = y + HIGH / 2 + 4
        sketch.line([(left + span.start * scale, under), (x0, under)], tint, 3, butt=True)
    if x1 - x0 >= 1:
        sketch.box(x0, y - HIGH / 2, x1 - x0, HIGH, TRAY, FAINT, dashed=True, radius=2)
    if e.end is not None and x2 > x0:
        sketch.box(x1, y - HIGH / 2, max(x2 - x1, 1.5), HIGH, tint, radius=2)
    for words in (f"{e.op} #{e.index + 1}", e.op, f"#{e.index + 1}"):
        wide = text_width(words, 10.5) + 8
        if wide <= x2 - x1 and e.end is not None:
            sketch.text((x1 + x2) / 2, y, words, 10.5, ink_on(tint))
            return
        if wide <= x1 - x0:
            sketch.text((x0 + x1) / 2, y, words, 10.5, INK)
            return


# --- the trace file -----------------------------------------------------------------------


def _trace(run: Run, spans: list[Span]) -> Iterator[dict]:
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete events, flows."""
    yield {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": run.name}}
    for rank in range(run.world_size):
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
    for span in spans:
        e = span.event
        said = {"call": e.index + 1, "size": size(e.nbytes), "line": str(e.line), "waits_us": span.waits * 1e6}
        said |= {k: v for k, v in (("src", e.src), ("dst", e.dst), ("reduce_op", e.reduce_op)) if v is not None}
        yield _complete(e.op, e.rank, span.start, span.end, said)
        if span.waits:
            yield _complete(f"waits for rank {span.late}", e.rank, span.blocked, span.met, {})
    for number, (source, target) in enumerate(_messages(run, spans)):
        for phase, span, at in (("s", source, source.start), ("f", target, target.end)):
            flow = {"ph": phase, "id": number, "name": "message", "cat": "message", "pid": 0, "tid": span.event.rank}
            yield flow | {"ts": at * 1e6} | ({"bp": "e"} if phase == "f" else {})


def _complete(name: str, rank: int, start: float, end: float, args: dict) -> dict:
    return {
        "ph": "X",
        "name": name,
        "cat": "call",
        "pid": 0,
        "tid": rank,
        "ts": start * 1e6,
        "dur": (end - start) * 1e6,
        "args": args,
    }
