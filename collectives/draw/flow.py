"""Where the data of a collective went: lines between the cells before and the cells after.

A line starts at the chunk whose data it is, in the color of its rank.  It shows whose data a rank ended up with,
not the route that the data took, which depends on the algorithm.
"""

from itertools import pairwise
from typing import NamedTuple

from ..log import provenance
from ..log.calls import Call
from ..log.collectives import of, shapes
from .canvas import FAINT, INK, PALETTE, REDUCED, SOFT, Area, Canvas, colour, text_width
from .cells import Grid

MAX_LINES = len(PALETTE) ** 2  # lines that a reader can distinguish


class Delivery(NamedTuple):
    """A line: a part of one rank's data that a rank ended up with."""

    source: int  # global ranks
    column: int | None  # of the source's chunk; None: it has one tensor
    target: int


def flow_width(call: Call) -> float:
    """Pixels between the cells before and the cells after."""
    if not provenance.agree(call):
        return max(text_width(e.how, 11.5, mono=True) for e in call) + 40
    sign = _sign(call)
    return 92 + 4 * len(call.group[:8]) + (40 if _sums_by_chunk(call) else 2 * _half_width(sign) if sign else 0)


def chunked(call: Call) -> bool:
    """Whether lines leave from below the chunks of a row, and so need room between the rows."""
    return shapes(call.op)[0] == "all" and provenance.agree(call) and len(call.group) ** 2 <= MAX_LINES


def caption(sketch: Canvas, call: Call, grid: Grid, x: float) -> None:
    """Write the meaning of the lines, if there are any, below the sheet; on a narrow page, a line per sentence."""
    if not provenance.agree(call) or not any(cell.slot.kind != "buffer" for row in grid.after for cell in row):
        return
    words, end, at = "Lines show whose data it is, not the route it takes.", sketch.height, x
    if sign := _sign(call):
        words = f"Lines show whose data goes in. {sign} marks where it's combined; no rank sits there."
    sketch.text(x, end + 14, words, 10.5, SOFT, align="left")
    for sentence in words.split(". "):
        wide = text_width(f"{sentence}. ", 10.5)
        sketch.narrow.append([Area(at - 4, end, wide + 4, sketch.height - end)])
        at += wide


def flow(sketch: Canvas, call: Call, grid: Grid, left: float, x0: float, x1: float, ys: list[float]) -> None:
    """Draw the lines.  left: where the cells before begin; x0, x1: the room for lines; ys: the middles of the rows."""
    y, sign = dict(zip(call.group, ys)), _sign(call)
    middle, centre = (x0 + x1) / 2, (ys[0] + ys[-1]) / 2
    start = _Starts(call, grid, left, x0, y)
    if not provenance.agree(call):
        for e in call:
            sketch.text(middle, y[e.rank], e.how, 11.5, mono=True)
    elif _sums_by_chunk(call):
        _sums(sketch, call, grid, start, x0, x1, y)
    elif sign:
        half, out = _half_width(sign), {e.rank: _tint(got) for e, got in zip(call, grid.after)}
        for rank in out:
            sketch.curve([(x0, y[rank]), (middle - half, centre)], colour(rank), 2)
        for rank, tint in out.items():
            if tint:
                _deliver(sketch, [(middle + half, centre)], (x1, y[rank]), tint)
        _pill(sketch, middle, centre, half, sign, any(out.values()))
    elif not (lines := _lines(call, grid)) or len(lines) > MAX_LINES:  # no data, or more than a reader can tell apart
        sketch.arrow((middle - 22, centre), (middle + 22, centre), INK if lines else FAINT, 2.2, dashed=not lines)
    else:
        fan = 0 if len({line.source for line in lines}) == 1 else 20 / len(ys)
        for line in lines:  # arriving lines keep the order of the rows
            end = y[line.target] + (call.group.index(line.source) - (len(ys) - 1) / 2) * fan
            wide = 2 if len(ys) < 6 else 1.4
            _deliver(sketch, start.of(line), (x1, end), colour(line.source), wide)


def _lines(call: Call, grid: Grid) -> list[Delivery]:
    """Every line, by source."""
    dealt = of(call.op).deals
    found = [
        Delivery(cell.slot.origin, call.group.index(e.rank) if dealt else cell.slot.column, e.rank)
        for e, row in zip(call, grid.after)
        for cell in row
        if cell.slot.kind == "data" and not cell.empty
    ]
    return sorted(found, key=lambda line: (line.source, line.target, line.column))


def _sums_by_chunk(call: Call) -> bool:
    chunks = shapes(call.op)[0] == "all" and not call.op.endswith("_coalesced") and len(call.group) ** 2 <= MAX_LINES
    return bool(call.events[0].reduce_op) and chunks


def _sums(sketch: Canvas, call: Call, grid: Grid, start: "_Starts", x0, x1, y: dict[int, float]) -> None:
    """A sum for each chunk, in the row of the rank that gets it."""
    sign = _sign(call) + " " * (call.events[0].reduce_op not in provenance.SIGNS)
    after = {e.rank: row for e, row in zip(call, grid.after)}
    names = [sign + provenance.letter(c) for c in range(len(call.group))]
    half = max(map(_half_width, names))
    x = x1 - half - 22
    for column, rank in enumerate(call.group):
        tint = _tint(after.get(rank, []))
        for e in call:
            points = start.of(Delivery(e.rank, column, rank))
            sketch.curve([*points, (x - half, y[rank])], colour(e.rank), 1.6 if len(y) < 6 else 1.1)
        if tint:
            _deliver(sketch, [(x + half, y[rank])], (x1, y[rank]), tint)
        _pill(sketch, x, y[rank], half, names[column], bool(tint), 9 if len(y) > 5 else 11)


def _tint(row) -> str:
    """The tint of the arrow to a rank: dark for a result that combines every rank, gray for one that is unknown."""
    kinds = {cell.slot.kind for cell in row}
    return REDUCED if "reduced" in kinds else SOFT if "unknown" in kinds else ""


def _pill(sketch: Canvas, x: float, y: float, half: float, words: str, full: bool, high: float = 13) -> None:
    fill, ink = (REDUCED, "#ffffff") if full else ("#ffffff", REDUCED)
    sketch.box(x - half, y - high, 2 * half, 2 * high, fill, REDUCED, dashed=not full, radius=high)
    sketch.text(x, y, words, min(13, high + 2), ink, bold=True)


class _Starts:
    """Where lines leave the cells before: from the side of a tensor, or down from a chunk and along below its row."""

    def __init__(self, call: Call, grid: Grid, left: float, x0: float, y: dict[int, float]) -> None:
        self.grid, self.left, self.x0, self.y = grid, left, x0, y
        self.rows = {e.rank: row for e, row in zip(call, grid.before)}
        gap = min((b - a for a, b in pairwise(sorted(y.values()))), default=grid.high + 16) - grid.high
        self.step = min(4.0, (gap - 8) / len(grid.lefts))  # pixels between lines that run along below a row
        self.below = chunked(call) and self.step > 1

    def of(self, line: Delivery) -> list[tuple[float, float]]:
        y, grid = self.y[line.source], self.grid
        columns = [cell.slot.column for cell in self.rows.get(line.source, [])]
        if len(columns) == 1:  # through the empty part of the row
            return [(self.left + grid.lefts[columns[0]] + grid.widths[columns[0]] + 1, y), (self.x0, y)]
        if not self.below or line.column not in columns:
            return [(self.x0, y)]
        cell = self.rows[line.source][columns.index(line.column)]
        x = self.left + grid.lefts[line.column] + (grid.wide(cell) if grid.longest else grid.widths[line.column]) / 2
        bottom = y + grid.high / 2
        lane = bottom + 3 + (line.column - min(columns) + 0.5) * self.step
        return [(x, bottom), (x, lane), (self.x0, lane)]


def _deliver(sketch: Canvas, points, end, tint: str, lw: float = 2) -> None:
    (x, y), head = end, 2.2 + lw
    sketch.curve([*points, (x - 2 * head, y)], tint, lw)
    sketch.polygon([(x, y), (x - 2.2 * head, y - head), (x - 2.2 * head, y + head)], tint)


def _sign(call: Call) -> str:
    """The sign for combining: 'Σ', 'max'; '' if nothing is combined."""
    op = call.events[0].reduce_op or ""
    return provenance.SIGNS.get(op, op.lower())


def _half_width(sign: str) -> float:
    return max(13, text_width(sign, 13, bold=True) / 2 + 8)
