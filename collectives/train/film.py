"""Each rank's memory over a training step: ranks down, moments across."""

from itertools import chain, groupby
from operator import attrgetter
from typing import Sequence

from ..draw.canvas import FAINT, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, pale, text_width
from ..draw.labels import RankLabels
from ..format import align, span
from .observer import FilmFrame
from .view import View, group_equal

CURVES = {"shards": attrgetter("shards"), "gradients": attrgetter("gradients"), "activations": attrgetter("kept")}


class Film(View):
    """Each rank's memory over time: a column per moment, a line per layer, filled as far as it was held.

    A moment is the end of a layer's forward or the beginning of its backward.  Below the layers are shards that the
    function keeps outside its modules, gradients, and activations.  sizes: layer -> bytes of its
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
        every = {r: frames[r] for r in (range(len(frames)) if ranks is None else ranks)}
        if step is None:
            last = max((f.step for row in every.values() for f in row), default=0)
            step = last if _same_moments(every) else "all"
        self.step = step
        self.shown = {r: [f for f in row if step in ("all", f.step)] for r, row in every.items()}
        if not any(self.shown.values()):
            raise ValueError(f"{name} called no modules in step {step}: there are no moments to show")
        self.below = {kind: of for kind, of in CURVES.items() if any(map(of, chain(*self.shown.values())))}

    def __repr__(self) -> str:
        """A line a moment: bytes of each layer that the rank holds, * where it holds it whole; ranks alike together."""
        same = group_equal((rank, tuple(self._line(f) for f in frames)) for rank, frames in self.shown.items())
        head = ("moment", *self.sizes, *self.below)
        parts = []
        for rows, ranks in same.items():
            title = f"rank{'s' * (len(ranks) > 1)} {span(ranks)}: bytes held, * whole"
            parts.append(title + "\n" + align([head, *rows], right=range(1, len(head))))
        return "\n\n".join(parts)

    def _line(self, f: FilmFrame) -> tuple[str, ...]:
        layers = (f"{f.held(k):,}{'*' * self._is_whole(f, k)}" for k in self.sizes)
        return (f"{f.phase} {f.layer}".strip(), *layers, *(f"{of(f):,}" for of in self.below.values()))

    def _is_whole(self, f: FilmFrame, layer: str) -> bool:
        return f.whole.get(layer, 0) >= self.sizes[layer] > 0

    def draw(self) -> Picture:
        sketch, ranks = Canvas(), list(self.shown)
        which = "all steps" if self.step == "all" else f"step {self.step + 1}"
        words = "filled: bytes of a layer's parameters that the rank holds; dark: all of them"
        y = heading(sketch, f"{which} of {self.name}", words) + 4
        lines = len(ranks) * (len(self.sizes) + 1)
        high, size = (15, 10) if lines <= 24 else (10, 9) if lines <= 50 else (5, 9)  # of a line; of its name
        names = ["activations", *(self.sizes if high >= 9 else ["parameters"])]
        labels = RankLabels(ranks, 12.5)
        left = labels.width + 22 + max(text_width(name, size) for name in names)
        longest = max(map(len, self.shown.values()))
        wide = min(70.0, (WIDTH - left - 112) / longest)
        right = left + wide * longest + 6
        most = {kind: max(map(of, chain(*self.shown.values()))) for kind, of in self.below.items()}
        same_moments = _same_moments(self.shown)
        if same_moments:
            y = _moments(sketch, self.shown[ranks[0]], left, wide, y)
        for r, frames in self.shown.items():
            top = y
            if not same_moments:
                letters = ["" if f.phase == "update" else f.phase[0].upper() for f in frames]
                _words_above(sketch, letters, min(9.5, wide), left, wide, y + 4)
                y += 12
            y = self._layers(sketch, r, high, size, left, wide, y)
            held = max((sum(map(f.held, self.sizes)) for f in frames), default=0)
            sketch.text(right, (top + y) / 2, f"up to {held:,} B", 10.5, SOFT, align="left")
            labels.draw(sketch, labels.width, (top + y) / 2, r)
            tall = high * 1.6 + 2
            for kind, of in self.below.items():
                held = [of(f) for f in frames]
                sketch.text(left - 8, y + tall / 2, kind, size, SOFT, align="right")
                _curve(sketch, [nbytes / most[kind] * tall for nbytes in held], left, wide, y + tall)
                sketch.text(right, y + tall / 2, f"up to {max(held, default=0):,} B", 10.5, SOFT, align="left")
                y += tall + 2
            y += 12 if high > 5 else 7
        who = f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"
        return Picture([sketch], repr(self), f"Picture: what {who} held during {which} of {self.name}")

    def _layers(self, sketch: Canvas, rank: int, high: int, size: int, left: float, wide: float, y: float) -> float:
        top = y
        for k, whole in self.sizes.items():
            if not any(f.held(k) for f in self.shown[rank]):
                continue  # never on this rank
            if high >= 9:
                sketch.text(left - 8, y + high / 2, k, size, SOFT, align="right")
            for i, f in enumerate(self.shown[rank]):
                sketch.box(left + i * wide, y, wide - 2, high, TRAY, radius=0)
                if share := min(1.0, f.held(k) / max(whole, 1)):
                    tall = max(1.5, high * share)
                    fill = colour(rank) if self._is_whole(f, k) else pale(colour(rank), 0.55)
                    sketch.box(left + i * wide, y + high - tall, wide - 2, tall, fill, radius=0)
            y += high + 2
        if high < 9:
            sketch.text(left - 8, (top + y) / 2, "parameters", size, SOFT, align="right")
        return y


def _same_moments(shown: dict[int, Sequence[FilmFrame]]) -> bool:
    """Whether all ranks have the same moments."""
    return len({tuple((f.step, f.phase, f.layer) for f in frames) for frames in shown.values()}) == 1


def _words_above(sketch: Canvas, words: Sequence[str], size: float, left: float, wide: float, y: float) -> None:
    """A word above each column."""
    for i, word in enumerate(words):
        sketch.text(left + (i + 0.5) * wide - 1, y, word, size, SOFT)


def _curve(sketch: Canvas, heights: list[float], left: float, wide: float, foot: float) -> None:
    for i, high in enumerate(heights):
        if high:
            sketch.box(left + i * wide, foot - high, wide - 2, max(high, 1.0), FAINT, radius=0)
    sketch.line([(left, foot), (left + wide * len(heights) - 2, foot)], SOFT, 0.8)


def _moments(sketch: Canvas, frames: Sequence[FilmFrame], left: float, wide: float, y: float) -> float:
    """The phases' names above, and below them the layers', if there is room for all."""
    start = 0
    for phase, moments in groupby(frames, key=attrgetter("phase")):
        stop = start + len(list(moments))
        x0, x1 = left + start * wide, left + stop * wide - 2
        sketch.line([(x0, y + 11), (x1, y + 11)], SOFT, 1)
        if text_width(phase, 11.5) <= x1 - x0 + 40 * (stop == len(frames)):
            sketch.text((x0 + x1) / 2, y + 2, phase, 11.5)
        start = stop
    layers = [f.layer for f in frames]
    if any(text_width(layer, 10) > wide - 2 for layer in layers):
        return y + 16
    _words_above(sketch, layers, 10, left, wide, y + 20)
    return y + 30
