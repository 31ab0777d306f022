"""What the views of a training step share: a picture with its text twin, and the words of both."""

from __future__ import annotations

from fractions import Fraction
from typing import Sequence

from ..draw.canvas import Picture
from ..frontend import show


class View:
    """Has `draw()`, a Picture, and `repr`, the same as text; a notebook shows both."""

    def draw(self) -> Picture:
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), rule: bool = False) -> str:
    """Rows in columns, those of `right` flush right.  rule: lines below the first row and above the last."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (f"{cell:>{w}}" if k in right else f"{cell:<{w}}" for k, (cell, w) in enumerate(zip(row, widths)))
        lines.append("  ".join(cells).rstrip())
    if rule:
        bar = "-" * max(map(len, lines))
        lines = [lines[0], bar, *lines[1:-1], bar, lines[-1]]
    return "\n".join(lines)


def exact(value: int | Fraction) -> str:
    """'1,024'; '1,024/3' where it is no whole number"""
    value = Fraction(value)
    return f"{value.numerator:,}" if value.denominator == 1 else f"{value.numerator:,}/{value.denominator}"


def spread(values: Sequence[int | Fraction]) -> str:
    """'1,024' where all are that, '512 to 1,024' where they differ."""
    low, high = min(values, default=0), max(values, default=0)
    return exact(low) if low == high else f"{exact(low)} to {exact(high)}"


def said_layers(layers: Sequence[str], most: int = 3) -> str:
    """'embed, block0'; 'block0 ... block31 (32)'"""
    named = [layer for layer in layers if layer]
    return ", ".join(named) if len(named) <= most else f"{named[0]} ... {named[-1]} ({len(named)})"


def tinted(tint: str, share: float) -> str:
    """A colour mixed with white: so much of it."""
    return "#" + "".join(f"{round(255 - (255 - int(tint[i : i + 2], 16)) * share):02x}" for i in (1, 3, 5))
