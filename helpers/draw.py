"""Pictures of a run: what every rank held before and after each call.

Rows are ranks, columns are slots, and both keep their place from before to after.  The
colour of a cell is the rank its data came from; a dark cell combines every rank.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from . import slots
from .canvas import (
    FAINT,
    INK,
    PALETTE,
    REDUCED,
    SOFT,
    TRAY,
    WIDTH,
    Picture,
    Sketch,
    colour,
    heading,
    ink_on,
    text_width,
)
from .lanes import barrier, rank_label, space_time, status
from .record import SHOWN_BLOCKS, Call, Run, Summary, blocks
from .slots import Row, Slot
from .twin import block_table, call_title, number, span

__all__ = ["draw_run", "picture", "Picture", "PALETTE", "colour"]


def draw_run(run: Run, which: int | slice | None = None) -> Picture:
    """The picture of a run's calls; messages that follow each other share one panel.

    which: the index of one call in `run.calls`, or a slice of them; None: the first
    SHOWN_BLOCKS panels.  Raises IndexError for a call that did not happen.
    """
    shown = blocks(run.chosen(which))
    return picture(shown[:SHOWN_BLOCKS] if which is None else shown)


def picture(shown: list[list[Call]]) -> Picture:
    """The picture of some blocks of calls (see record.blocks), a panel each."""
    if not shown:
        nothing = Sketch()
        nothing.text(0, 10, "no communication", tint=SOFT, align="left")
        return Picture([nothing], "no communication", "Picture: no communication")
    drawn = [panel(block) for block in shown]
    text = "\n\n".join(map(block_table, shown))
    return Picture([sketch for sketch, _ in drawn], text, "Picture: " + "; ".join(alt for _, alt in drawn))


def panel(block: list[Call]) -> tuple[Sketch, str]:
    """One block, and what it shows in a few words."""
    call = block[0]
    if call.is_message:
        return space_time(block)
    if call.op in ("barrier", "monitored_barrier"):
        return barrier(call), f"{call.op}, ranks {span(call.group)}"
    return collective(call), f"{slots.how(call.events[0])}, ranks {span(call.group)}, before and after"


# --- one collective -----------------------------------------------------------------------


class Style(NamedTuple):
    """How much of a tensor a cell shows."""

    shows: str  # "numbers", "ends", "letters", "nothing"
    size: float  # of the text, in pixels
    brief: bool  # floats with few digits
    pad: float  # beside the text
    least: float  # a cell is at least this wide


# The first that fits the page is taken.
STYLES = (
    Style("numbers", 13, False, 7, 30),
    Style("numbers", 11.5, False, 5, 22),
    Style("numbers", 11.5, True, 4, 22),
    Style("ends", 12, True, 8, 44),
    Style("letters", 13, True, 5, 28),
    Style("letters", 11, True, 2, 18),
    Style("nothing", 0, True, 0, 12),
    Style("nothing", 0, True, 0, 4),
)
MOST_NUMBERS, MOST_ROWS = 16, 4  # of one tensor; a larger one shows its ends
GAP, JOINT = 7, 1.5  # pixels between two tensors, between two chunks of one
NOTE, NOTE_ROOM = 9.5, 9  # pixels: the letters of a cell's note, the height it adds
NEVER = "never called"
FILLS = {"reduced": REDUCED, "unknown": "#ffffff"}


class Cell(NamedTuple):
    """A slot, and what is written in it."""

    slot: Slot
    rows: list[list[str]]
    note: str = ""  # below, in small letters
    empty: bool = False  # a tensor of no elements


class Grid:
    """The cells of a call in one style, and the places that before and after share."""

    def __init__(self, call: Call, before: list[Row], after: list[Row], style: Style) -> None:
        self.style = style
        self.before = [[written(slot, style) for slot in row] for row in before]
        self.after = [[written(slot, style) for slot in row] for row in after]
        cells = [cell for row in self.before + self.after for cell in row]
        words = [word for cell in cells for row in cell.rows for word in row]
        self.pitch = max([style.least, *(text_width(word, style.size) + 2 * style.pad for word in words)])
        lines = max([1, *(len(cell.rows) for cell in cells)])
        self.line = 10 if style.shows == "nothing" else 24 if lines > 1 or len(call.group) > len(PALETTE) else 30
        self.high = lines * self.line + NOTE_ROOM * any(cell.note for cell in cells)
        rowed = slots.SHAPES.get(slots.family(call.op), ("whole", "whole")) != ("whole", "whole")
        columns = max([len(call.group) if rowed else 1, *(cell.slot.column + 1 for cell in cells)])
        said = [status(e) for e in call if status(e)] + [NEVER] * (len(call.events) < len(call.group))
        self.widths = [max([self.pitch, *((text_width(words, 12) + 8) / columns for words in said)])] * columns
        for cell in cells:
            note = text_width(cell.note, NOTE) + 8 if cell.note else 0
            wide = max([note, *(len(row) * self.pitch for row in cell.rows)])
            self.widths[cell.slot.column] = max(self.widths[cell.slot.column], wide)
        gap = JOINT if any(cell.slot.joined for cell in cells) else min(GAP, self.pitch / 3)
        self.lefts = [sum(self.widths[:column]) + column * gap for column in range(columns)]
        self.width = self.lefts[-1] + self.widths[-1]
        self.uneven = style.shows == "numbers" and any(any(e.splits or ()) for e in call)

    def draw(self, sketch: Sketch, x: float, y: float, row: list[Cell]) -> None:
        """One rank's cells, the top left corner of the first column at (x, y)."""
        for cell in row:
            slot, left, wide = cell.slot, x + self.lefts[cell.slot.column], self.widths[cell.slot.column]
            if cell.empty:
                sketch.text(left + self.pitch / 2, y + self.high / 2, "∅", self.style.size, FAINT)
                continue
            if self.uneven and cell.rows:  # a chunk is as long as its numbers
                wide = len(cell.rows[0]) * self.pitch
            hollow = slot.kind in ("buffer", "undefined")
            fill = None if hollow else FILLS.get(slot.kind) or colour(slot.origin)
            edge = FAINT if hollow else SOFT if slot.kind == "unknown" else None
            sketch.box(left, y, wide, self.high, fill, edge, dashed=hollow)
            ink = FAINT if hollow else ink_on(fill)
            top = y + (self.high - NOTE_ROOM * bool(cell.note) - len(cell.rows) * self.line) / 2
            for i, words in enumerate(cell.rows):
                step = wide / len(words)
                for j, word in enumerate(words):
                    sketch.text(left + (j + 0.5) * step, top + (i + 0.5) * self.line, word, self.style.size, ink)
            if cell.note:
                sketch.text(left + wide / 2, y + self.high - NOTE_ROOM - 1, cell.note, NOTE, ink)


def written(slot: Slot, style: Style) -> Cell:
    """What is written in a slot in this style."""
    value = slot.value
    if style.shows == "nothing" or value is None:
        return Cell(slot, [])
    if slot.kind == "undefined":
        return Cell(slot, [["?"]])
    if isinstance(value, torch.Tensor) and value.numel() == 0:
        return Cell(slot, [], empty=True)
    large = isinstance(value, Summary) or value.numel() > MOST_NUMBERS
    shape, show = str(list(value.shape)), brief if style.brief else number
    if style.shows == "letters":
        if style.size > 11:
            return Cell(slot, [[slot.letter]], shape if large else "")
        return Cell(slot, [[slot.letter.rstrip("₀₁₂₃₄₅₆₇₈₉")]])
    if isinstance(value, Summary):
        ends = [*value.head[:1], *value.tail[-1:]]
        return Cell(slot, [[" … ".join(map(show, ends)) or slot.letter]], shape)
    rows = value.reshape(-1, value.shape[-1]) if value.dim() > 1 else value.reshape(1, -1)
    if large or len(rows) > MOST_ROWS or style.shows == "ends" and value.numel() > 2:
        return Cell(slot, [[" … ".join(map(show, value.flatten()[[0, -1]].tolist()))]], shape)
    return Cell(slot, [[show(v) for v in row] for row in rows.tolist()])


def brief(v) -> str:
    """As record.number, in about five characters."""
    if not isinstance(v, float) or not math.isfinite(v) or v == int(v):
        return number(v)
    return f"{v:.0e}" if abs(v) < 0.005 else f"{v:.2f}" if abs(v) < 10 else f"{v:.3g}"


def collective(call: Call) -> Sketch:
    """Before and after, side by side, and between them where the data went."""
    made = {e.rank: i for i, e in enumerate(call)}
    ranks = call.group
    between = flow_width(call)
    roots = {e.root for e in call}
    label = max(text_width(rank_label(rank, rank in roots), 13, bold=rank in roots) for rank in ranks)
    before, after = slots.read(call)
    for style in STYLES:
        grid = Grid(call, before, after, style)
        if label + 2 * grid.width + between + 40 <= WIDTH:
            break
    sketch = Sketch()
    title, _, rest = call_title(call).partition(", ")
    y = heading(sketch, title if slots.agree(call) else "ranks disagree", rest)
    left = label + 18  # of the cells before
    right = left + grid.width + between
    for x, word in ((left, "before"), (right, "after")):
        sketch.text(x + grid.width / 2, y + 5, word, 11.5, SOFT)
    y += 22
    pitch = grid.high + (8 if grid.high < 20 else 16)
    tops = [y + i * pitch for i in range(len(ranks))]
    for rank, top in zip(ranks, tops):
        middle = top + grid.high / 2
        sketch.text(label, middle, rank_label(rank, rank in roots), 13, align="right", bold=rank in roots)
        sketch.box(label + 6, top, 4, grid.high, colour(rank), radius=2)
        for x in (left, right):
            sketch.box(x - 4, top - 4, grid.width + 8, grid.high + 8, TRAY, radius=5)
        if rank not in made:
            sketch.text(left + grid.width / 2, middle, NEVER, 12, SOFT)
            continue
        given, got = grid.before[made[rank]], grid.after[made[rank]]
        grid.draw(sketch, left, top, given)
        grid.draw(sketch, right, top, got)
        words = status(call.events[made[rank]])
        if words and got:
            sketch.text(right + grid.width + 14, middle, words, 12, SOFT, align="left")
        elif words:
            sketch.text(right + grid.width / 2, middle, words, 12, SOFT)
    flow(sketch, call, grid, left + grid.width + 8, right - 8, [top + grid.high / 2 for top in tops])
    sketch.reach(0, tops[-1] + grid.high + 4)
    return sketch


# --- where the data went ------------------------------------------------------------------


def flow_width(call: Call) -> float:
    """Pixels between the cells before and the cells after."""
    if not slots.agree(call):
        return max(text_width(slots.how(e), 11.5, mono=True) for e in call) + 40
    return 92 + 4 * len(call.group[:8]) + (2 * _half(_sign(call)) if call.events[0].reduce_op else 0)


def flow(sketch: Sketch, call: Call, grid: Grid, x0: float, x1: float, ys: list[float]) -> None:
    """A line from every rank whose data a rank was left with, in the colour of its sender."""
    y = dict(zip(call.group, ys))
    middle, centre = (x0 + x1) / 2, (ys[0] + ys[-1]) / 2
    if not slots.agree(call):
        for e in call:
            sketch.text(middle, y[e.rank], slots.how(e), 11.5, mono=True)
    elif call.events[0].reduce_op:
        getters = [e.rank for e, got in zip(call, grid.after) if any(cell.slot.kind == "reduced" for cell in got)]
        half, words = _half(_sign(call)), _sign(call)
        for e in call:
            sketch.line([(x0, y[e.rank]), (middle - half, centre)], colour(e.rank), 2, curve=True)
        for rank in getters:
            _deliver(sketch, (middle + half, centre), (x1, y[rank]), REDUCED)
        fill, ink = (REDUCED, "#ffffff") if getters else ("#ffffff", REDUCED)
        sketch.box(middle - half, centre - 13, 2 * half, 26, fill, REDUCED, dashed=not getters, radius=13)
        sketch.text(middle, centre, words, 13, ink, bold=True)
    else:
        got = [(cell, e.rank) for e, row in zip(call, grid.after) for cell in row]
        lines = [(cell.slot.origin, rank) for cell, rank in got if cell.slot.kind == "data" and not cell.empty]
        if not lines or len(lines) > len(PALETTE) ** 2:  # nothing went, or more than can be told apart
            sketch.arrow((middle - 22, centre), (middle + 22, centre), INK if lines else FAINT, 2.2, dashed=not lines)
            return
        fan = 0 if len({sender for sender, _ in lines}) == 1 else 20 / len(ys)
        for sender, getter in sorted(lines):  # arriving lines keep the order of the rows
            end = y[getter] + (call.group.index(sender) - (len(ys) - 1) / 2) * fan
            _deliver(sketch, (x0, y[sender]), (x1, end), colour(sender), 2 if len(ys) < 6 else 1.4)


def _deliver(sketch: Sketch, start, end, tint: str, lw: float = 2) -> None:
    (x, y), head = end, 2.2 + lw
    sketch.line([start, (x - 2 * head, y)], tint, lw, curve=True)
    sketch.polygon([(x, y), (x - 2.2 * head, y - head), (x - 2.2 * head, y + head)], tint)


def _sign(call: Call) -> str:
    op = call.events[0].reduce_op
    return slots.SIGNS.get(op, op.lower())


def _half(sign: str) -> float:
    return max(13, text_width(sign, 13, bold=True) / 2 + 8)
