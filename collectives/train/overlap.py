"""Computation and the messages in flight meanwhile, to scale.

from collectives.train import overlap
overlap({"one bucket": [("backward", "head", 0.0, 0.04), ("link", "164 KB", 0.24, 0.29)]})
"""

from typing import Mapping, NamedTuple, Sequence

from ..draw.canvas import FAINT, INK, SERIES, SOFT, TRAY, WIDTH, Canvas, Picture, heading, ink_on, text_width
from ..draw.labels import legend
from ..format import align
from ..intervals import merge
from .view import View

HIGH, GAP, PANEL = 22, 5, 26  # pixels: of a box, between two lanes, between two panels
HIDDEN_FILL, BARE = SERIES[0], SERIES[3]
Area = tuple[float, float, str]  # of an Interval: start, end and tint
LEGEND = (FAINT, "computes"), (HIDDEN_FILL, "travels while something is computed"), (BARE, "travels while nothing is")


class Interval(NamedTuple):
    """A lane's activity from one moment to another."""

    lane: str  # the first lane that occurs computes; the others' activity can hide behind it
    label: str
    start: float  # seconds, counted from any moment
    end: float


class OverlapChart(View):
    """Panels of lanes on one time axis, with each panel's seconds, and the seconds that nothing hides.

    panels: name -> Intervals, or tuples like them.  Raises ValueError for a panel without any, or without one that
    computes.
    """

    def __init__(self, panels: Mapping[str, Sequence[tuple]]) -> None:
        self.panels: dict[str, list[Interval]] = {}
        for name, spans in panels.items():
            zero = min((start for _, _, start, _ in spans), default=0.0)
            self.panels[name] = [Interval(lane, label, a - zero, b - zero) for lane, label, a, b in spans]
        self._lanes = list(dict.fromkeys(span.lane for spans in self.panels.values() for span in spans))
        if not panels or not all(map(self.computing, panels)):
            needed = "a span or more in each panel, (lane, label, start, end), and one of the lane that computes"
            raise ValueError(f"overlap() needs {needed}")

    def seconds(self, name: str) -> float:
        """The whole panel, from the first start to the last end."""
        return max(span.end for span in self.panels[name])

    def bare(self, name: str) -> float:
        """Seconds in which nothing is computed: what is not hidden."""
        return self.seconds(name) - sum(end - start for start, end in self.computing(name))

    def computing(self, name: str) -> list[tuple[float, float]]:
        """From when to when the first lane computes, without a pause."""
        return merge((span.start, span.end) for span in self.panels[name] if span.lane in self._lanes[:1])

    def __repr__(self) -> str:
        rows = [("", "total", "not hidden", *self._lanes)]
        for name, spans in self.panels.items():
            busy = [[s.end - s.start for s in spans if s.lane == lane] for lane in self._lanes]
            words = [f"{len(seconds)} in {_ms(sum(seconds))}" for seconds in busy]
            rows.append((name, _ms(self.seconds(name)), _ms(self.bare(name)), *words))
        return align(rows, right=range(1, len(rows[0])))

    def draw(self) -> Picture:
        sketch = Canvas()
        title = f"{' and '.join(self._lanes)}, to scale"
        y = heading(sketch, title) + 28
        legend(sketch, 0.0, y - 25, LEGEND, sample=(14, 10), pad=6, between=20)
        left = max(text_width(lane, 12) for lane in self._lanes) + 14
        scale = (WIDTH - left - 4) / max(map(self.seconds, self.panels))
        for name, spans in self.panels.items():
            words = f"{name}: {_ms(self.seconds(name))}, of which {_ms(self.bare(name))} not hidden"
            sketch.text(left, y, words, 12, INK, align="left")
            y += 12
            computing = self.computing(name)
            done, top = left + computing[-1][1] * scale, y
            for lane in self._lanes:
                sketch.text(left - 10, y + HIGH / 2, lane, 12, SOFT, align="right")
                sketch.box(left, y, self.seconds(name) * scale, HIGH, TRAY, radius=2)
                for span in (s for s in spans if s.lane == lane):
                    parts = [(*span[2:], FAINT)] if lane == self._lanes[0] else _parts(span, computing)
                    _box(sketch, span.label, parts, left, scale, y)
                y += HIGH + GAP
            sketch.line([(done, top - 3), (done, y - GAP + 3)], INK, 1, dashed=True)
            y += PANEL
        return Picture([sketch], repr(self), f"Picture: {title}: {', '.join(self.panels)}")


overlap = OverlapChart


def _parts(span: Interval, computing: Sequence[tuple[float, float]]) -> list[Area]:
    """A span cut where computing begins and ends."""
    inside = [at for both in computing for at in both if span.start < at < span.end]
    cuts = [span.start, *inside, span.end]
    return [
        (a, b, HIDDEN_FILL if any(start <= a and b <= end for start, end in computing) else BARE)
        for a, b in zip(cuts, cuts[1:])
    ]


def _box(sketch: Canvas, label: str, parts: list[Area], left: float, scale: float, y: float) -> None:
    """A span's box, a tint for each part of it."""
    for a, b, tint in parts:
        if (b - a) * scale > 0.5:
            sketch.box(left + a * scale + 0.5, y, (b - a) * scale - 0.5, HIGH, tint, radius=2)
    x0, x1 = left + parts[0][0] * scale, left + parts[-1][1] * scale
    if text_width(label, 10.5) + 6 < x1 - x0:
        tint = max(parts, key=lambda part: part[1] - part[0])[2]
        sketch.text((x0 + x1) / 2, y + HIGH / 2, label, 10.5, ink_on(tint))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
