"""The grid of ranks x chunks: where its cells are, and a chunk, drawn the same in a cell and on an arrow."""

from typing import Iterable, NamedTuple

from .canvas import FAINT, REDUCED, SOFT, Canvas, colour, text_width

SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class Places(NamedTuple):
    """Where cells are: a row per rank, a column per chunk or moment.  In pixels; nothing is drawn."""

    left: float  # of the first cell
    top: float
    wide: float  # of each cell
    high: float
    across: float  # from the left edge of a column to the next one's
    down: float  # from the top of a row to the next one's

    def x(self, column: int) -> float:
        return self.left + column * self.across

    def y(self, row: int) -> float:
        return self.top + row * self.down

    def middle(self, row: int) -> float:
        return self.y(row) + self.high / 2

    def width(self, columns: int) -> float:
        """From the first cell of a row to the end of its last."""
        return (columns - 1) * self.across + self.wide


class HeldChunk(NamedTuple):
    """A cell of a grid: a rank's part of a chunk."""

    row: int
    column: int
    name: str  # of the chunk
    parts: int  # the ranks in it, bit r for rank r; 0: nothing


def draw_chunks(sketch: Canvas, at: Places, cells: Iterable[HeldChunk], ranks: int, owner: bool = True) -> None:
    """ranks, owner: see draw_chunk."""
    for cell in cells:
        x, y = at.x(cell.column), at.y(cell.row)
        draw_chunk(sketch, x, y, at.wide, at.high, cell.name, cell.parts, ranks, owner)


def draw_chunk(sketch: Canvas, x, y, wide, high, name: str, parts: int, ranks: int, owner: bool = True) -> None:
    """Draw a chunk with its top left corner at (x, y), in pixels.

    An empty chunk is dashed.  One rank's part has the rank's color.  A sum of some ranks is white, with a stripe for
    each rank in it at the rank's own place; a sum of all ranks is dark, with a Σ.

    name: its letter, with a sign before it if need be.  parts: the ranks in it, bit r for rank r; 0: nothing.
    ranks: number of ranks in a full sum.  owner: whether to write the rank's number next to the letter.
    """
    count = parts.bit_count()
    if count == 0:
        sketch.box(x, y, wide, high, None, FAINT, dashed=True)
    elif count == 1:
        rank = parts.bit_length() - 1
        words = name + str(rank).translate(SUBSCRIPTS) * owner
        sketch.boxed(x, y, wide, high, words, _size(high), colour(rank))
    elif count == ranks:
        sketch.boxed(x, y, wide, high, _sum_name(name), _size(high), REDUCED, bold=True)
    else:
        sketch.box(x, y, wide, high, "#ffffff", SOFT)
        stripe, thick = (wide - 4) / ranks, 6 if high > 18 else 4
        for rank in range(ranks):
            if parts >> rank & 1:
                sketch.box(x + 2 + rank * stripe, y + high - thick - 1.5, stripe, thick, colour(rank), radius=0)
        words = f"{name} {count}/{ranks}".strip() if wide >= 30 else name
        size = min(10.5 if high > 24 else 9.5, _size(high))
        sketch.text(x + wide / 2, y + (high - thick) / 2, words, size, "#000000")


def _size(high: float) -> float:
    """The size of a chunk's letters, in pixels."""
    return 13 if high > 24 else 12 if high > 16 else 10.5 if high > 13 else 9.5


def chunk_width(name: str, parts: int, ranks: int, high: float) -> float:
    """The width that a chunk needs for its words, in pixels."""
    if 1 < parts.bit_count() < ranks:
        return max(text_width(f"{name} {parts.bit_count()}/{ranks}", 9.5) + 8, 30)
    return text_width(_sum_name(name), _size(high), bold=True) + 8


def _sum_name(name: str) -> str:
    """'Σa'; '+Σa' for a chunk that is added."""
    return f"+Σ{name[1:]}" if name.startswith("+") else f"Σ{name}"
