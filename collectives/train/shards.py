"""Ownership: the slices of each tensor that each rank holds, and their bytes.

A rank is a row in its color; lengths and areas are bytes, to scale.  A tensor is drawn as the matrix it is, rows
from top to bottom.  Slices that only this rank holds are plain, slices that others hold, too, are hatched.
"""

from functools import partial
from typing import Sequence

from ..draw.canvas import INK, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, ink_on, pale, text_width
from ..draw.labels import RankLabels, legend
from ..format import align, span
from .layout import Layout, layouts
from .modules import layer_of
from .observer import STATES, Piece
from .placement import slices_table
from .view import View, extent, group_equal


class Owns(View):
    """The slices of each tensor that each rank holds.

    pieces: per rank.  peaks: per rank, bytes by kind, for the bars of memory; by default the pieces'.
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
        self.peaks = peaks or [
            {kind: sum(p.nbytes for p in held if p.kind == kind) for kind in SHARES} for held in pieces
        ]
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


# --- bars of memory -----------------------------------------------------------------------


SHARES = {"parameters": 1.0, "gradients": 0.7, "optimizer": 0.45, "activations": 0.2}  # of a rank's color, by kind


def _memory(peaks: Sequence[dict[str, int]], name: str) -> Canvas:
    sketch = Canvas()
    kinds = _kinds(peaks)
    totals = [sum(mine.get(kind, 0) for kind in kinds) for mine in peaks]
    words = f"the most bytes of each kind that a rank held: {extent(totals)} in total"
    y = heading(sketch, f"memory of {name}", words) + 4
    labels = RankLabels(range(len(peaks)), 12.5)
    left = labels.width + 14
    room = WIDTH - left - text_width(f"{max(totals):,} B", 11.5) - 10
    scale = room / max(max(totals), 1)
    legend(sketch, left, y, ((partial(_sample, share=SHARES[kind]), kind) for kind in kinds))
    y += 16
    high, pitch = (20, 26) if len(peaks) <= 4 else (14, 18)
    for rank, (mine, total) in enumerate(zip(peaks, totals)):
        labels.draw(sketch, left - 10, y + high / 2, rank)
        x = left
        for kind in kinds:
            if size := mine.get(kind, 0):
                fill, wide = pale(colour(rank), SHARES[kind]), size * scale
                sketch.box(x, y, max(wide, 1.5), high, fill, edge="#ffffff", radius=0, lw=0.8)
                if text_width(f"{size:,}", 11) + 6 <= wide:
                    sketch.text(x + wide / 2, y + high / 2, f"{size:,}", 11, ink_on(fill))
                x += wide
        sketch.text(x + 6, y + high / 2, f"{total:,} B", 11.5, SOFT, align="left")
        y += pitch
    return sketch


def _kinds(peaks: Sequence[dict[str, int]]) -> list[str]:
    """Those that any rank held."""
    return [kind for kind in SHARES if any(mine.get(kind) for mine in peaks)]


def _sample(sketch: Canvas, x: float, y: float, wide: float, high: float, share: float) -> None:
    sketch.box(x, y, wide, high, pale(INK, share), edge=SOFT if share < 0.3 else None, radius=2)


def memory_table(peaks: Sequence[dict[str, int]]) -> str:
    """Bytes by kind and rank; ranks with the same share a line."""
    kinds = _kinds(peaks)
    same = group_equal((rank, tuple(peak.get(kind, 0) for kind in kinds)) for rank, peak in enumerate(peaks))
    rows = [("rank", *kinds, "total")]
    rows += [(span(ranks), *(f"{size:,}" for size in sizes), f"{sum(sizes):,}") for sizes, ranks in same.items()]
    return "the most bytes that a rank held\n" + align(rows, right=range(1, len(kinds) + 2))


# --- slices -------------------------------------------------------------------------------


def _slices(strips: list[Layout], ranks: int, name: str) -> Canvas:
    sketch = Canvas()
    copies = [strip.copies() for strip in strips]
    labels = RankLabels(range(ranks), 12.5)
    left = labels.width + 14
    if len(strips) == 1:
        high = 34 if ranks <= 4 else 26 if ranks <= 8 else 12
    else:
        left += max(text_width(word, 10.5) for strip in strips for word in strip.kinds) + 10
        high = max(28, *(12 * len(strip.kinds) for strip in strips)) if ranks <= 4 else 18
    places = _places({n: size for strip in strips for n, size in strip.whole.items()}, left)
    words = f"{', '.join(word for strip in strips for word in strip.kinds)}; area shows bytes"
    if any(count > 1 for counts in copies for count in counts.values()):
        words += "; hatched: another rank holds the same"
    parts = {n: part for n in places if (part := _part(n))}
    named = {n: part for n, part in parts.items() if text_width(part, 10) <= places[n][1]}
    if narrow := [part for part in dict.fromkeys(parts.values()) if part not in named.values()]:
        words += f"; narrow: {', '.join(narrow)}"
    y = heading(sketch, f"who holds what in {name}", words) + 4
    y = _columns(sketch, places, named, y)
    for rank in range(ranks):
        top = y
        for strip, counts in zip(strips, copies):
            if len(strips) > 1:
                step = min(12.0, high / len(strip.kinds))
                for k, word in enumerate(strip.kinds):
                    at = y + high / 2 + (k - (len(strip.kinds) - 1) / 2) * step
                    sketch.text(left - 8, at, word, 10.5 if step > 10 else 8.5, SOFT, align="right")
            for n, (x, wide) in places.items():
                if n not in strip.whole:
                    continue
                sketch.box(x, y, wide, high, TRAY, radius=0)
                for box in strip.held[rank].get(n, ()):
                    at = (x + box[0] * wide, y + box[1] * high, max(box[2] * wide, 1.0), max(box[3] * high, 1.0))
                    sketch.box(*at, colour(rank), radius=0)
                    if counts[n, box] > 1:
                        _hatch(sketch, *at)
            y += high + 3
        labels.draw(sketch, labels.width, (top + y - 3) / 2, rank)
        y += 9 if ranks <= 8 else 4
    return sketch


def _places(whole: dict[str, int], left: float) -> dict[str, tuple[float, float]]:
    """Left edge and width of each tensor, given its bytes: to scale, but never invisible."""
    names = list(whole)
    gaps = [4 if layer_of(a) != layer_of(b) else 1 for a, b in zip(names, names[1:])]
    least, room = 2.5, WIDTH - left - sum(gaps)
    small = {n for n in names if whole[n] / sum(whole.values()) * room < least}
    scale = (room - least * len(small)) / max(1, sum(size for n, size in whole.items() if n not in small))
    places = {}
    for n, gap in zip(names, [*gaps, 0]):
        wide = least if n in small else whole[n] * scale
        places[n] = left, wide
        left = left + wide + gap
    return places


def _part(name: str) -> str:
    """'q' of 'block0.attention.q.weight'; '' of a layer, and of its only weight."""
    parts = [part for part in name[len(layer_of(name)) :].split(".") if part not in ("", "weight")]
    return parts[-1] if parts else ""


def _columns(sketch: Canvas, places: dict[str, tuple[float, float]], named: dict[str, str], y: float) -> float:
    """The layers' names above, and below them tensors'.  named: the tensors with room for theirs."""
    spans: dict[str, tuple[float, float]] = {}
    for n, (x, wide) in places.items():
        begin, _ = spans.get(layer_of(n), (x, x))
        spans[layer_of(n)] = begin, x + wide
    reached = -1.0
    for layer, (x0, x1) in spans.items():
        wide = text_width(layer, 11.5)
        if (x0 + x1) / 2 - wide / 2 > reached:
            sketch.text((x0 + x1) / 2, y + 2, layer, 11.5)
            reached = (x0 + x1) / 2 + wide / 2 + 4
        sketch.line([(x0, y + 12), (x1, y + 12)], SOFT, 1)
    y += 16
    for n, part in named.items():
        x, wide = places[n]
        sketch.text(x + wide / 2, y + 5, part, 10, SOFT)
    return y + (14 if named else 2)


def _hatch(sketch: Canvas, x: float, y: float, w: float, h: float) -> None:
    """Draw white lines at 45 degrees, aligned between neighboring boxes."""
    for k in range(int((x + y) / 6) + 1, int((x + w + y + h) / 6) + 1):
        c = 6.0 * k  # the line where x + y = c, cut off at the box
        x0, x1 = max(x, c - y - h), min(x + w, c - y)
        if x1 - x0 > 0.5:
            sketch.line([(x0, c - x0), (x1, c - x1)], "#ffffff", 1.6, butt=True)
