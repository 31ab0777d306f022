"""The cells of a collective: how much of a tensor they show, and where they are before and after."""

from math import prod
from typing import NamedTuple

import torch

from ..format import brief, number
from ..log import collectives
from ..log.calls import Call
from ..log.event import Summary
from ..log.provenance import Row, Slot
from ..log.text import status
from .canvas import FAINT, PALETTE, REDUCED, SOFT, TRAY, Canvas, colour, ink_on, text_width


class Style(NamedTuple):
    """The amount of a tensor that a cell shows."""

    shows: str  # "numbers", "ends", "letters", "nothing"
    size: float  # of the text, in pixels
    brief: bool  # floats with few digits
    pad: float  # beside the text
    least: float  # a cell is at least this wide


# The first that fits the page is used.
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
MAX_NUMBERS, MAX_ROWS = 16, 4  # of one tensor; a larger one shows its ends
GAP, JOINT = 7, 1.5  # pixels between two tensors, between two chunks of one
NOTE, NOTE_ROOM = 9.5, 9  # pixels: the letters of a cell's note, the height it adds
NEVER_CALLED = "never called"
FILLS = {"reduced": REDUCED, "unknown": "#ffffff"}


class Cell(NamedTuple):
    """A slot, and its text."""

    slot: Slot
    rows: list[list[str]]
    note: str = ""  # below, in small letters
    empty: bool = False  # a tensor of no elements


class Tray(NamedTuple):
    """The background of a rank's cells: how far it extends beyond them, in pixels."""

    beside: float = 4
    above: float = 4
    radius: float = 5

    def draw(self, sketch: Canvas, x: float, y: float, wide: float, high: float) -> None:
        """x, y, wide, high: the box around the cells."""
        beside, above, radius = self
        sketch.box(x - beside, y - above, wide + 2 * beside, high + 2 * above, TRAY, radius=radius)


class Grid:
    """The cells of a call in one style, and the column positions that before and after share."""

    def __init__(self, call: Call, before: list[Row], after: list[Row], style: Style) -> None:
        self.style = style
        self.before = [[slot_cell(slot, style) for slot in row] for row in before]
        self.after = [[slot_cell(slot, style) for slot in row] for row in after]
        cells = [cell for row in self.before + self.after for cell in row]
        words = [word for cell in cells for row in cell.rows for word in row]
        self.pitch = max([style.least, *(text_width(word, style.size) + 2 * style.pad for word in words)])
        lines = max([1, *(len(cell.rows) for cell in cells)])
        self.line = 10 if style.shows == "nothing" else 24 if lines > 1 or len(call.group) > len(PALETTE) else 30
        self.high = lines * self.line + NOTE_ROOM * any(cell.note for cell in cells)
        rowed = collectives.shapes(call.op) not in (("whole", "whole"), (None, None))
        columns = max([len(call.group) if rowed else 1, *(cell.slot.column + 1 for cell in cells)])
        self.longest = max([1, *(_count(cell) for cell in cells)]) if any(any(e.splits or ()) for e in call) else 0
        said = [status(e) for e in call if status(e)] + [NEVER_CALLED] * (len(call.events) < len(call.group))
        self.widths = [max([self.pitch, *((text_width(words, 12) + 8) / columns for words in said)])] * columns
        for cell in cells:
            self.widths[cell.slot.column] = max(self.widths[cell.slot.column], self.wide(cell))
        gap = JOINT if any(cell.slot.joined for cell in cells) else min(GAP, self.pitch / 3)
        self.lefts = [sum(self.widths[:column]) + column * gap for column in range(columns)]
        self.width = self.lefts[-1] + self.widths[-1]

    def wide(self, cell: Cell) -> float:
        """The width that a cell needs; the chunks of a call with uneven sizes are as long as they have elements."""
        note = text_width(cell.note, NOTE) + 8 if cell.note else 0
        wide = max([note, *(len(row) * self.pitch for row in cell.rows)])
        numbered = not self.longest or sum(map(len, cell.rows)) == _count(cell)
        return wide if numbered else max(note, 0.75 * wide) + wide * _count(cell) / self.longest

    def draw_row(self, sketch: Canvas, x: float, y: float, row: list[Cell], tray: Tray) -> None:
        """One rank's cells in their tray, the top left corner of the first column at (x, y)."""
        tray.draw(sketch, x, y, self.width, self.high)
        for cell in row:
            slot, left = cell.slot, x + self.lefts[cell.slot.column]
            if cell.empty:
                sketch.text(left + self.pitch / 2, y + self.high / 2, "∅", self.style.size, FAINT)
                continue
            wide = self.wide(cell) if self.longest and cell.rows else self.widths[slot.column]
            hollow = slot.kind in ("buffer", "undefined") or slot.share < 1
            fill = None if hollow else FILLS.get(slot.kind) or colour(slot.origin)
            edge = FAINT if hollow else SOFT if slot.kind == "unknown" else None
            sketch.box(left, y, wide, self.high, fill, edge, dashed=hollow)
            ink = FAINT if hollow else ink_on(fill)
            top = y + (self.high - NOTE_ROOM * bool(cell.note) - len(cell.rows) * self.line) / 2
            for i, words in enumerate(cell.rows):
                step, came = wide / len(words), min(1.0, max(0.0, slot.share * len(cell.rows) - i))  # of this row
                if slot.share < 1 and came:  # the rest of the buffer is as it was
                    at, high = (y, self.high) if len(cell.rows) == 1 else (top + i * self.line, self.line)
                    sketch.box(left, at, wide * came, high, colour(slot.origin))
                for j, word in enumerate(words):
                    tint = ink_on(colour(slot.origin)) if slot.share < 1 and (j + 0.5) / len(words) < came else ink
                    sketch.text(left + (j + 0.5) * step, top + (i + 0.5) * self.line, word, self.style.size, tint)
            if cell.note:
                sketch.text(left + wide / 2, y + self.high - NOTE_ROOM - 1, cell.note, NOTE, ink)


def _count(cell: Cell) -> int:
    """The number of elements of a cell's tensor."""
    return prod(cell.slot.value.shape) if cell.slot.value is not None else 0


def slot_cell(slot: Slot, style: Style) -> Cell:
    """The cell of a slot, with its text in this style."""
    value = slot.value
    if style.shows == "nothing" or value is None:
        return Cell(slot, [])
    if slot.kind == "undefined":
        return Cell(slot, [["?"]])
    if isinstance(value, torch.Tensor) and value.numel() == 0:
        return Cell(slot, [], empty=True)
    large = isinstance(value, Summary) or value.numel() > MAX_NUMBERS
    shape, show = str(list(value.shape)), brief if style.brief else number
    if style.shows == "letters" and style.size > 11:
        return Cell(slot, [[slot.letter]], shape if large else "")
    if style.shows == "letters":
        return Cell(slot, [[slot.letter.rstrip("₀₁₂₃₄₅₆₇₈₉")]])
    if isinstance(value, Summary):
        ends = [*value.head[:1], *value.tail[-1:]]
        return Cell(slot, [[" … ".join(map(show, ends)) or slot.letter]], shape)
    rows = value.reshape(-1, value.shape[-1] if value.dim() > 1 else value.numel())
    if large or len(rows) > MAX_ROWS or style.shows == "ends" and value.numel() > 2:
        return Cell(slot, [[" … ".join(map(show, value.flatten()[[0, -1]].tolist()))]], shape)
    return Cell(slot, [[show(v) for v in row] for row in rows.tolist()])
