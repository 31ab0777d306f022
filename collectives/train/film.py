"""What each rank held when, during a training step: ranks down, moments across."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from ..draw.canvas import FAINT, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, pale, text_width
from ..draw.labels import RankLabels
from ..format import aligned, span
from .observer import FilmFrame
from .view import View, alike


class Film(View):
    """What each rank held when: a column a moment, a line a layer, filled as far as it was held.

    A moment is the end of a layer's forward or the beginning of its backward.  sizes: layer -> bytes of its
    parameters when whole.  step: one step (FilmFrame.step), "all", or None for the last; all where the ranks' orders
    differ, as in a pipeline.  ranks: all by default.
    Raises ValueError if there are no moments to show.
    """

    def __init__(
        self,
        frames: Sequence[Sequence[FilmFrame]],
        sizes: dict[str, int],
        step: int | str | None = None,
        ranks: Sequence[int] | None = None,
        name: str = "fn",
    ) -> None:
        self.sizes, self.name = sizes, name
        self.ranks = list(range(len(frames))) if ranks is None else list(ranks)
        every = {r: list(frames[r]) for r in self.ranks}
        if step is None:
            last = max((f.step for row in every.values() for f in row), default=0)
            step = last if _same_moments(every) else "all"
        self.step = step
        self.shown = every if step == "all" else {r: [f for f in every[r] if f.step == step] for r in self.ranks}
        if not any(self.shown.values()):
            raise ValueError(f"{name} called no modules in step {step}: there are no moments to show")

    def __repr__(self) -> str:
        """A line a moment: bytes of each layer that the rank holds, * where it holds it whole; ranks alike together."""
        same = alike((rank, tuple(self._line(f) for f in frames)) for rank, frames in self.shown.items())
        head = ("moment", *self.sizes, "gradients", "activations")
        parts = []
        for rows, ranks in same.items():
            title = f"rank{'s' * (len(ranks) > 1)} {span(ranks)}: bytes held, * whole"
            parts.append(title + "\n" + aligned([head, *rows], right=range(1, len(head))))
        return "\n\n".join(parts)

    def _line(self, f: FilmFrame) -> tuple[str, ...]:
        layers = (f"{_held(f, k):,}{'*' * _is_whole(f, k, self.sizes)}" for k in self.sizes)
        return (f"{f.phase} {f.layer}".strip(), *layers, f"{f.gradients:,}", f"{_kept(f):,}")

    def draw(self) -> Picture:
        sketch, ranks = Canvas(), self.ranks
        which = "all steps" if self.step == "all" else f"step {self.step + 1}"
        words = "filled: bytes of a layer's parameters that the rank holds; dark: all of them"
        y = heading(sketch, f"{which} of {self.name}", words) + 4
        lines = len(ranks) * (len(self.sizes) + 1)
        style = _Style(15, 10) if lines <= 24 else _Style(10, 9) if lines <= 50 else _Style(5, 9)
        names = ["activations", *(self.sizes if style.high >= 9 else ["parameters"])]
        labels = RankLabels(ranks, 12.5)
        left = labels.width + 22 + max(text_width(name, style.size) for name in names)
        longest = max(map(len, self.shown.values()))
        wide = min(70.0, (WIDTH - left - 112) / longest)
        same_moments = _same_moments(self.shown)
        if same_moments:
            y = _moments(sketch, self.shown[ranks[0]], left, wide, y)
        for r in ranks:
            top, frames = y, self.shown[r]
            if not same_moments:
                y = _phases(sketch, frames, left, wide, y)
            y = self._layers(sketch, r, style, left, wide, y)
            held = max((sum(_held(f, k) for k in self.sizes) for f in frames), default=0)
            right = left + wide * longest + 6
            sketch.text(right, (top + y) / 2, f"up to {held:,} B", 10.5, SOFT, align="left")
            labels.draw(sketch, labels.width, (top + y) / 2, r)
            y = self._activations(sketch, r, style, left, wide, right, y) + (12 if style.high > 5 else 7)
        who = f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"
        alt = f"Picture: what {who} held during {which} of {self.name}"
        return Picture([sketch], repr(self), alt)

    def _layers(self, sketch: Canvas, rank: int, style: _Style, left: float, wide: float, y: float) -> float:
        top = y
        for k, size in self.sizes.items():
            if not any(_held(f, k) for f in self.shown[rank]):
                continue  # never on this rank
            if style.high >= 9:
                sketch.text(left - 8, y + style.high / 2, k, style.size, SOFT, align="right")
            for i, f in enumerate(self.shown[rank]):
                x, share = left + i * wide, min(1.0, _held(f, k) / max(size, 1))
                sketch.box(x, y, wide - 2, style.high, TRAY, radius=0)
                if share:
                    tall = max(1.5, style.high * share)
                    fill = colour(rank) if _is_whole(f, k, self.sizes) else pale(colour(rank), 0.55)
                    sketch.box(x, y + style.high - tall, wide - 2, tall, fill, radius=0)
            y += style.high + 2
        if style.high < 9:
            sketch.text(left - 8, (top + y) / 2, "parameters", style.size, SOFT, align="right")
        return y

    def _activations(self, sketch: Canvas, rank: int, style: _Style, left, wide, right, y: float) -> float:
        """A curve below the layers, to one scale for all ranks and moments."""
        tall = style.high * 1.6 + 2
        kept = [_kept(f) for f in self.shown[rank]]
        most = max(_kept(f) for frames in self.shown.values() for f in frames) or 1
        sketch.text(left - 8, y + tall / 2, "activations", style.size, SOFT, align="right")
        for i, nbytes in enumerate(kept):
            size = nbytes / most * tall
            if size:
                sketch.box(left + i * wide, y + tall - size, wide - 2, max(size, 1.0), FAINT, radius=0)
        sketch.line([(left, y + tall), (left + wide * len(kept) - 2, y + tall)], SOFT, 0.8)
        sketch.text(right, y + tall / 2, f"up to {max(kept, default=0):,} B", 10.5, SOFT, align="left")
        return y + tall + 2


class _Style(NamedTuple):
    high: float  # of a layer's line
    size: float  # of its name


def _same_moments(shown: dict[int, list[FilmFrame]]) -> bool:
    """Whether all ranks come through the same moments."""
    return len({tuple((f.step, f.phase, f.layer) for f in frames) for frames in shown.values()}) == 1


def _phases(sketch: Canvas, frames: Sequence[FilmFrame], left: float, wide: float, y: float) -> float:
    """F and B above a rank's own moments."""
    for i, f in enumerate(frames):
        if f.phase != "update":
            sketch.text(left + (i + 0.5) * wide - 1, y + 4, f.phase[0].upper(), min(9.5, wide), SOFT)
    return y + 12


def _held(frame: FilmFrame, layer: str) -> int:
    return frame.sharded.get(layer, 0) + frame.whole.get(layer, 0)


def _is_whole(frame: FilmFrame, layer: str, sizes: dict[str, int]) -> bool:
    return frame.whole.get(layer, 0) >= sizes[layer] > 0


def _kept(frame: FilmFrame) -> int:
    return sum(frame.activations.values())


def _moments(sketch: Canvas, frames: Sequence[FilmFrame], left: float, wide: float, y: float) -> float:
    start = 0
    for i, f in enumerate(frames):
        last = i == len(frames) - 1
        if last or frames[i + 1].phase != f.phase:
            x0, x1 = left + start * wide, left + (i + 1) * wide - 2
            sketch.line([(x0, y + 11), (x1, y + 11)], SOFT, 1)
            if text_width(f.phase, 11.5) <= x1 - x0 + 40 * last:
                sketch.text((x0 + x1) / 2, y + 2, f.phase, 11.5)
            start = i + 1
    if all(text_width(f.layer, 10) <= wide - 2 for f in frames):
        for i, f in enumerate(frames):
            sketch.text(left + (i + 0.5) * wide - 1, y + 20, f.layer, 10, SOFT)
        return y + 30
    return y + 16
