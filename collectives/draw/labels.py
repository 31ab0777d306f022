"""Text next to shapes: the ranks' names at their rows, and the meaning of each tint."""

from math import inf
from typing import Callable, Iterable

from .canvas import INK, SOFT, Canvas, colour, text_width
from .palette import LETTERS

Sample = str | Callable[[Canvas, float, float, float, float], None]  # a tint, or what draws at x, y, width, height
Entries = Iterable[tuple[Sample, str]]  # of a legend: each with what it means


def rank_label(rank: int, root: bool = False) -> str:
    """'rank 2', with a star before a root."""
    return "★ " * root + f"rank {rank}"


class RankLabels:
    """The names of a picture's ranks, flush right before their rows; a root's is bold.

    .width: the widest name's, in pixels.  size: the letters', in pixels.
    """

    def __init__(self, ranks: Iterable[int], size=13, roots: Iterable[int | None] = (), tint: str = INK) -> None:
        self.size, self.roots, self.tint = size, set(roots), tint
        rooted = ((rank, rank in self.roots) for rank in ranks)
        self.width = max(text_width(rank_label(rank, root), size, bold=root) for rank, root in rooted)

    def draw(self, sketch: Canvas, x: float, y: float, rank: int, stripe: float = 0.0) -> None:
        """x: where the name ends.  y: its middle.  stripe: height of the mark in the rank's color next to it."""
        root = rank in self.roots
        sketch.text(x, y, rank_label(rank, root), self.size, self.tint, align="right", bold=root)
        if stripe:
            gap, wide = (6, 4) if self.size > 12 else (4, 3)
            sketch.box(x + gap, y - stripe / 2, wide, stripe, colour(rank), radius=wide / 2)


def column_name(sketch: Canvas, x: float, y: float, word: str, letter: str) -> None:
    """Write a word above a column whose middle is x, with a letter (R, S or P) beside it if it isn't empty."""
    sketch.text(x, y, word, 11.5, SOFT)
    if letter:
        at, wide = x + text_width(word, 11.5) / 2 + 6, text_width(letter, 11, bold=True) + 8
        sketch.boxed(at, y - 8, wide, 16, letter, 11, LETTERS[letter[0]], radius=4, bold=True)


def legend(sketch: Canvas, x, y, entries: Entries, *, sample=(10, 10), pad=5, between=23, size=11, right=inf) -> float:
    """Write samples and their meanings in a line whose middle is y; return where the next one would begin.

    sample: its width and height, in pixels, as all lengths.  pad: from a sample to its words.  between: from there to
    the next.  size: the words'.  right: entries that would reach further are left out.
    """
    wide, high = sample
    for drawn, words in entries:
        end = x + wide + pad + text_width(words, size)
        if end > right:
            continue
        if callable(drawn):
            drawn(sketch, x, y - high / 2, wide, high)
        else:
            sketch.box(x, y - high / 2, wide, high, drawn, radius=2)
        sketch.text(x + wide + pad, y, words, size, SOFT, align="left")
        x = end + between
    return x
