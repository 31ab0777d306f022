"""Ownership: which rank holds which slice of what, and how many bytes that is.

A rank is a row in its colour; lengths and areas are bytes, to scale.  A tensor is drawn as the matrix it is, rows
from top to bottom.  What only this rank holds is plain, what others hold as well is hatched.
"""

from collections import defaultdict
from functools import partial
from typing import Iterable, Sequence

from ..draw.canvas import INK, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, ink_on, pale, text_width
from ..draw.labels import RankLabels, legend
from ..format import aligned, span
from .layout import Layout, layouts
from .observer import STATES, Piece
from .placement import slices_table
from .view import View, alike, spread


class Owns(View):
    """Who holds which slice of what.

    pieces: per rank.  peaks: per rank, bytes by kind, for the bars of memory; by default those of the pieces.
    kinds: which of STATES to draw; by default all that there are.  Kinds that are cut alike share a strip.
    Raises ValueError if no rank holds anything.
    """

    def __init__(
        self,
        pieces: Sequence[Sequence[Piece]],
        peaks: Sequence[dict[str, int]] | None = None,
        kinds: Sequence[str] = (),
        name: str = "fn",
    ) -> None:
        self.pieces, self.kinds, self.name = pieces, kinds or STATES, name
        self.peaks = peaks or [_summed(held) for held in pieces]
        self.strips = layouts(pieces, self.kinds)
        if not self.strips:
            raise ValueError(
                f"no rank of {name} held any {' or '.join(self.kinds)} that were seen: give watch() the model, "
                f'or have {name} return its tensors, as dict(parameters={{"w": w}})'
            )

    def __repr__(self) -> str:
        return f"{memory_table(self.peaks)}\n\n{slices_table(self.pieces, self.kinds)}"

    def draw(self) -> Picture:
        sketches = [_memory(self.peaks, self.name), _slices(self.strips, len(self.pieces), self.name)]
        alt = f"Picture: which of {len(self.pieces)} ranks holds which slice of what in {self.name}"
        return Picture(sketches, repr(self), alt)


def _summed(pieces: Iterable[Piece]) -> dict[str, int]:
    """Bytes by kind."""
    total: dict[str, int] = defaultdict(int)
    for piece in pieces:
        total[piece.kind] += piece.nbytes
    return total


# --- bars of memory -----------------------------------------------------------------------


SHARES = {"parameters": 1.0, "gradients": 0.7, "optimizer": 0.45, "activations": 0.2}  # of a rank's color, by kind


def _memory(peaks: Sequence[dict[str, int]], name: str) -> Canvas:
    sketch = Canvas()
    kinds = [kind for kind in SHARES if any(mine.get(kind) for mine in peaks)]
    totals = [sum(mine.get(kind, 0) for kind in kinds) for mine in peaks]
    y = (
        heading(sketch, f"memory of {name}", f"the most bytes of each kind that a rank held: {spread(totals)} in all")
        + 4
    )
    labels = RankLabels(range(len(peaks)), 12.5)
    left = labels.width + 14
    room = WIDTH - left - text_width(f"{max(totals):,} B", 11.5) - 10
    scale = room / max(max(totals), 1)
    legend(sketch, left, y, ((partial(_sample, share=SHARES[kind]), kind) for kind in kinds))
    y += 16
    high, pitch = (20, 26) if len(peaks) <= 4 else (14, 18)
    for rank, mine in enumerate(peaks):
        labels.draw(sketch, left - 10, y + high / 2, rank)
        x = left
        for kind in kinds:
            size = mine.get(kind, 0)
            fill, wide = pale(colour(rank), SHARES[kind]), size * scale
            if size:
                sketch.box(x, y, max(wide, 1.5), high, fill, edge="#ffffff", radius=0, lw=0.8)
                words = f"{size:,}"
                if text_width(words, 11) + 6 <= wide:
                    sketch.text(x + wide / 2, y + high / 2, words, 11, ink_on(fill))
            x += wide
        sketch.text(x + 6, y + high / 2, f"{totals[rank]:,} B", 11.5, SOFT, align="left")
        y += pitch
    return sketch


def _sample(sketch: Canvas, x: float, y: float, wide: float, high: float, share: float) -> None:
    sketch.box(x, y, wide, high, pale(INK, share), edge=SOFT if share < 0.3 else None, radius=2)


def memory_table(peaks: Sequence[dict[str, int]]) -> str:
    """Bytes by kind and rank; ranks with the same share a line."""
    kinds = [kind for kind in SHARES if any(peak.get(kind) for peak in peaks)]
    same = alike((rank, tuple(peak.get(kind, 0) for kind in kinds)) for rank, peak in enumerate(peaks))
    rows = [("rank", *kinds, "in all")]
    rows += [(span(ranks), *(f"{size:,}" for size in sizes), f"{sum(sizes):,}") for sizes, ranks in same.items()]
    return "bytes a rank held at most\n" + aligned(rows, right=range(1, len(kinds) + 2))


# --- slices -------------------------------------------------------------------------------


def _slices(strips: list[Layout], ranks: int, name: str) -> Canvas:
    sketch = Canvas()
    y = heading(sketch, f"who holds what in {name}", _legend(strips)) + 4
    names = list({n: None for strip in strips for n in strip.whole})
    whole = {n: size for strip in strips for n, size in strip.whole.items()}
    layer = {n: of for strip in strips for n, of in strip.layer.items()}
    labels = RankLabels(range(ranks), 12.5)
    left = labels.width + 14
    if len(strips) > 1:
        left += max(text_width(word, 10.5) for strip in strips for word in strip.kinds) + 10
    places = _places(names, whole, layer, left, WIDTH)
    y = _columns(sketch, names, layer, places, y)
    high = (34 if ranks <= 4 else 26 if ranks <= 8 else 12) if len(strips) == 1 else (28 if ranks <= 4 else 18)
    high = max(high, *(12 * len(strip.kinds) for strip in strips)) if len(strips) > 1 and ranks <= 4 else high
    for rank in range(ranks):
        top = y
        for strip in strips:
            if len(strips) > 1:
                step = min(12.0, high / len(strip.kinds))
                for k, word in enumerate(strip.kinds):
                    at = y + high / 2 + (k - (len(strip.kinds) - 1) / 2) * step
                    sketch.text(left - 8, at, word, 10.5 if step > 10 else 8.5, SOFT, align="right")
            for n in names:
                if n not in strip.whole:
                    continue
                x, wide = places[n]
                sketch.box(x, y, wide, high, TRAY, radius=0)
                for box in strip.held[rank].get(n, ()):
                    at = (x + box[0] * wide, y + box[1] * high, max(box[2] * wide, 1.0), max(box[3] * high, 1.0))
                    sketch.box(*at, colour(rank), radius=0)
                    if strip.replicated(rank, n, box):
                        _hatch(sketch, *at)
            y += high + 3
        middle = (top + y - 3) / 2
        labels.draw(sketch, labels.width, middle, rank)
        y += 9 if ranks <= 8 else 4
    return sketch


def _legend(strips: list[Layout]) -> str:
    replicas = any(
        strip.replicated(rank, n, box)
        for strip in strips for rank, held in enumerate(strip.held) for n, boxes in held.items() for box in boxes
    )  # fmt: skip
    words = ", ".join(word for strip in strips for word in strip.kinds)
    return f"{words}; area is bytes" + ("; hatched: another rank holds the same" if replicas else "")


def _places(names: list[str], whole: dict[str, int], layer: dict[str, str], left: float, right: float):
    """Left edge and width of each tensor: to scale, but never invisible."""
    gaps = sum(4 if layer[a] != layer[b] else 1 for a, b in zip(names, names[1:]))
    least, room = 2.5, right - left - gaps
    small = {n for n in names if whole[n] / sum(whole.values()) * room < least}
    scale = (room - least * len(small)) / max(1, sum(size for n, size in whole.items() if n not in small))
    places, x, last = {}, left, None
    for n in names:
        x += 0 if last is None else 4 if layer[n] != layer[last] else 1
        wide = least if n in small else whole[n] * scale
        places[n], last = (x, wide), n
        x += wide
    return places


def _columns(sketch: Canvas, names: list[str], layer: dict[str, str], places: dict, y: float) -> float:
    """The layers' names above, and below them those of the tensors that have room."""
    spans: dict[str, list[float]] = {}
    for n in names:
        x, wide = places[n]
        spans.setdefault(layer[n], [x, x])[1] = x + wide
    reached = -1.0
    for of, (x0, x1) in spans.items():
        wide = text_width(of, 11.5)
        if (x0 + x1) / 2 - wide / 2 > reached:
            sketch.text((x0 + x1) / 2, y + 2, of, 11.5)
            reached = (x0 + x1) / 2 + wide / 2 + 4
        sketch.line([(x0, y + 12), (x1, y + 12)], SOFT, 1)
    y += 16
    written = False
    for n in names:
        x, wide = places[n]
        parts = [part for part in n[len(layer[n]) :].strip(".").split(".") if part and part != "weight"]
        if parts and text_width(parts[-1], 10) <= wide:
            sketch.text(x + wide / 2, y + 5, parts[-1], 10, SOFT)
            written = True
    return y + (14 if written else 2)


def _hatch(sketch: Canvas, x: float, y: float, w: float, h: float, step: float = 6.0) -> None:
    """White lines at 45 degrees, those of neighbouring boxes in line with each other."""
    first = int((x + y) / step) + 1
    for k in range(first, int((x + w + y + h) / step) + 1):
        c = k * step  # the line where x + y = c, cut off at the box
        x0, x1 = max(x, c - y - h), min(x + w, c - y)
        if x1 - x0 > 0.5:
            sketch.line([(x0, c - x0), (x1, c - x1)], "#ffffff", 1.6, butt=True)
