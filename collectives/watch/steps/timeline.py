"""When it happened: how each rank spent its time, and a lane a rank with each call as a bar, its waits and its messages.

A call that was left to a device's stream is shown until it was issued: when the device began and ended it is not known
here, and a profiler's trace has it.  Times are measured, so no two runs give the same picture.  It can be saved for
ui.perfetto.dev, where one can zoom.
"""

import math
from collections import defaultdict
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

from ...draw.canvas import AMOUNT, FAINT, GRID, INK, SOFT, WIDTH, Canvas, Picture, colour, heading, ink_on, text_width
from ...draw.labels import RankLabels, legend
from ...format import align, duration
from ...intervals import covered
from ...log.calls import Call
from ...outcome.run import Run
from . import trace_file
from .spans import CallSpan, spans_of

PITCH, HIGH = 44, 22  # pixels: from lane to lane, of a bar
MAX_ARROWS = 200  # with more, no arrow is drawn
MAX_BARS = 1000  # with more, any that ends less than FINE pixels after the one before is left out
FINE = 2
MAX_ROWS = 100  # of more calls, the text has the LONGEST waits
LONGEST = 40


class Share(NamedTuple):
    """A rank's time until its last call was through, in seconds."""

    worked: float  # its own work, whatever was in flight meanwhile
    waited: float  # blocked, because others had not come yet
    moved: float  # blocked, while data moved
    late: int | None  # the rank that it waited for longest


class Timeline(Picture):
    """The timeline of a run: how each rank spent its time, its calls, and the longest wait from near.

    `.spans` (see CallSpan), `.shares` (see Share; one a rank), `.text` (the same as tables) and `.save(path)`.
    Raises ValueError for a run without communication: there is nothing to show.
    """

    def __init__(self, run: Run) -> None:
        calls = run.calls
        spans = spans_of(run, calls)
        if not spans:
            raise ValueError(f"{run.name} made no calls: there is no communication to show on a timeline")
        shares = _shares(run, spans)
        until = max(span.end for span in spans) or 1e-6
        worst = max(spans, key=lambda span: span.waits)
        sketches = [_totals(run, shares, worst), _lanes(run, calls, spans, 0.0, until, "every call over time")]
        window = worst.end - worst.blocked
        if worst.late is not None and window < until / 3:  # else one sees it as it is
            start, stop = max(0.0, worst.blocked - window / 4), min(until, worst.end + window / 4)
            sketches.append(_lanes(run, calls, spans, start, stop, f"Close-up: {_longest_wait(worst)}"))
        count = f"{len(calls):,} call{'s' * (len(calls) != 1)}"
        alt = f"Picture: timeline of {run.name}, {run.world_size} ranks, {count}"
        super().__init__(sketches, f"{_shares_text(shares)}\n\n{_text(spans)}", alt)
        self.run, self.spans, self.shares, self._calls = run, spans, shares, calls

    def save(self, path: str | Path, *beside: str | Path) -> Path:
        """Writes a trace file that ui.perfetto.dev and chrome://tracing open, compressed if its name ends in .gz.

        beside: traces of torch.profiler, .json or .json.gz, to be merged into it, on the same clock. That holds
        for ranks of one host; for others it is as near as their clocks are. Raises ValueError if one isn't a trace.
        """
        path = Path(path)
        trace_file.save(path, self.run, self._calls, self.spans, list(map(Path, beside)))
        return path


def timeline(run: Run) -> Timeline:
    """The timeline of a run; see Timeline."""
    return Timeline(run)


# --- what there is to show ----------------------------------------------------------------


def _messages(calls: list[Call], spans: list[CallSpan]) -> list[tuple[CallSpan, CallSpan]]:
    """The (send, recv) pairs that met."""
    of = {id(span.event): span for span in spans}
    pairs = [call.events for call in calls if call.is_message and len(call.events) == 2]
    return [(of[id(a)], of[id(b)]) for a, b in pairs if b.end is not None and b.issued is None]


def _longest_wait(worst: CallSpan) -> str:
    if worst.late is None:
        return "no rank waited for another"
    return f"the longest wait: rank {worst.event.rank}, {duration(worst.waits)} in {worst.name}, for rank {worst.late}"


def _shares(run: Run, spans: list[CallSpan]) -> list[Share]:
    found = []
    for rank in range(run.world_size):
        mine = [span for span in spans if span.event.rank == rank]
        waits = covered((span.blocked, span.met) for span in mine)
        moves = covered((span.blocked, span.end) for span in mine) - waits
        by_late: dict[int, float] = defaultdict(float)
        for span in mine:
            if span.late is not None:
                by_late[span.late] += span.waits
        end = max((span.end for span in mine), default=0.0)
        found.append(Share(end - waits - moves, waits, moves, max(by_late, key=by_late.__getitem__, default=None)))
    return found


def _shares_text(shares: list[Share]) -> str:
    rows = [
        (str(rank), *map(duration, times), "-" if late is None else f"rank {late}")
        for rank, (*times, late) in enumerate(shares)
    ]
    return align([("rank", "worked", "waited", "moved", "waited most for"), *rows])


def _text(spans: list[CallSpan]) -> str:
    rows = [("rank", "call", "starts", "waits", "ends")]
    shown, head = sorted(spans, key=lambda span: (span.event.rank, span.event.index)), ""
    if len(spans) > MAX_ROWS:
        shown, head = (
            sorted(spans, key=lambda span: -span.waits)[:LONGEST],
            f"the longest waits of {len(spans):,} calls\n",
        )
    for span in shown:
        ends = "never" if span.event.end is None else duration(span.end)
        if span.event.issued is not None:
            ends = f"{duration(span.end)} (issued)"
        rows.append((str(span.event.rank), span.name, duration(span.start), duration(span.waits), ends))
    return head + align(rows)


# --- the drawing --------------------------------------------------------------------------


def _totals(run: Run, shares: list[Share], worst: CallSpan) -> Canvas:
    """A bar for each rank, in three parts."""
    sketch = Canvas()
    y = heading(sketch, f"timeline of {run.name}", _longest_wait(worst)) + 4
    labels = RankLabels(range(run.world_size))
    left = labels.width + 14
    legend(sketch, left, y, [*PARTS, (_in_flight, "in flight, for all its rank knows")], sample=(18, 12), pad=6, between=22)
    y += 26
    notes = [_note(share) for share in shares]
    room = WIDTH - left - max(text_width(words, 11) for words in notes) - 16
    scale = room / max(max(sum(share[:3]) for share in shares), 1e-9)
    for rank, (share, words) in enumerate(zip(shares, notes)):
        labels.draw(sketch, left - 14, y, rank)
        x = left
        for seconds, fill, edge in zip(share, (AMOUNT, "#ffffff", colour(rank)), (None, FAINT, None)):
            if seconds * scale >= 0.5:
                sketch.box(x, y - 9, max(seconds * scale, 1.5), 18, fill, edge, dashed=bool(edge), radius=2)
            x += seconds * scale
        sketch.text(left + room + 12, y, words, 11, align="left")
        y += 26
    sketch.reach(WIDTH - 1, y)
    return sketch


def dashed(sketch: Canvas, x: float, y: float, wide: float, high: float) -> None:
    """Draw a rank's wait."""
    sketch.box(x, y, wide, high, "#ffffff", FAINT, dashed=True, radius=2)


PARTS = ((AMOUNT, "worked"), (dashed, "waited for others"), (SOFT, "blocked while data moved"))  # of a rank's time


def _in_flight(sketch: Canvas, x: float, y: float, wide: float, high: float) -> None:
    sketch.line([(x, y + high / 2), (x + wide, y + high / 2)], SOFT, 3, butt=True)


def _note(share: Share) -> str:
    late = "" if share.late is None else f" for rank {share.late}" if share.waited else ""
    return f"worked {duration(share.worked)}, waited {duration(share.waited)}{late}, moved {duration(share.moved)}"


def _lanes(run: Run, calls: list[Call], spans: list[CallSpan], start: float, stop: float, title: str) -> Canvas:
    """The calls between two times, in seconds."""
    sketch, labels = Canvas(), RankLabels(range(run.world_size))
    sketch.text(0, 8, title, 12, align="left", bold=True)
    left = labels.width + 14
    scale = (WIDTH - left - 8) / (stop - start)
    y = [46 + PITCH * rank for rank in range(run.world_size)]
    _axis(sketch, left, scale, start, stop, y[0] - HIGH, y[-1] + HIGH)
    for rank, middle in enumerate(y):
        labels.draw(sketch, left - 14, middle, rank)
        sketch.line([(left, middle), (left + (stop - start) * scale, middle)], AMOUNT, 4, butt=True)

    def inside(t: float) -> float:
        return left + (min(max(t, start), stop) - start) * scale

    shown = [span for span in spans if span.end >= start and span.start <= stop]
    for span in shown if len(shown) <= MAX_BARS else _spread_spans(shown, inside):
        _bar(sketch, span, inside, y[span.event.rank])
    arrows = [(max(a.start, b.start), a, b) for a, b in _messages(calls, spans)]
    arrows = [arrow for arrow in arrows if arrow[0] >= start and arrow[2].end <= stop]
    for begin, source, target in arrows if len(arrows) <= MAX_ARROWS else ():
        y0, y1 = y[source.event.rank], y[target.event.rank]
        out = HIGH / 2 if y1 > y0 else -HIGH / 2
        sketch.arrow((inside(begin), y0 + out), (inside(target.end), y1 - out), INK, 1.2, head=7)
    return sketch


def _spread_spans(spans: list[CallSpan], inside: Callable[[float], float]) -> Iterator[CallSpan]:
    """The spans that can be distinguished in the picture."""
    reached: dict[int, float] = defaultdict(float)
    for span in sorted(spans, key=lambda span: span.start):
        rank, right = span.event.rank, inside(span.end)
        if right >= reached[rank] + FINE:
            reached[rank] = right
            yield span


def _axis(sketch: Canvas, left: float, scale: float, start: float, stop: float, top: float, foot: float) -> None:
    wide = stop - start
    step = 10 ** math.floor(math.log10(wide / 4))
    step *= next(m for m in (1, 2, 5, 10) if wide / (step * m) <= 8)
    for k in range(math.ceil(start / step - 1e-9), int(stop / step) + 1):
        x = left + (k * step - start) * scale
        sketch.line([(x, top), (x, foot)], GRID, 1)
        if x + text_width(duration(k * step), 10.5) / 2 <= WIDTH:
            sketch.text(x, foot + 10, duration(k * step) if k else "0", 10.5, SOFT)


def _bar(sketch: Canvas, span: CallSpan, inside: Callable[[float], float], y: float) -> None:
    """Draw a call: dashed while it waits for others, full while data moves; a line below while the rank continues."""
    e, tint = span.event, colour(span.event.rank)
    x0, x1, x2 = map(inside, (span.blocked, span.met, span.end))
    if span.blocked > span.start:
        under = y + HIGH / 2 + 4
        sketch.line([(inside(span.start), under), (x0, under)], tint, 3, butt=True)
    if x1 - x0 >= 1:
        dashed(sketch, x0, y - HIGH / 2, x1 - x0, HIGH)
    if span.is_over and x2 > x0:
        sketch.box(x1, y - HIGH / 2, max(x2 - x1, 1.5), HIGH, tint, radius=2)
    for words in (span.name, e.op, f"#{e.index + 1}"):
        wide = text_width(words, 10.5) + 8
        if wide <= x2 - x1 and span.is_over:
            sketch.text((x1 + x2) / 2, y, words, 10.5, ink_on(tint))
            return
        if wide <= x1 - x0:
            sketch.text((x0 + x1) / 2, y, words, 10.5, INK)
            return
