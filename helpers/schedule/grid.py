"""What the ranks hold of every chunk, before a step or before each: a cell a chunk, a row a rank.

Cells are those of draw/chunks.py.  What goes to the next row is an arrow.  What would have to pass over other cells is
outlined where it is sent, and told at the right where it arrives.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..draw.canvas import INK, SOFT, WIDTH, Canvas, colour, heading, rank_label, text_width
from ..draw.chunks import draw_chunk
from .model import BaseSchedule, Holdings, Message, Parts, chunk_name
from .text import said_chunks, title

SIDE_BY_SIDE = 5  # up to so many ranks, all steps stand side by side


class _Arrow(NamedTuple):
    source: int
    target: int
    chunk: int
    adds: bool
    parts: Parts


def grids(s: BaseSchedule, states: list[Holdings], step: int | None) -> list[Canvas]:
    shown = range(len(states)) if step is None else [min(step, len(states)) - 1]
    sketches = []
    for k in shown:
        sketch = Canvas()
        last = k == len(s.steps)
        messages = [] if last else s.steps[k]
        words = "the end" if last else f"step {k + 1} of {len(s.steps)}"
        count = "" if last else f"{len(messages)} message{'s' * (len(messages) != 1)}, {_share(s, messages)}"
        if step is not None:
            y = heading(sketch, f"{s.collective} by {s.name}", f"{words}{', ' * (not last)}{count}")
        else:
            sketch.text(0, 8, words, 13, align="left", bold=True)
            sketch.text(0, 24, count, 10.5, SOFT, align="left")
            y = 38
        _grid(sketch, s, states[k], messages, y)
        sketches.append(sketch)
    if step is None:
        top = Canvas()
        heading(top, f"{s.collective} by {s.name}", title(s).partition(": ")[0].rpartition(", ")[2] + ": what every rank "
                "holds before each step, and what it sends")  # fmt: skip
        top.reach(WIDTH - 1, 0)
        sketches.insert(0, top)
    return sketches


def _share(s: BaseSchedule, messages: list[Message]) -> str:
    loads = {len(m.chunks) for m in messages}
    if len(loads) != 1:
        return f"1/{s.cuts} S a chunk"
    load = loads.pop()
    common = math.gcd(load, s.cuts)
    return "S each" if load == s.cuts else f"{load // common}/{s.cuts // common} S each"


def _grid(sketch: Canvas, s: BaseSchedule, held: Holdings, messages: list[Message], top: float) -> None:
    n, columns = s.world_size, s.chunks
    wide, high, pitch = (40, 30, 48) if n <= SIDE_BY_SIDE and columns <= 8 else (34, 24, 40)
    gutter = 6
    root = s.root if s.rooted else None
    left = max(text_width(rank_label(rank, rank == root), 12, bold=rank == root) for rank in range(n)) + 14
    top += 16 if _closes(n, messages) else 2

    def x(chunk: int) -> float:
        return left + chunk * (wide + gutter)

    def y(rank: int) -> float:
        return top + rank * pitch

    for rank in range(n):
        label = rank_label(rank, rank == root)
        sketch.text(left - 12, y(rank) + high / 2, label, 12, align="right", bold=rank == root)
        sketch.box(left - 8, y(rank), 3, high, colour(rank), radius=1.5)
        for chunk in range(columns):
            parts = held[rank].get(chunk, 0)
            draw_chunk(sketch, x(chunk), y(rank), wide, high, chunk_name(s, chunk), parts, n, n <= SIDE_BY_SIDE)
    arrows = [_Arrow(m.source, m.target, c, m.adds, held[m.source].get(c, 0)) for m in messages for c in m.chunks]
    beside: dict[tuple[int, int], list[_Arrow]] = {}  # (source, target): what would have to pass over other cells
    for a in arrows:
        tint = INK if not a.parts or a.parts & a.parts - 1 else colour(a.parts.bit_length() - 1)
        tint = INK if a.adds else tint
        middle, hop = x(a.chunk) + wide / 2, a.target - a.source
        if wraps(n, a, messages):
            down = hop < 0  # from the last row out at the bottom, in again at the top
            out, into = (y(a.source) + high, y(a.target)) if down else (y(a.source), y(a.target) + high)
            sign = 1 if down else -1
            sketch.line([(middle, out + sign), (middle, out + 14 * sign)], tint, 2, dashed=True)
            sketch.arrow((middle, into - 14 * sign), (middle, into - sign), tint, 2, dashed=True, head=8)
        elif abs(hop) == 1 and not any(
            b.chunk == a.chunk and (b.source, b.target) == (a.target, a.source) for b in arrows
        ):
            start, end = (y(a.source) + high, y(a.target)) if hop > 0 else (y(a.source), y(a.target) + high)
            sketch.arrow((middle, start), (middle, end - math.copysign(1, hop)), tint, 2, head=8)
        else:
            beside.setdefault((a.source, a.target), []).append(a)
            sketch.box(x(a.chunk) - 1.5, y(a.source) - 1.5, wide + 3, high + 3, None, INK, lw=2)
    _brackets(sketch, s, beside, x(columns) + 2, [y(rank) + high / 2 for rank in range(n)])
    sketch.reach(x(columns), y(n - 1) + high + (16 if _closes(n, messages) else 2))


def _brackets(sketch: Canvas, s: BaseSchedule, beside: dict, left: float, middles: list[float]) -> None:
    """To the right of the rows: from whom to whom, and at the row where it arrives, what; + is added."""
    columns: list[list[tuple[int, int]]] = []  # the (first, last) rows of the brackets that share a place
    placed: dict[tuple[int, int], int] = {}
    for rows in sorted({(min(ends), max(ends)) for ends in beside}, key=lambda rows: (rows[1] - rows[0], rows)):
        free = next((k for k, c in enumerate(columns) if all(rows[0] > b or rows[1] < a for a, b in c)), len(columns))
        columns[free:] = columns[free:] or [[]]
        columns[free].append(rows)
        placed[rows] = free
    widest = [0.0] * len(columns)
    words = {
        ends: "+" * found[0].adds + said_chunks(s, tuple(a.chunk for a in found)) for ends, found in beside.items()
    }
    for ends, said in words.items():
        k = placed[min(ends), max(ends)]
        widest[k] = max(widest[k], text_width(said, 11))
    for (source, target), said in words.items():
        k = placed[min(source, target), max(source, target)]
        x = left + sum(wide + 26 for wide in widest[:k])
        line = x + widest[k] + 16
        back = (target, source) in beside
        sketch.line([(line, middles[source]), (line, middles[target])], SOFT, 1.6)
        if not back:
            sketch.line([(line - 10, middles[source]), (line, middles[source])], SOFT, 1.6)
        sketch.arrow((line, middles[target]), (x + widest[k] + 4, middles[target]), SOFT, 1.6, head=7)
        sketch.text(x, middles[target], said, 11, align="left")


def wraps(n: int, a, messages: list[Message]) -> bool:
    """Between the first and the last row, while others go one row on the same way round: the ring closes."""
    if n < 3 or abs(a.target - a.source) != n - 1:
        return False
    on = 1 if a.target < a.source else -1
    return any(m.target - m.source == on for m in messages)


def _closes(n: int, messages: list[Message]) -> bool:
    return any(wraps(n, m, messages) for m in messages)
