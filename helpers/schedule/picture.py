"""Pictures of a schedule: what the ranks hold between the steps, or the messages in time.

Rows are ranks.  A cell in a rank's colour holds that rank's part of a chunk; a white one
some parts of a sum, a stripe for each rank; a dark one the whole sum.
"""

from __future__ import annotations

import math
import textwrap
from typing import NamedTuple

from ..canvas import FAINT, INK, REDUCED, SOFT, WIDTH, Picture, Sketch, colour, heading, ink_on, text_width
from .model import Holdings, Message, Parts, Schedule, chunk_name
from .proof import WrongSchedule, follow
from .text import said_chunks, table, title

IDLE, GRID = "#dfe3e7", "#e9ecef"
MOST_RANKS, MOST_CHUNKS = 8, 16  # that a grid can show
SIDE_BY_SIDE = 5  # up to so many ranks, all steps stand side by side
MOST_MESSAGES = 400  # in one picture of lanes
LANE = 6


def draw(s: Schedule, step: int | None = None, style: str | None = None) -> Picture:
    """The picture of a schedule.

    step: 1 ... number of steps: what the ranks hold before this step, and what it sends; one
        more than the last: what they end with.  None: all of it.
    style: "grid" shows what every rank holds of every chunk, "lanes" the messages in time.
        None: the one that suits.
    A schedule that is wrong is drawn up to the step that cannot be done, with the reason.
    Raises ValueError for a step that is not there, or a grid too large to be read.
    """
    if style not in (None, "grid", "lanes"):
        raise ValueError(f'style is "grid" or "lanes", not {style!r}.')
    if step is not None and not 1 <= step <= len(s.steps) + 1:
        raise ValueError(f"there is no step {step}: this schedule has {len(s.steps)}, from 1; one more shows the end.")
    fits = s.world_size <= MOST_RANKS and s.chunks <= MOST_CHUNKS and s.collective != "all_to_all"
    if style == "grid" and not fits:
        raise ValueError(
            f"a grid shows at most {MOST_RANKS} ranks and {MOST_CHUNKS} chunks, and no all_to_all: take style='lanes'."
        )
    states, wrong = _states(s)
    if style is None:
        few = s.world_size <= SIDE_BY_SIDE and s.chunks > 1
        style = "grid" if fits and (few or step is not None) else "lanes"
    if style == "grid":
        sketches = _grids(s, states, wrong, step)
    else:
        sketches = [
            _lanes(s, states, range(len(s.steps)) if step is None else range(step - 1, min(step, len(s.steps))))
        ]
    text = table(s)
    if wrong and (step is None or step == len(states)):
        sketches.append(_complaint(str(wrong)))
        text += f"\n✗ {wrong}"
    return Picture(sketches, text, f"Picture: {title(s)}" + f", step {step}" * (step is not None))


def _states(s: Schedule) -> tuple[list[Holdings], WrongSchedule | None]:
    """What is held before the first step and after each that can be done, and why no more can."""
    states = [[dict(chunks) for chunks in s.initial()]]
    try:
        for held in follow(s):
            states.append([dict(chunks) for chunks in held])
    except WrongSchedule as wrong:
        return states, wrong
    try:
        s.prove()
    except WrongSchedule as wrong:
        return states, wrong
    return states, None


def _complaint(words: str) -> Sketch:
    sketch = Sketch()
    for k, line in enumerate(textwrap.wrap("✗ " + words, 118)):
        sketch.text(0, 8 + 17 * k, line, 12.5, "#bd1f01", align="left")
    sketch.reach(WIDTH - 1, 0)  # a line of its own
    return sketch


# --- what the ranks hold ------------------------------------------------------------------


class _Arrow(NamedTuple):
    source: int
    target: int
    chunk: int
    adds: bool
    parts: Parts


def _grids(s: Schedule, states: list[Holdings], wrong: WrongSchedule | None, step: int | None) -> list[Sketch]:
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
        if _wraps(n, a, messages):
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


def _wraps(n: int, a, messages: list[Message]) -> bool:
    """Between the first and the last row, while others go one row on the same way round: the ring closes."""
    if n < 3 or abs(a.target - a.source) != n - 1:
        return False
    on = 1 if a.target < a.source else -1
    return any(m.target - m.source == on for m in messages)


def _closes(n: int, messages: list[Message]) -> bool:
    return any(_wraps(n, m, messages) for m in messages)


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


# --- the messages in time -----------------------------------------------------------------


def _lanes(s: Schedule, states: list[Holdings], steps: range) -> Sketch:
    """A lane a rank, a column a step.  A lane is dark once its rank has all of the sum that it is promised."""
    sketch = Sketch()
    head, _, rest = title(s).partition(", ")
    y = heading(sketch, head, rest + "; + is an add" * any(m.adds for step in s.steps for m in step))
    n = s.world_size
    shown = list(steps)
    while len(shown) > 1 and sum(len(s.steps[k]) for k in shown) > MOST_MESSAGES:
        shown.pop()
    left = max(text_width(f"★ rank {n - 1}", 12) + 14, 20)
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


def _band(sketch: Sketch, s: Schedule, states, steps: list[int], left, top, column, pitch) -> float:
    n = s.world_size
    promised = s.promised()
    foot = top + pitch * (n - 1) + pitch * 0.6
    for i in range(len(steps) + 1):
        sketch.line([(left + i * column, top - pitch * 0.4), (left + i * column, foot)], GRID, 1)
    for rank in range(n):
        y = top + rank * pitch
        star = s.rooted and rank == s.root
        sketch.text(left - 12, y, f"{'★ ' * star}rank {rank}", 12 if pitch > 15 else 10, align="right", bold=star)
        for i, k in enumerate(steps or [0]):
            tint = _lane_colour(s, states[min(k, len(states) - 1)][rank], rank, promised[rank])
            x = left + i * column
            sketch.line([(x, y), (x + column, y)], tint, LANE if pitch > 15 else 4, butt=True)
        if steps and steps[-1] + 1 < len(states):  # the state after the last step, as a short end
            tint = _lane_colour(s, states[steps[-1] + 1][rank], rank, promised[rank])
            x = left + len(steps) * column
            sketch.line([(x, y), (x + 14, y)], tint, LANE if pitch > 15 else 4, butt=True)
    chips: list[tuple[float, float, float, str, str]] = []
    for i, k in enumerate(steps):
        x = left + i * column
        sketch.text(x + column / 2, foot + 9, f"step {k + 1}" if column >= 50 else str(k + 1), 11, SOFT)
        for m in s.steps[k]:
            _message(sketch, s, m, states[k] if k < len(states) else None, s.steps[k], x, top, column, pitch, chips)
    for x, y, wide, fill, words in chips:
        sketch.box(x - wide / 2, y - 7, wide, 14, fill, "#ffffff", radius=4)
        sketch.text(x, y, words, 10.5, ink_on(fill))
    return foot + 16


def _message(sketch: Sketch, s: Schedule, m: Message, held, others, x, top, column, pitch, chips) -> None:
    parts = held[m.source].get(m.chunks[0], 0) if held else 0
    tint = REDUCED if parts.bit_count() == s.world_size > 1 else colour(m.source) if m.adds or not parts else \
        colour(parts.bit_length() - 1)  # fmt: skip
    words = ("+" * m.adds + said_chunks(s, m.chunks)) if s.chunks > 1 else "+" * m.adds
    wide = text_width(words, 10.5) + 8
    pad = min(10, column * 0.12)
    x0, x1, y0, y1 = x + pad, x + column - pad, top + m.source * pitch, top + m.target * pitch
    thin = pitch < 15
    lw = 1.1 if thin or len(others) > 2 * s.world_size else 1.8
    if _wraps(s.world_size, m, others):
        sign = 1 if y0 > y1 else -1
        half = (x1 - x0) / 2
        sketch.line([(x0, y0), (x0 + half, y0 + sign * pitch * 0.45)], tint, lw, dashed=True)
        sketch.arrow((x1 - half, y1 - sign * pitch * 0.45), (x1, y1 - sign * 3), tint, lw, dashed=True, head=7)
        place = (x0 + half * 0.8, y0 + sign * pitch * 0.36)
        if words and wide < column and pitch >= 28:
            chips.append((*place, wide, tint, words))
        return
    down = 1 if y1 > y0 else -1
    sketch.arrow((x0, y0 + down * LANE / 2), (x1, y1 - down * LANE / 2), tint, lw, head=6 if thin else 8)
    if not words or wide > column - 8 or pitch < 20:
        return
    hops = abs(m.target - m.source)
    crossing = any((o.source, o.target) == (m.target, m.source) for o in others)
    for part in (0.25, 0.75) if crossing else (0.5, 0.35, 0.65):
        for k in range(hops):
            t = (k + part) / hops
            px, py = x0 + (x1 - x0) * t, y0 + (y1 - y0) * t
            if all(abs(px - cx) >= (wide + cw) / 2 or abs(py - cy) >= 14 for cx, cy, cw, *_ in chips):
                chips.append((px, py, wide, tint, words))
                return


def _lane_colour(s: Schedule, held: dict[int, Parts], rank: int, promised: dict[int, Parts]) -> str:
    if not held:
        return IDLE
    sums = s.collective in ("reduce", "all_reduce", "reduce_scatter")
    if sums and promised and all(held.get(c, 0) == parts for c, parts in promised.items()):
        return REDUCED
    if s.collective in ("broadcast", "scatter"):
        return colour(s.root)
    return colour(rank)
