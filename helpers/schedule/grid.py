"""What the ranks hold of every chunk, before a step or before each: a cell a chunk, a row a rank.

A cell in a rank's colour holds that rank's part of a chunk; a white one some parts of a sum, a
stripe for each rank; a dark one the whole sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..canvas import FAINT, INK, REDUCED, SOFT, WIDTH, Sketch, colour, heading, ink_on, text_width
from .model import Holdings, Message, Parts, Schedule, chunk_name
from .text import title

SIDE_BY_SIDE = 5  # up to so many ranks, all steps stand side by side


class _Arrow(NamedTuple):
    source: int
    target: int
    chunk: int
    adds: bool
    parts: Parts


def grids(s: Schedule, states: list[Holdings], step: int | None) -> list[Sketch]:
    shown = range(len(states)) if step is None else [min(step, len(states)) - 1]
    sketches = []
    for k in shown:
        sketch = Sketch()
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
        top = Sketch()
        heading(top, f"{s.collective} by {s.name}", title(s).partition(": ")[0].rpartition(", ")[2] + ": what every rank "
                "holds before each step, and what it sends")  # fmt: skip
        top.reach(WIDTH - 1, 0)
        sketches.insert(0, top)
    return sketches


def _share(s: Schedule, messages: list[Message]) -> str:
    loads = {len(m.chunks) for m in messages}
    if len(loads) != 1:
        return f"1/{s.cuts} S a chunk"
    load = loads.pop()
    common = math.gcd(load, s.cuts)
    return "S each" if load == s.cuts else f"{load // common}/{s.cuts // common} S each"


def _grid(sketch: Sketch, s: Schedule, held: Holdings, messages: list[Message], top: float) -> None:
    n, columns = s.world_size, s.chunks
    wide, high, pitch = (40, 30, 48) if n <= SIDE_BY_SIDE and columns <= 8 else (34, 24, 40)
    gutter = 6
    left = text_width(f"rank {n - 1}", 12) + 14
    top += 16 if _closes(n, messages) else 2

    def x(chunk: int) -> float:
        return left + chunk * (wide + gutter)

    def y(rank: int) -> float:
        return top + rank * pitch

    for rank in range(n):
        star = s.rooted and rank == s.root
        sketch.text(left - 12, y(rank) + high / 2, f"{'★ ' * star}rank {rank}", 12, align="right", bold=star)
        sketch.box(left - 8, y(rank), 3, high, colour(rank), radius=1.5)
        for chunk in range(columns):
            _cell(sketch, s, x(chunk), y(rank), wide, high, chunk, held[rank].get(chunk, 0))
    arrows = [_Arrow(m.source, m.target, c, m.adds, held[m.source].get(c, 0)) for m in messages for c in m.chunks]
    taken: list[tuple[int, bool, int, int, int]] = []  # chunk, down, first row, last row, place
    for a in arrows:
        tint = INK if not a.parts or a.parts & a.parts - 1 else colour(a.parts.bit_length() - 1)
        tint = INK if a.adds or tint == "#94a4a2" else tint
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
        else:  # past the cells: down on their right, up on their left
            first, last = sorted((a.source, a.target))
            place = 0
            while any(t[:2] == (a.chunk, hop > 0) and t[4] == place and first < t[3] and t[2] < last for t in taken):
                place += 1
            taken.append((a.chunk, hop > 0, first, last, place))
            side = x(a.chunk) + (wide - 4 - 5 * place if hop > 0 else 4 + 5 * place)
            start, end = (y(a.source) + high, y(a.target)) if hop > 0 else (y(a.source), y(a.target) + high)
            points = [(side, start - math.copysign(3, hop)), (side, end - math.copysign(7, hop))]
            sketch.line(points, "#ffffff", 4, butt=True)
            sketch.arrow(points[0], (side, end - math.copysign(1, hop)), tint, 1.8, head=8)
    sketch.reach(x(columns), y(n - 1) + high + (16 if _closes(n, messages) else 2))


def wraps(n: int, a, messages: list[Message]) -> bool:
    """Between the first and the last row, while others go one row on the same way round: the ring closes."""
    if n < 3 or abs(a.target - a.source) != n - 1:
        return False
    on = 1 if a.target < a.source else -1
    return any(m.target - m.source == on for m in messages)


def _closes(n: int, messages: list[Message]) -> bool:
    return any(wraps(n, m, messages) for m in messages)


def _cell(sketch: Sketch, s: Schedule, x, y, wide, high, chunk: int, parts: Parts) -> None:
    n, name = s.world_size, chunk_name(s, chunk)
    count = parts.bit_count()
    if not parts:
        sketch.box(x, y, wide, high, None, FAINT, dashed=True)
    elif count == 1:
        rank = parts.bit_length() - 1
        tint = colour(rank)
        sketch.box(x, y, wide, high, tint)
        words = name + (str(rank).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")) if n <= SIDE_BY_SIDE else "")
        sketch.text(x + wide / 2, y + high / 2, words, 13 if high > 24 else 12, ink_on(tint))
    elif count == n:
        sketch.box(x, y, wide, high, REDUCED)
        sketch.text(x + wide / 2, y + high / 2, f"Σ{name}", 13 if high > 24 else 12, "#ffffff", bold=True)
    else:
        sketch.box(x, y, wide, high, "#ffffff", SOFT)
        sketch.text(x + wide / 2, y + (high - 7) / 2, f"{name} {count}/{n}", 10.5 if high > 24 else 9.5)
        stripe = (wide - 4) / n  # every rank's stripe has its own place
        for rank in range(n):
            if parts >> rank & 1:
                sketch.box(x + 2 + rank * stripe, y + high - 8, stripe, 6, colour(rank), radius=0)
