"""Ring and tree all_reduce over the size of the buffer: two lines that cross."""

from __future__ import annotations

from math import isfinite, log2
from typing import Sequence

from ..algorithms import ring_all_reduce, tree_all_reduce
from ..draw.canvas import FAINT, INK, SERIES, SOFT, WIDTH, Canvas, Picture, heading
from ..format import duration
from ..machines.model import flat
from .cost import cost


def ring_and_tree(n: int, nbytes: float, alpha: float, beta: float) -> tuple[float, float]:
    """Seconds of the ring and of the binomial tree, each 2 x its steps of latency + bytes.

    n: ranks.  alpha: seconds of latency.  beta: seconds a byte.
    """
    machine = flat(alpha, 1 / beta)
    return cost(ring_all_reduce(n), nbytes, machine).seconds, cost(tree_all_reduce(n), nbytes, machine).seconds


def in_bytes(nbytes: float) -> str:
    return f"{nbytes:,.0f} bytes" if isfinite(nbytes) and abs(nbytes) >= 10 else f"{nbytes:.3g} bytes"


class Crossover:
    """Picture of both times over the size, both axes logarithmic.

    marks: sizes in bytes, by name.  measured: (bytes, seconds of the ring, seconds of the tree), drawn as dots.
    """

    def __init__(
        self, n: int, alpha: float, beta: float, marks: dict[str, float], measured: Sequence[tuple[float, ...]] = ()
    ) -> None:
        self.n, self.alpha, self.beta, self.measured = n, alpha, beta, measured
        self.marks = {name: nbytes for name, nbytes in marks.items() if isfinite(nbytes)}

    def draw(self) -> Picture:
        n, alpha, beta = self.n, self.alpha, self.beta
        around = [nbytes for nbytes, *_ in self.measured] or [alpha / beta / 100, alpha / beta * 100]
        first, last = log2(min(around)), log2(max(around))
        sizes = [2 ** (first + (last - first) * k / 40) for k in range(41)]
        lines = list(zip(*(ring_and_tree(n, nbytes, alpha, beta) for nbytes in sizes)))
        shown = [*lines, *(times for _, *times in self.measured)]
        left, top, wide, high = 70.0, 60.0, WIDTH - 220.0, 240.0
        low, most = log2(min(map(min, shown))), log2(max(map(max, shown)))

        def x(nbytes: float) -> float:
            return left + wide * (log2(nbytes / sizes[0]) / log2(sizes[-1] / sizes[0]))

        def y(time: float) -> float:
            return top + high * (1 - (log2(time) - low) / (most - low))

        sketch = Canvas()
        heading(sketch, f"all_reduce of {n} ranks", "seconds over bytes, both axes logarithmic")
        sketch.line([(left, top), (left, top + high), (left + wide, top + high)], FAINT, 1.0)
        for k in (0, 20, 40):
            sketch.text(x(sizes[k]), top + high + 14, in_bytes(sizes[k]), 11, SOFT)
        for time in (2**low, 2**most):
            sketch.text(left - 6, y(time), duration(time), 11, SOFT, align="right")
        for k, (name, times) in enumerate(zip(("ring", "tree"), lines)):
            sketch.line([(x(b), y(t)) for b, t in zip(sizes, times)], SERIES[k], 2.2)
            sketch.text(left + wide + 8, y(times[-1]), name, 12.5, INK, align="left")
            for nbytes, *seconds in self.measured:
                sketch.circle(x(nbytes), y(seconds[k]), 4, SERIES[k])
        inside = {name: nbytes for name, nbytes in self.marks.items() if sizes[0] <= nbytes <= sizes[-1]}
        for row, (name, nbytes) in enumerate(inside.items()):
            sketch.line([(x(nbytes), top), (x(nbytes), top + high)], SOFT, 1.2, dashed=True)
            before = nbytes == min(inside.values()) and len(inside) > 1
            where, align = (x(nbytes) - 5, "right") if before else (x(nbytes) + 5, "left")
            sketch.text(where, top + 8 + 16 * row, f"{name} {in_bytes(nbytes)}", 11.5, INK, align=align)
        rows = [f"{name:<10} {in_bytes(nbytes)}" for name, nbytes in self.marks.items()]
        rows += [f"{in_bytes(b):>16}   ring {duration(r)}, tree {duration(t)}" for b, r, t in self.measured]
        return Picture([sketch], "\n".join(rows), f"Picture: seconds of ring and tree all_reduce over bytes, {n} ranks")
