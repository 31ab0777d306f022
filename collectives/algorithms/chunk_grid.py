"""The ranks' parts of every chunk, before a step or before each: a cell per chunk, a row per rank.

Cells are drawn by draw/grid.py.  A message to the next row is an arrow.  One that would have to pass over other cells
is outlined where it is sent, and named at the right where it arrives.
"""

from collections import defaultdict
from fractions import Fraction
from itertools import count
from typing import Iterable

from ..draw.canvas import INK, REDUCED, SOFT, WIDTH, Canvas, colour, heading, text_width
from ..draw.grid import HeldChunk, Places, draw_chunks
from ..draw.labels import RankLabels
from .schedule import Holdings, Message, Parts, Schedule, chunk_name, said_chunks, title

SIDE_BY_SIDE = 5  # up to this many ranks, all steps are side by side


def parts_tint(parts: Parts, ranks: int, some: str = INK) -> str:
    """The color of the only rank in these parts, dark for all ranks; `some` for any others."""
    count = parts.bit_count()
    return REDUCED if count == ranks > 1 else colour(parts.bit_length() - 1) if count == 1 else some


def grids(s: Schedule, states: list[Holdings], step: int | None) -> list[Canvas]:
    name, sketches = f"{s.collective} by {s.name}", []
    if step is None:
        sketches.append(top := Canvas())
        ranks = title(s).partition(": ")[0].rpartition(", ")[2]
        heading(top, name, f"{ranks}: what every rank holds before each step, and what it sends")
        top.reach(WIDTH - 1, 0)
    for k in range(len(states)) if step is None else [min(step, len(states)) - 1]:
        sketches.append(sketch := Canvas())
        words, told, messages = "the end", "", []
        if k < len(s.steps):
            messages = s.steps[k]
            words = f"step {k + 1} of {len(s.steps)}"
            told = f"{len(messages)} message{'s' * (len(messages) != 1)}, {_share(s, messages)}"
        if step is None:
            sketch.text(0, 8, words, 13, align="left", bold=True)
            sketch.text(0, 24, told, 10.5, SOFT, align="left")
        y = 38 if step is None else heading(sketch, name, ", ".join(filter(None, (words, told))))
        _grid(sketch, s, states[k], messages, y)
    return sketches


def _share(s: Schedule, messages: list[Message]) -> str:
    loads = {len(m.chunks) for m in messages}
    if len(loads) != 1:
        return f"1/{s.cuts} S per chunk"
    share = Fraction(loads.pop(), s.cuts)
    return "S each" if share == 1 else f"{share} S each"


def _grid(sketch: Canvas, s: Schedule, held: Holdings, messages: list[Message], top: float) -> None:
    n, columns = s.world_size, s.chunks
    wide, high, pitch = (40, 30, 48) if n <= SIDE_BY_SIDE and columns <= 8 else (34, 24, 40)
    root = s.root if s.rooted else None
    labels = RankLabels(range(n), 12, [root])
    left = labels.width + 14
    closes = 16 if any(wraps(n, m, messages) for m in messages) else 2  # room above and below
    at = Places(left, top + closes, wide, high, wide + 6, pitch)
    for rank in range(n):
        labels.draw(sketch, left - 12, at.middle(rank), rank, stripe=high)
    cells = [HeldChunk(r, c, chunk_name(s, c), held[r].get(c, 0)) for r in range(n) for c in range(columns)]
    draw_chunks(sketch, at, cells, n, owner=n <= SIDE_BY_SIDE)
    beside: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)  # (source, target) -> (chunk, added?)
    for m, c in ((m, c) for m in messages for c in m.chunks):
        way = _way(n, m, c, messages)
        if way == "beside":
            beside[m.source, m.target].append((c, m.adds))
            sketch.box(at.x(c) - 1.5, at.y(m.source) - 1.5, wide + 3, high + 3, None, INK, lw=2)
            continue
        parts = held[m.source].get(c, 0)
        tint = INK if m.adds or parts.bit_count() != 1 else colour(parts.bit_length() - 1)
        middle, sign = at.x(c) + wide / 2, 1 if (m.target > m.source) == (way == "next") else -1
        out, into = at.middle(m.source) + sign * high / 2, at.middle(m.target) - sign * high / 2
        if way == "around":
            sketch.line([(middle, out + sign), (middle, out + 14 * sign)], tint, 2, dashed=True)
            sketch.arrow((middle, into - 14 * sign), (middle, into - sign), tint, 2, dashed=True, head=8)
        else:
            sketch.arrow((middle, out), (middle, into - sign), tint, 2, head=8)
    words = {ends: "+" * some[0][1] + said_chunks(s, tuple(c for c, _ in some)) for ends, some in beside.items()}
    _brackets(sketch, words, at.x(columns) + 2, [at.middle(rank) for rank in range(n)])
    sketch.reach(at.x(columns), at.y(n - 1) + high + closes)


def _way(n: int, m: Message, chunk: int, messages: list[Message]) -> str:
    """ "next": to the row above or below.  "around": out at one end of the rows, in at the other.  "beside": the rest."""
    if wraps(n, m, messages):
        return "around"
    meets = any(chunk in o.chunks and (o.source, o.target) == (m.target, m.source) for o in messages)
    return "next" if abs(m.target - m.source) == 1 and not meets else "beside"


def _levels(spans: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """(first, last) row -> its column, from 0, so that in a column no two touch; the shortest come first."""
    placed: dict[tuple[int, int], int] = {}
    for first, last in sorted(spans, key=lambda span: (span[1] - span[0], span)):
        taken = {k for (a, b), k in placed.items() if a <= last and first <= b}
        placed[first, last] = next(k for k in count() if k not in taken)
    return placed


def _brackets(sketch: Canvas, words: dict[tuple[int, int], str], left: float, middles: list[float]) -> None:
    """To the right of the rows: from whom to whom, and at the row where it arrives, what; + is added."""
    placed = _levels({(min(ends), max(ends)) for ends in words})
    columns = {ends: placed[min(ends), max(ends)] for ends in words}
    widest: dict[int, float] = defaultdict(float)
    for ends, said in words.items():
        widest[columns[ends]] = max(widest[columns[ends]], text_width(said, 11))
    for (source, target), said in words.items():
        k = columns[source, target]
        x = left + sum(widest[before] + 26 for before in range(k))
        line = x + widest[k] + 16
        sketch.line([(line, middles[source]), (line, middles[target])], SOFT, 1.6)
        if (target, source) not in words:
            sketch.line([(line - 10, middles[source]), (line, middles[source])], SOFT, 1.6)
        sketch.arrow((line, middles[target]), (x + widest[k] + 4, middles[target]), SOFT, 1.6, head=7)
        sketch.text(x, middles[target], said, 11, align="left")


def wraps(n: int, m: Message, messages: list[Message]) -> bool:
    """Between the first and the last row, while others go one row on the same way round: the ring closes."""
    on = 1 if m.target < m.source else -1
    return n > 2 and abs(m.target - m.source) == n - 1 and any(o.target - o.source == on for o in messages)
