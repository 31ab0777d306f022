"""Ownership: which rank holds which slice of what, and how many bytes that is.

A rank is a row in its colour; lengths and areas are bytes, to scale.  A tensor is drawn as the matrix it is, rows
from top to bottom.  What only this rank holds is plain, what others hold as well is hatched.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterable, NamedTuple, Sequence

from ..draw.canvas import INK, SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, ink_on, text_width
from ..format import span
from .modules import layer_of
from .observer import Piece
from .view import View, said_layers, spread, table, tinted

MAX_TENSORS = 30  # more are drawn as one box a layer
SHOWN = ("parameters", "gradients", "optimizer", "activations")  # in the bars of memory
HOLDERS = ("parameters", "gradients", "optimizer")  # whose slices are drawn


class Owns(View):
    """Who holds which slice of what.

    pieces: per rank.  peaks: per rank, bytes by kind, for the bars of memory; by default those of the pieces.
    kinds: which of HOLDERS to draw; by default all that there are.  Kinds that are cut alike share a strip.
    Raises ValueError if no rank holds anything.
    """

    def __init__(
        self,
        pieces: Sequence[Sequence[Piece]],
        peaks: Sequence[dict[str, int]] | None = None,
        kinds: Sequence[str] = (),
        name: str = "fn",
    ) -> None:
        self.pieces, self.kinds, self.name = pieces, kinds or HOLDERS, name
        self.peaks = peaks or [_summed(mine) for mine in pieces]
        self.strips = _strips(pieces, self.kinds)
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
    found: dict[str, int] = defaultdict(int)
    for piece in pieces:
        found[piece.kind] += piece.nbytes
    return found


# --- bars of memory -----------------------------------------------------------------------


SHARES = {"parameters": 1.0, "gradients": 0.7, "optimizer": 0.45, "activations": 0.2}


def _memory(peaks: Sequence[dict[str, int]], name: str) -> Canvas:
    sketch = Canvas()
    kinds = [kind for kind in SHOWN if any(mine.get(kind) for mine in peaks)]
    totals = [sum(mine.get(kind, 0) for kind in kinds) for mine in peaks]
    y = (
        heading(sketch, f"memory of {name}", f"the most bytes of each kind that a rank held: {spread(totals)} in all")
        + 4
    )
    left = text_width(f"rank {len(peaks) - 1}", 12.5) + 14
    room = WIDTH - left - text_width(f"{max(totals):,} B", 11.5) - 10
    scale = room / max(max(totals), 1)
    x = left
    for kind in kinds:  # the legend
        sketch.box(x, y - 5, 10, 10, tinted(INK, SHARES[kind]), edge=SOFT if SHARES[kind] < 0.3 else None, radius=2)
        sketch.text(x + 15, y, kind, 11, SOFT, align="left")
        x += text_width(kind, 11) + 38
    y += 16
    high, pitch = (20, 26) if len(peaks) <= 4 else (14, 18)
    for rank, mine in enumerate(peaks):
        sketch.text(left - 10, y + high / 2, f"rank {rank}", 12.5, align="right")
        x = left
        for kind in kinds:
            size = mine.get(kind, 0)
            fill, wide = tinted(colour(rank), SHARES[kind]), size * scale
            if size:
                sketch.box(x, y, max(wide, 1.5), high, fill, edge="#ffffff", radius=0, lw=0.8)
                words = f"{size:,}"
                if text_width(words, 11) + 6 <= wide:
                    sketch.text(x + wide / 2, y + high / 2, words, 11, ink_on(fill))
            x += wide
        sketch.text(x + 6, y + high / 2, f"{totals[rank]:,} B", 11.5, SOFT, align="left")
        y += pitch
    return sketch


def memory_table(peaks: Sequence[dict[str, int]]) -> str:
    """Bytes by kind and rank; ranks with the same share a line."""
    kinds = [kind for kind in SHOWN if any(mine.get(kind) for mine in peaks)]
    alike: dict[tuple, list[int]] = defaultdict(list)
    for rank, mine in enumerate(peaks):
        alike[tuple(mine.get(kind, 0) for kind in kinds)].append(rank)
    rows = [("rank", *kinds, "in all")]
    rows += [(span(ranks), *(f"{size:,}" for size in sizes), f"{sum(sizes):,}") for sizes, ranks in alike.items()]
    return "bytes a rank held at most\n" + table(rows, right=range(1, len(kinds) + 2))


# --- slices -------------------------------------------------------------------------------

Box = tuple[float, float, float, float]  # left, top, width, height, as shares of the tensor


class Strip(NamedTuple):
    """Kinds that are cut alike."""

    kinds: list[str]  # "optimizer x 2" for two states
    held: list[dict[str, list[Box]]]  # per rank: tensor or layer -> the boxes it holds
    whole: dict[str, int]  # tensor or layer -> bytes of the whole
    layer: dict[str, str]  # tensor or layer -> layer


def _strips(pieces: Sequence[Sequence[Piece]], kinds: Sequence[str]) -> list[Strip]:
    names = {p.name for mine in pieces for p in mine}
    by_layer = len(names) > MAX_TENSORS
    strips: list[Strip] = []
    for kind in kinds:
        held: list[dict[str, list[Box]]] = [defaultdict(list) for _ in pieces]
        whole: dict[str, int] = {}
        states = 0
        for rank, mine in enumerate(pieces):
            made: dict[str, int] = defaultdict(int)
            for p in mine:
                if p.kind == kind:
                    made[p.name] += 1
                    states = max(states, made[p.name])
                    box = _box(p, rank, len(pieces))
                    whole[p.name] = _whole_bytes(p)
                    if box[2] and box[3] and box not in held[rank][p.name]:
                        held[rank][p.name].append(box)
        if not whole:
            continue
        word = f"{kind} × {states}" if states > 1 else kind
        alike = next((s for s in strips if s.held == held and s.whole == whole), None)
        if alike:
            alike.kinds.append(word)
        else:
            strips.append(Strip([word], held, whole, {name: layer_of(name) for name in whole}))
    return [_by_layer(strip) if by_layer else strip for strip in strips]


def _whole_bytes(p: Piece) -> int:
    elements, mine = 1, 1
    for n in p.whole:
        elements *= n
    for n in p.shape:
        mine *= n
    return elements * (p.nbytes // mine) if mine else elements * 4


def _box(p: Piece, rank: int, ranks: int) -> Box:
    """Rows of the matrix downwards, columns to the right; further dimensions count as columns."""
    start = p.start
    if start is None or len(p.shape) != len(p.whole):  # not known where: in the order of the ranks
        size = 1.0
        for n in p.shape:
            size *= n
        for n in p.whole:
            size /= max(n, 1)
        return (0.0, min(rank * size, 1 - min(size, 1.0)), 1.0, min(size, 1.0))
    if not p.whole:
        return (0.0, 0.0, 1.0, 1.0)
    top, high = start[0] / max(p.whole[0], 1), p.shape[0] / max(p.whole[0], 1)
    left, wide = 0.0, 1.0
    for at, size, whole in zip(start[1:], p.shape[1:], p.whole[1:]):
        left, wide = left + wide * at / max(whole, 1), wide * size / max(whole, 1)
    return (left, top, wide, high)


WHOLE: Box = (0.0, 0.0, 1.0, 1.0)  # of a tensor


def _by_layer(strip: Strip) -> Strip:
    """A box a layer: where its tensors are cut alike the same box, else one of the right area.

    Where a rank has some tensors of a layer whole and others not at all, experts say, each has its stripe of the box.
    """
    whole: dict[str, int] = defaultdict(int)
    before: dict[str, int] = {}  # name -> bytes of its layer above it
    for name, size in strip.whole.items():
        before[name] = whole[strip.layer[name]]
        whole[strip.layer[name]] += size
    held: list[dict[str, list[Box]]] = []
    for mine in strip.held:
        of: dict[str, list[tuple[Box, int]]] = defaultdict(list)
        for name, boxes in mine.items():
            of[strip.layer[name]] += [(box, strip.whole[name]) for box in boxes]
        held.append({})
        for layer, boxes in of.items():
            distinct = {box for box, _ in boxes}
            if len(distinct) == 1 and sum(size for _, size in boxes) == whole[layer]:
                held[-1][layer] = [boxes[0][0]]
            elif distinct == {WHOLE}:
                stripes = (
                    (before[n] / whole[layer], strip.whole[n] / whole[layer]) for n in mine if strip.layer[n] == layer
                )
                held[-1][layer] = [(0.0, top, 1.0, high) for top, high in stripes]
            else:
                share = sum(box[2] * box[3] * size for box, size in boxes) / whole[layer]
                top = sum(max(box[0], box[1]) * size for box, size in boxes) / whole[layer]
                held[-1][layer] = [(0.0, min(top, 1 - share), 1.0, share)]
    return Strip(strip.kinds, held, dict(whole), {layer: layer for layer in whole})


def _slices(strips: list[Strip], ranks: int, name: str) -> Canvas:
    sketch = Canvas()
    y = heading(sketch, f"who holds what in {name}", _legend(strips)) + 4
    names = list({n: None for strip in strips for n in strip.whole})
    whole = {n: size for strip in strips for n, size in strip.whole.items()}
    layer = {n: of for strip in strips for n, of in strip.layer.items()}
    left = text_width(f"rank {ranks - 1}", 12.5) + 14
    if len(strips) > 1:
        left += max(text_width(word, 10.5) for strip in strips for word in strip.kinds) + 10
    places = _places(names, whole, layer, left, WIDTH)
    y = _columns(sketch, names, layer, places, y)
    high = (34 if ranks <= 4 else 26 if ranks <= 8 else 12) if len(strips) == 1 else (28 if ranks <= 4 else 18)
    high = max(high, *(12 * len(strip.kinds) for strip in strips)) if len(strips) > 1 and ranks <= 4 else high
    for rank in range(ranks):
        top = y
        for strip in strips:
            shared = [others for r, others in enumerate(strip.held) if r != rank]
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
                    if any(box in other.get(n, ()) for other in shared):
                        _hatch(sketch, *at)
            y += high + 3
        middle = (top + y - 3) / 2
        label = text_width(f"rank {ranks - 1}", 12.5)
        sketch.text(label, middle, f"rank {rank}", 12.5, align="right")
        y += 9 if ranks <= 8 else 4
    return sketch


def _legend(strips: list[Strip]) -> str:
    replicas = any(
        box in other.get(n, ())
        for strip in strips for r, mine in enumerate(strip.held) for n, boxes in mine.items() for box in boxes
        for other in strip.held[r + 1 :]
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


# --- the same in words --------------------------------------------------------------------


def slices_table(pieces: Sequence[Sequence[Piece]], kinds: Sequence[str] = HOLDERS) -> str:
    """A line for each tensor, layers alike together: its shape, and how the ranks share it."""
    kinds = [kind for kind in kinds if any(p.kind == kind for mine in pieces for p in mine)]
    shape: dict[str, tuple[int, ...]] = {}
    held: dict[tuple[str, str], list[tuple[int, Piece]]] = defaultdict(list)
    for rank, mine in enumerate(pieces):
        for p in mine:
            shape.setdefault(p.name, p.whole)
            if (rank, p) not in held[p.name, p.kind]:
                held[p.name, p.kind].append((rank, p))
    alike = all(len({cut(held[name, kind], len(pieces)) for kind in kinds}) == 1 for name in shape)
    heads = [", ".join(kinds)] if alike else kinds
    kinds = kinds[:1] if alike else kinds
    lines: dict[tuple, list[str]] = defaultdict(list)
    for name in shape:
        layer = layer_of(name)
        cuts = tuple(cut(held[name, kind], len(pieces)) for kind in kinds)
        lines[(name[len(layer) :].strip("."), str(list(shape[name])), *cuts)].append(layer)
    # A layer whose tensors are all cut alike is one line.
    of: dict[str, list[tuple]] = defaultdict(list)
    for line, layers in lines.items():
        for layer in layers:
            of[layer].append(line)
    merged: dict[tuple, list[str]] = defaultdict(list)
    for layer, mine in of.items():
        if len(mine) > 1 and len({line[2:] for line in mine}) == 1:
            mine = [(f"all {len(mine)}", "", *mine[0][2:])]
        for line in mine:
            merged[line].append(layer)
    rows = [("layer", "tensor", "shape", *heads)]
    last = ""
    for (tensor, *rest), layers in merged.items():
        word = said_layers(layers)
        rows.append(("" if word == last else word, tensor, *rest))
        last = word
    return table(rows)


def cut(held: Sequence[tuple[int, Piece]], ranks: int) -> str:
    """How ranks share one tensor, in words: 'whole on each', 'rows in 4', 'columns in 2, each on 2 ranks'.

    held: (rank, piece), for every rank that holds a part.
    """
    held = [(rank, p) for rank, p in held if p.nbytes]
    if not held:
        return "-"
    if any(p.partial for _, p in held):
        return f"addends on {span([rank for rank, _ in held])}"
    owners: dict[tuple, list[int]] = defaultdict(list)
    for rank, p in held:
        if rank not in owners[p.start, p.shape]:
            owners[p.start, p.shape].append(rank)
    if len(owners) == 1:
        ((start, shape), on) = next(iter(owners.items()))
        if shape == held[0][1].whole:
            return "whole on each" if len(on) == ranks else f"whole on {span(on)}"
    whole = held[0][1].whole
    dims = {
        d for start, shape in owners for d in range(len(whole)) if len(shape) == len(whole) and shape[d] != whole[d]
    }
    if len(dims) == 1 and all(start is not None for start, _ in owners):
        d = dims.pop()
        word = "elements" if len(whole) == 1 else ("rows", "columns")[d] if d < 2 else f"dimension {d}"
        inorder = sorted(owners.items(), key=lambda item: item[0][0][d])
        sizes = [shape[d] for (_, shape), _ in inorder]
        copies = {len(on) for on in owners.values()}
        words = f"{word} in {len(sizes)}" + (f" ({', '.join(map(str, sizes))})" if len(set(sizes)) > 1 else "")
        if copies == {1} and [on[0] for _, on in inorder] != sorted(on[0] for _, on in inorder):
            words += f": ranks {', '.join(str(on[0]) for _, on in inorder)}"
        if sum(sizes) != whole[d]:
            words += f", {sum(sizes)} of {whole[d]} held"
        return words if copies == {1} else f"{words}, each on {max(copies)} ranks"
    parts = (
        f"{span(on)}: {_slice(start, shape, whole)}"
        for (start, shape), on in sorted(owners.items(), key=lambda i: i[1])
    )
    return "; ".join(parts)


def _slice(start, shape, whole) -> str:
    if start is None or len(shape) != len(whole):
        return str(list(shape))
    marks = (":" if n == w else f"{a}:{a + n}" for a, n, w in zip(start, shape, whole))
    return f"[{', '.join(marks)}]"
