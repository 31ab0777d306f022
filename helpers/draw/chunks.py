"""A chunk of a buffer, drawn the same wherever it stands: in grids, on arrows, in maps.

Empty is dashed.  One rank's part has the rank's colour.  A sum of some ranks is white, with a stripe for each
rank in it at the rank's own place; a sum of all ranks is dark, with a Σ.
"""

from __future__ import annotations

from .canvas import FAINT, REDUCED, SOFT, Canvas, colour, ink_on, text_width

BELOW = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def draw_chunk(
    sketch: Canvas, x: float, y: float, wide: float, high: float, name: str, parts: int, ranks: int, owner: bool = True
) -> None:
    """Draw a chunk with its top left corner at (x, y).

    name: its letter, with a sign before it if need be.  parts: the ranks in it, bit r for rank r; 0: nothing.
    ranks: number of ranks of which a sum is made.  owner: whether to write the one rank's number beside the letter.
    """
    count, size = parts.bit_count(), 13 if high > 24 else 12 if high > 16 else 10.5 if high > 13 else 9.5
    if not parts:
        sketch.box(x, y, wide, high, None, FAINT, dashed=True)
        return
    if count == 1:
        rank = parts.bit_length() - 1
        sketch.box(x, y, wide, high, colour(rank))
        words, ink, bold = name + str(rank).translate(BELOW) * owner, ink_on(colour(rank)), False
    elif count == ranks:
        sketch.box(x, y, wide, high, REDUCED)
        words, ink, bold = summed(name), "#ffffff", True
    else:
        sketch.box(x, y, wide, high, "#ffffff", SOFT)
        stripe, thick = (wide - 4) / ranks, 6 if high > 18 else 4
        for rank in range(ranks):
            if parts >> rank & 1:
                sketch.box(x + 2 + rank * stripe, y + high - thick - 1.5, stripe, thick, colour(rank), radius=0)
        words = f"{name} {count}/{ranks}".strip() if wide >= 30 else name
        size = min(10.5 if high > 24 else 9.5, size)
        sketch.text(x + wide / 2, y + (high - thick) / 2, words, size, "#000000")
        return
    sketch.text(x + wide / 2, y + high / 2, words, size, ink, bold=bold)


def chunk_width(name: str, parts: int, ranks: int, high: float) -> float:
    """Pixels that a chunk needs for its words."""
    size = 13 if high > 24 else 12 if high > 16 else 10.5 if high > 13 else 9.5
    if 1 < parts.bit_count() < ranks:
        return max(text_width(f"{name} {parts.bit_count()}/{ranks}", 9.5) + 8, 30)
    return text_width(summed(name), size, bold=True) + 8


def summed(name: str) -> str:
    """'Σa'; of a chunk that is added, '+Σa'."""
    return f"+Σ{name[1:]}" if name.startswith("+") else f"Σ{name}"
