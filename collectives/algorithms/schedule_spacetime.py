"""A schedule's messages in time: a lane per rank, a column per step, a chunk in flight as in draw/grid.py.

A lane has its rank's own color, or the root's once it has the root's data; pale before, dark once the rank has all
of the sum that it is promised.
"""

from ..draw.canvas import GRID, IDLE, REDUCED, SOFT, WIDTH, Canvas, colour, heading, text_width
from ..draw.chips import Chips, ChunkParts
from ..draw.grid import chunk_width
from ..draw.labels import RankLabels, rank_label
from ..draw.spacetime import LANE, MAX_MESSAGES
from .chunk_grid import parts_tint, wraps
from .schedule import Holdings, Message, Parts, Schedule, said_chunks, title


def lanes(s: Schedule, states: list[Holdings], steps: range) -> Canvas:
    """A lane per rank, a column per step: see above."""
    sketch = Canvas()
    head, _, rest = title(s).partition(", ")
    y = heading(sketch, head, rest + "; + is an add" * any(m.adds for step in s.steps for m in step))
    n, shown = s.world_size, steps
    while len(shown) > 1 and sum(len(s.steps[k]) for k in shown) > MAX_MESSAGES:
        shown = shown[:-1]
    left = text_width(rank_label(n - 1, root=True), 12, bold=s.rooted) + 14
    labels = [said_chunks(s, m.chunks) for k in shown for m in s.steps[k]] if s.chunks > 1 else [""]
    need = min(90, max(text_width(w, 10.5) for w in labels) + 46) if labels else 46
    column = max(min((WIDTH - left) / max(1, len(shown)), 150), need if n <= 16 else 40)
    a_line = max(1, int((WIDTH - left) / column + 0.01))
    pitch = 40 if n <= 4 else 30 if n <= 8 else 20 if n <= 16 else 13
    for first in range(0, len(shown) or 1, a_line):
        y = _band(sketch, s, states, shown[first : first + a_line], left, y + 16, column, pitch) + 12
    if len(shown) < len(steps):
        sketch.text(0, y, f"and {len(steps) - len(shown)} more steps", 11.5, SOFT, align="left")
    return sketch


def _band(sketch: Canvas, s: Schedule, states, steps: range, left, top, column, pitch) -> float:
    n, promised = s.world_size, s.promised()
    foot = top + pitch * (n - 1) + pitch * 0.6
    labels = RankLabels(range(n), 12 if pitch > 15 else 10, [s.root] * s.rooted)
    for i in range(len(steps) + 1):
        sketch.line([(left + i * column, top - pitch * 0.4), (left + i * column, foot)], GRID, 1)
    stretches = [(k, column) for k in steps or [0]]
    if steps and steps[-1] + 1 < len(states):  # the state after the last step, as a short end
        stretches.append((steps[-1] + 1, 14))
    for rank in range(n):
        y = top + rank * pitch
        labels.draw(sketch, left - 12, y, rank)
        for i, (k, wide) in enumerate(stretches):
            tint = _lane_colour(s, states[min(k, len(states) - 1)][rank], rank, promised[rank])
            x = left + i * column
            sketch.line([(x, y), (x + wide, y)], tint, LANE if pitch > 15 else 4, butt=True)
    chips = Chips(18 if pitch >= 28 else 14, 10.5)
    for i, k in enumerate(steps):
        x = left + i * column
        sketch.text(x + column / 2, foot + 9, f"step {k + 1}" if column >= 50 else str(k + 1), 11, SOFT)
        for m in s.steps[k]:
            _message(sketch, s, m, states[k] if k < len(states) else None, s.steps[k], x, top, column, pitch, chips)
    chips.draw(sketch)
    return foot + 16


def _message(sketch: Canvas, s: Schedule, m: Message, held, others, x, top, column, pitch, chips) -> None:
    parts = held[m.source].get(m.chunks[0], 0) if held else 0
    tint = parts_tint(parts or 1 << m.source, s.world_size)
    words = "+" * m.adds + said_chunks(s, m.chunks) * (s.chunks > 1)
    fill = ChunkParts(parts, s.world_size) if parts else tint
    wide = chunk_width(words, parts, s.world_size, 18) if parts else text_width(words, 10.5) + 8
    pad = min(10, column * 0.12)
    x0, x1, y0, y1 = x + pad, x + column - pad, top + m.source * pitch, top + m.target * pitch
    thin = pitch < 15
    lw = 1.1 if thin or len(others) > 2 * s.world_size else 1.8
    down = 1 if y1 > y0 else -1
    if wraps(s.world_size, m, others):
        half = (x1 - x0) / 2
        sketch.line([(x0, y0), (x0 + half, y0 - down * pitch * 0.45)], tint, lw, dashed=True)
        sketch.arrow((x1 - half, y1 + down * pitch * 0.45), (x1, y1 + down * 3), tint, lw, dashed=True, head=7)
        if words and wide < column and pitch >= 28:
            chips.put(x0 + half * 0.8, y0 - down * pitch * 0.36, wide, fill, words)
        return
    sketch.arrow((x0, y0 + down * LANE / 2), (x1, y1 - down * LANE / 2), tint, lw, head=6 if thin else 8)
    if (words or parts.bit_count() > 1) and wide <= column - 8 and pitch >= 20:
        crossing = any((o.source, o.target) == (m.target, m.source) for o in others)
        spots = (0.25, 0.75) if crossing else (0.5, 0.35, 0.65)
        chips.put_along((x0, y0), (x1, y1), abs(m.target - m.source), spots, wide, fill, words)


def _lane_colour(s: Schedule, held: dict[int, Parts], rank: int, promised: dict[int, Parts]) -> str:
    if not held:
        return IDLE
    if s.facts.reduces and promised and all(held.get(c, 0) == parts for c, parts in promised.items()):
        return REDUCED
    return colour(s.root if s.facts.root == "src" else rank)
