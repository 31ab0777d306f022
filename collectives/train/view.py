"""The base of a training step's views: a picture with its text twin, and the words of both."""

from fractions import Fraction
from typing import Any, Hashable, Iterable, Sequence

from ..frontend import show


class View:
    """Has `draw()`, a Picture, and `repr`, the same as text; a notebook shows both."""

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def exact(value: int | Fraction) -> str:
    """'1,024'; '1,024/3' if it isn't an integer"""
    value = Fraction(value)
    return f"{value.numerator:,}" if value.denominator == 1 else f"{value.numerator:,}/{value.denominator}"


def extent(values: Sequence[int | Fraction]) -> str:
    """'1,024' where all are that, '512 to 1,024' where they differ."""
    low, high = min(values, default=0), max(values, default=0)
    return exact(low) if low == high else f"{exact(low)} to {exact(high)}"


def said_layers(layers: Sequence[str], most: int = 3) -> str:
    """'embed, block0'; 'block0 ... block31 (32)'"""
    named = [layer for layer in layers if layer]
    return ", ".join(named) if len(named) <= most else f"{named[0]} ... {named[-1]} ({len(named)})"


def group_equal(rows: Iterable[tuple[int, Hashable]]) -> dict[Any, list[int]]:
    """Each distinct row, with the ranks that have it.  rows: (rank, row)."""
    ranks: dict[Any, list[int]] = {}
    for rank, row in rows:
        ranks.setdefault(row, []).append(rank)
    return ranks
