"""What is written beside shapes: the ranks' names at their rows, and what each tint means."""

from math import inf
from typing import Callable, Iterable

from .canvas import INK, SOFT, Canvas, colour, text_width

Sample = str | Callable[[Canvas, float, float, float, float], None]  # a tint, or what draws at x, y, width, height


def rank_label(rank: int, root: bool = False) -> str:
    """'rank 2', with a star before a root."""
    return "★ " * root + f"rank {rank}"


class RankLabels:
    """The names of a picture's ranks, flush right before their rows; a root's is bold.

    .width: pixels that the widest of them takes.  size: of the letters, in pixels.
    """

    def __init__(
        self, ranks: Iterable[int], size: float = 13, roots: Iterable[int | None] = (), tint: str = INK
    ) -> None:
        self.size, self.roots, self.tint = size, set(roots), tint
        names = [(rank_label(rank, rank in self.roots), rank in self.roots) for rank in ranks]
        self.width = max(text_width(words, size, bold=root) for words, root in names)

    def draw(self, sketch: Canvas, x: float, y: float, rank: int, stripe: float = 0.0) -> None:
        """x: where the name ends.  y: its middle.  stripe: how high to mark the row in the rank's colour, beside it."""
        root = rank in self.roots
        sketch.text(x, y, rank_label(rank, root), self.size, self.tint, align="right", bold=root)
        if stripe:
            gap, wide = (6, 4) if self.size > 12 else (4, 3)
            sketch.box(x + gap, y - stripe / 2, wide, stripe, colour(rank), radius=wide / 2)


def legend(
    sketch: Canvas,
    x: float,
    y: float,
    entries: Iterable[tuple[Sample, str]],
    *,
    sample: tuple[float, float] = (10, 10),
    pad: float = 5,
    between: float = 23,
    size: float = 11,
    right: float = inf,
) -> float:
    """Writes samples and what they mean in a line whose middle is y; returns where the next would begin.

    sample: width and height of one.  pad: from it to its words.  between: from there to the next.
    right: entries that would reach further are left out.
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
