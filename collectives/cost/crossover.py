"""Ring and tree all_reduce over the size of the buffer: two lines that cross."""

from typing import Sequence

import numpy as np

from ..algorithms import ring_all_reduce, tree_all_reduce
from ..draw.canvas import SERIES, SOFT
from ..draw.chart import Chart, label_ends, note, seconds_axis, ticks, titled
from ..machines.topology import flat
from .cost import cost


def ring_and_tree(n: int, nbytes: float, alpha: float, beta: float) -> tuple[float, float]:
    """Seconds of the ring and of the binomial tree of n ranks.  alpha: seconds of latency.  beta: seconds per byte."""
    machine = flat(alpha, 1 / beta)
    return cost(ring_all_reduce(n), nbytes, machine).seconds, cost(tree_all_reduce(n), nbytes, machine).seconds


def in_bytes(nbytes: float) -> str:
    return f"{nbytes:,.0f} bytes" if 10 <= abs(nbytes) < 1e15 else f"{nbytes:.3g} bytes"


class Crossover:
    """Picture of both times over the size, both axes logarithmic.

    marks: sizes in bytes, by name.  measured: (bytes, seconds of the ring, seconds of the tree), drawn as dots.
    """

    def __init__(
        self, n: int, alpha: float, beta: float, marks: dict[str, float], measured: Sequence[tuple[float, ...]] = ()
    ) -> None:
        self.n, self.alpha, self.beta, self.marks, self.measured = n, alpha, beta, marks, measured

    def draw(self) -> Chart:
        dots = list(zip(*self.measured))
        sizes = dots[0] if dots else (self.alpha / self.beta / 100, self.alpha / self.beta * 100)
        sizes = np.geomspace(min(sizes), max(sizes), 41)
        lines = zip(*(ring_and_tree(self.n, nbytes, self.alpha, self.beta) for nbytes in sizes))
        chart = Chart(f"Picture: seconds of ring and tree all_reduce over bytes, {self.n} ranks")
        (ax,) = chart.panels
        ends = []
        for k, (name, times, tint) in enumerate(zip(("ring", "tree"), lines, SERIES), 1):
            ax.loglog(sizes, times, color=tint, lw=2)
            if dots:
                ax.loglog(dots[0], dots[k], "o", color=tint, ms=5)
            ends.append((name, sizes[-1], times[-1], tint))
        ticks(ax.xaxis, sizes[::20], in_bytes)
        seconds_axis(ax)
        titled(ax, f"all_reduce of {self.n} ranks", "bytes")
        inside = {name: nbytes for name, nbytes in self.marks.items() if sizes[0] <= nbytes <= sizes[-1]}
        for row, (name, nbytes) in enumerate(inside.items()):
            ax.axvline(nbytes, color=SOFT, lw=1.2, ls="--")
            by, side = (-4, "right") if len(inside) > 1 and nbytes == min(inside.values()) else (4, "left")
            note(ax, f"{name} {in_bytes(nbytes)}", (nbytes, ax.get_ylim()[1]), (by, -8 - 13 * row), side)
        label_ends(ax, ends)
        return chart
