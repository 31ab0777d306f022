"""Pictures of a run: what every rank held before and after each call.

Rows are ranks, columns are slots, and both keep their place from before to after.  The
colour of a cell is the rank its data came from; a dark cell combines every rank.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from . import slots
from .canvas import FAINT, INK, PALETTE, REDUCED, SOFT, TRAY, WIDTH, Picture, Sketch, colour, heading, ink_on, text_width
from .lanes import barrier, messages, rank_label
from .record import SHOWN_BLOCKS, Call, Run, Summary, block_table, blocks, call_title, number, span
from .slots import Slot

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
        return messages(block)
    if call.op in ("barrier", "monitored_barrier"):
        return barrier(call), f"{call.op}, ranks {span(call.group)}"
    return collective(call), f"{slots.how(call.events[0])}, ranks {span(call.group)}, before and after"


# --- one collective -----------------------------------------------------------------------


class Style(NamedTuple):
    """How much of a tensor a cell shows."""

    shows: str  # "numbers", "ends", "letters", "nothing"
    size: float  # of the text, in pixels
    pad: float  # beside the text
    least: float  # a cell is at least this wide


# The first that fits the page is taken.
STYLES = (
    Style("numbers", 13, 7, 30),
    Style("numbers", 11.5, 4.5, 22),
    Style("ends", 12, 8, 44),
    Style("letters", 13, 5, 28),
    Style("letters", 11, 2, 18),
    Style("nothing", 0, 0, 5),
)
MOST_NUMBERS, MOST_ROWS = 16, 4  # of one tensor; a larger one shows its ends
GAP, JOINT = 7, 1.5  # pixels between two tensors, between two chunks of one
FILLS = {"reduced": REDUCED, "unknown": "#ffffff"}


class Cell(NamedTuple):
    rows: list[list[str]]
    note: str = ""  # below, in small letters


EMPTY = Cell([["∅"]])


class Grid:
    """The cells of a call in one style, and the places that before and after share."""

    def __init__(self, call: Call, style: Style) -> None:
        self.style = style
        self.before = [slots.before(call, e) for e in call]
        self.after = [slots.after(call, e) for e in call]
        every = [slot for row in self.before + self.after for slot in row]
        cells = [written(slot, style) for slot in every]
        words = [word for cell in cells for row in cell.rows for word in row]
        self.pitch = max([style.least, *(text_width(word, style.size) + 2 * style.pad for word in words)])
        lines = max([1, *(len(cell.rows) for cell in cells)])
        self.line = 10 if style.shows == "nothing" else 24 if lines > 1 else 30
        self.high = lines * self.line + (9 if any(cell.note for cell in cells) else 0)
        rowed = slots.SHAPES.get(slots.family(call.op), ("whole", "whole")) != ("whole", "whole")
        columns = max([len(call.group) if rowed else 1, *(slot.column + 1 for slot in every)])
        self.widths = [self.pitch] * columns
        for slot, cell in zip(every, cells):
            note = text_width(cell.note, NOTE) + 8 if cell.note else 0
            wide = max([note, *(len(row) * self.pitch for row in cell.rows)])
            self.widths[slot.column] = max(self.widths[slot.column], wide)
        gap = JOINT if any(slot.joined for slot in every) else min(GAP, self.pitch / 3)
        self.lefts = [sum(self.widths[:column]) + column * gap for column in range(columns)]
        self.width = self.lefts[-1] + self.widths[-1]
        self.parts = any(isinstance(slot.value, Summary) and not slots.is_whole(slot.value) for slot in every)

    def draw(self, sketch: Sketch, x: float, y: float, row: list[Slot]) -> None:
        """One rank's row of cells, its top left corner at (x, y)."""
        for slot in row:
            cell = written(slot, self.style)
            left, wide = x + self.lefts[slot.column], self.widths[slot.column]
            if cell == EMPTY:
                sketch.text(left + self.pitch / 2, y + self.high / 2, "∅", self.style.size, FAINT)
                continue
            if self.style.shows == "numbers" and not cell.note:  # an uneven chunk is as long as its numbers
                wide = len(cell.rows[0]) * self.pitch
            hollow = slot.kind in ("buffer", "undefined")
            fill = None if hollow else FILLS.get(slot.kind) or colour(slot.origin)
            edge = FAINT if hollow else SOFT if slot.kind == "unknown" else None
            sketch.box(left, y, wide, self.high, fill, edge, dashed=hollow)
            ink = FAINT if hollow else ink_on(fill)
            top = y + (self.high - (9 if cell.note else 0) - len(cell.rows) * self.line) / 2
            for i, words in enumerate(cell.rows):
                step = wide / len(words)
                for j, word in enumerate(words):
                    sketch.text(left + (j + 0.5) * step, top + (i + 0.5) * self.line, word, self.style.size, ink)
            if cell.note:
                sketch.text(left + wide / 2, y + self.high - 10, cell.note, NOTE, ink)


NOTE = 9.5


def written(slot: Slot, style: Style) -> Cell:
    value = slot.value
    if style.shows == "nothing":
        return Cell([])
    if slot.kind == "undefined":
        return Cell([["?"]])
    if isinstance(value, torch.Tensor) and value.numel() == 0:
        return EMPTY
    if style.shows == "letters":
        return Cell([[slot.letter if style.size > 11 else slot.letter.rstrip("₀₁₂₃₄₅₆₇₈₉")]])
    if isinstance(value, Summary):
        ends = f"{number(value.head[0])} … {number(value.tail[-1])}" if value.head else slot.letter
        return Cell([[ends]], str(list(value.shape)))
    rows = value.reshape(-1, value.shape[-1]) if value.dim() > 1 else value.reshape(1, -1)
    if style.shows == "ends" and value.numel() > 2 or value.numel() > MOST_NUMBERS or len(rows) > MOST_ROWS:
        flat = value.flatten()
        return Cell([[f"{number(flat[0].item())} … {number(flat[-1].item())}"]], str(list(value.shape)))
    return Cell([[number(v) for v in row] for row in rows.tolist()])


def collective(call: Call) -> Sketch:
    """Before and after, side by side, and between them where the data went."""
    made = {e.rank: i for i, e in enumerate(call)}
    ranks = call.group
    between = flow_width(call)
    roots = {e.root for e in call}
    label = max(text_width(rank_label(rank, rank in roots), 13, bold=rank in roots) for rank in ranks)
    for style in STYLES:
        grid = Grid(call, style)
        if label + 2 * grid.width + between + 40 <= WIDTH:
            break
    sketch = Sketch()
    title, _, rest = call_title(call).partition(", ")
    y = heading(sketch, title, rest)
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
            sketch.text(left + grid.width / 2, middle, "never called", 12, SOFT)
            continue
        e = call.events[made[rank]]
        grid.draw(sketch, left, top, grid.before[made[rank]])
        grid.draw(sketch, right, top, grid.after[made[rank]])
        if e.end is None:
            sketch.text(right + grid.width / 2, middle, "still waiting", 12, SOFT)
        elif not e.waited:
            sketch.text(right + grid.width + 14, middle, "not waited for", 11.5, SOFT, align="left")
    flow(sketch, call, left + grid.width + 8, right - 8, [top + grid.high / 2 for top in tops])
    sketch.reach(0, tops[-1] + grid.high + 4)
    return sketch


# --- where the data went ------------------------------------------------------------------


def flow_width(call: Call) -> float:
    """Pixels between the cells before and the cells after."""
    if not slots.agree(call):
        return max(text_width(slots.how(e), 11.5, mono=True) for e in call) + 40
    return 92 + 4 * len(call.group[:8]) + (2 * _half(_sign(call)) if call.events[0].reduce_op else 0)


def flow(sketch: Sketch, call: Call, x0: float, x1: float, ys: list[float]) -> None:
    """A line from every rank whose data a rank was left with, in the colour of its sender."""
    row = {rank: i for i, rank in enumerate(call.group)}
    senders = [e.rank for e in call if e.src is None or e.rank == e.src]
    getters = [e.rank for e in call if e.end is not None and (e.dst is None or e.rank == e.dst)]
    middle, centre = (x0 + x1) / 2, (ys[0] + ys[-1]) / 2
    if not slots.agree(call):
        for e in call:
            sketch.text(middle, ys[row[e.rank]], slots.how(e), 11.5, mono=True)
    elif len(ys) > len(PALETTE):  # too many lines to tell apart
        if getters:
            sketch.arrow((middle - 22, centre), (middle + 22, centre), lw=2.2)
    elif call.events[0].reduce_op:
        half = _half(_sign(call))
        for rank in senders:
            sketch.line([(x0, ys[row[rank]]), (middle - half, centre)], colour(rank), 2, curve=True)
        for rank in getters:
            _deliver(sketch, (middle + half, centre), (x1, ys[row[rank]]), REDUCED)
        sketch.box(middle - half, centre - 13, 2 * half, 26, REDUCED, radius=13)
        sketch.text(middle, centre, _sign(call), 13, "#ffffff", bold=True)
    else:
        apart = 0 if len(senders) == 1 else 20 / len(ys)  # arriving lines keep the order of the rows
        for rank in senders:
            for getter in getters:
                end = ys[row[getter]] + (row[rank] - (len(ys) - 1) / 2) * apart
                _deliver(sketch, (x0, ys[row[rank]]), (x1, end), colour(rank), 2 if len(ys) < 6 else 1.4)


def _deliver(sketch: Sketch, start, end, tint: str, lw: float = 2) -> None:
    (x, y), head = end, 2.2 + lw
    sketch.line([start, (x - 2 * head, y)], tint, lw, curve=True)
    sketch.polygon([(x, y), (x - 2.2 * head, y - head), (x - 2.2 * head, y + head)], tint)


def _sign(call: Call) -> str:
    op = call.events[0].reduce_op
    return slots.SIGNS.get(op, op.lower())


def _half(sign: str) -> float:
    return max(13, text_width(sign, 13, bold=True) / 2 + 8)
