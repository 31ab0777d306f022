"""crossover(n, alpha, beta): the buffer size at which ring and tree all_reduce take the same time."""

from __future__ import annotations

from math import ceil, isclose, isfinite, log2
from typing import Any, Sequence

from ...canvas import FAINT, INK, SOFT, WIDTH, Picture, Sketch, colour, heading
from ...network import cost, flat
from ...network.cost import said_seconds
from ...schedule import ring_all_reduce, tree_all_reduce
from ..cases import Case
from ..judge import Verdict
from ..puzzle import Puzzle
from ..words import kind

NAME = "crossover"
RANKS = (4, 2, 3, 5, 16, 64, 100, 8)


def draw(d):
    """n, and latency and bandwidth of anything from one node's links to a slow network."""
    n = d.case.size
    alpha, bandwidth = d.integer(5, 500) * 1e-7, d.integer(1, 400) * 1e9
    return n, alpha, 1 / bandwidth


def seconds(n: int, nbytes: float, alpha: float, beta: float) -> tuple[float, float]:
    """Of the ring and of the binomial tree, each 2 x its steps of latency + bytes."""
    machine = flat(alpha, 1 / beta)
    return cost(ring_all_reduce(n), nbytes, machine).seconds, cost(tree_all_reduce(n), nbytes, machine).seconds


def exact(n: int, alpha: float, beta: float) -> float:
    """Both times are straight lines over the size: where they meet, from their values at 0 and at 1 byte."""
    scale = alpha / beta  # a size at which latency and bytes weigh alike
    (ring, tree), (ring_more, tree_more) = seconds(n, 0, alpha, beta), seconds(n, scale, alpha, beta)
    return scale * max(0.0, ring - tree) / ((tree_more - tree) - (ring_more - ring))


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Verdict | None:
    n, alpha, beta = arguments
    wanted = exact(*arguments)
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        what = f"{NAME} must return a number of bytes, not {kind(result)}."
        printed = "printing a number does not return it."
        return Verdict("values", what, "", printed if result is None else "one size in bytes, an int or a float.")
    if isfinite(result) and abs(result - wanted) <= max(1.0, 1e-6 * wanted):
        return None
    details = [f"  wanted   {said(wanted)}", f"  got      {said(result)}"]
    if isfinite(result) and result >= 0:
        ring, tree = map(said_seconds, seconds(n, result, alpha, beta))
        more = "At the crossover both take the same." if wanted else "Here the ring is never the slower one."
        details.append(f"For {said(result)} the ring takes {ring}, and the tree {tree}. {more}")
    headline = (
        f"{NAME} is wrong with {case.kind}, alpha = {said_seconds(alpha)} and beta = 1 / ({1 / beta / 1e9:g} GB/s)."
    )
    lines = Lines(n, alpha, beta, {"wanted": wanted, "got": result})
    return Verdict("values", headline, "\n".join(details), suspicion(result, n, alpha, beta), lines)


def said(nbytes: float) -> str:
    return f"{nbytes:,.0f} bytes" if isfinite(nbytes) and abs(nbytes) >= 10 else f"{nbytes:.3g} bytes"


def suspicion(result: float, n: int, alpha: float, beta: float) -> str:
    """What to think about, from the mistake that gives this very number."""
    unit, up = alpha / beta, ceil(log2(n))

    def meet(ring_steps: float, ring_bytes: float, tree_steps: float, tree_bytes: float) -> float:
        parallel = tree_bytes == ring_bytes
        return float("nan") if parallel else unit * (ring_steps - tree_steps) / (tree_bytes - ring_bytes)

    ring, tree = (2 * (n - 1), 2 * (n - 1) / n), (2 * up, 2 * up)
    down, smooth = n.bit_length() - 1, log2(n)
    known = (
        (unit, "alpha / beta is where one message spends as long on latency as on bytes. How many steps has the ring, how "
               "many the tree, and how many bytes go in each?"),
        (meet(ring[0], ring[0], *tree), "a ring's message carries one chunk, an N-th of the buffer, not all of it."),
        (meet(n - 1, (n - 1) / n, *tree), "the ring goes round twice: once to add up, once to hand round."),
        (meet(*ring, up, up), "the tree goes up, and then down again."),
        (meet(n - 1, (n - 1) / n, up, up) if n > 3 else float("nan"), "both go twice: there and back."),
        (meet(*ring, 2 * smooth, 2 * smooth), "there are no half steps: with 5 ranks the tree has 3 steps up."),
        (meet(*ring, 2 * down, 2 * down), "the tree reaches 2, 4, 8 ranks with 1, 2, 3 steps. How many does it need for 5?"),
        (meet(n, 1, *tree), "how many messages does it take from the first rank of a ring to the last?"),
        (exact(n, alpha, beta) / 4, "bytes are wanted, not numbers of 4 bytes."),
        (exact(n, alpha, 1 / beta), "beta is seconds a byte, so it gets smaller where the network gets faster."),
    )  # fmt: skip
    for number, words in known:
        if isfinite(number) and isclose(result, number, rel_tol=1e-4):
            return words
    if result < 0:
        return "a size below 0: with so few ranks the tree never wins, so the ring is the better one from 0 bytes on."
    return "write both times as steps x alpha + bytes x beta, for this n, and put in the size that you return."


def praise(case: Case, arguments: tuple, result: Any) -> str:
    n, alpha, beta = arguments
    return (
        f"With {case.kind}, alpha = {said_seconds(alpha)} and beta = 1 / ({1 / beta / 1e9:g} GB/s) it is {said(result)}: both take "
        f"{said_seconds(seconds(n, result, alpha, beta)[0])}."
    )


class Lines:
    """Both times over the size, both axes logarithmic.

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
        lines = list(zip(*(seconds(n, nbytes, alpha, beta) for nbytes in sizes)))
        shown = [*lines, *(times for _, *times in self.measured)]
        left, top, wide, high = 70.0, 60.0, WIDTH - 220.0, 240.0
        low, most = log2(min(map(min, shown))), log2(max(map(max, shown)))

        def x(nbytes: float) -> float:
            return left + wide * (log2(nbytes / sizes[0]) / log2(sizes[-1] / sizes[0]))

        def y(time: float) -> float:
            return top + high * (1 - (log2(time) - low) / (most - low))

        sketch = Sketch()
        heading(sketch, f"all_reduce of {n} ranks", "seconds over bytes, both axes logarithmic")
        sketch.line([(left, top), (left, top + high), (left + wide, top + high)], FAINT, 1.0)
        for k in (0, 20, 40):
            sketch.text(x(sizes[k]), top + high + 14, said(sizes[k]), 11, SOFT)
        for time in (2**low, 2**most):
            sketch.text(left - 6, y(time), said_seconds(time), 11, SOFT, align="right")
        for k, (name, times) in enumerate(zip(("ring", "tree"), lines)):
            sketch.line([(x(b), y(t)) for b, t in zip(sizes, times)], colour(k), 2.2)
            sketch.text(left + wide + 8, y(times[-1]), name, 12.5, INK, align="left")
            for nbytes, *found in self.measured:
                sketch.circle(x(nbytes), y(found[k]), 4, colour(k))
        inside = {name: nbytes for name, nbytes in self.marks.items() if sizes[0] <= nbytes <= sizes[-1]}
        for row, (name, nbytes) in enumerate(inside.items()):
            sketch.line([(x(nbytes), top), (x(nbytes), top + high)], SOFT, 1.2, dashed=True)
            before = nbytes == min(inside.values()) and len(inside) > 1
            where, align = (x(nbytes) - 5, "right") if before else (x(nbytes) + 5, "left")
            sketch.text(where, top + 8 + 16 * row, f"{name} {said(nbytes)}", 11.5, INK, align=align)
        rows = [f"{name:<10} {said(nbytes)}" for name, nbytes in self.marks.items()]
        rows += [f"{said(b):>16}   ring {said_seconds(r)}, tree {said_seconds(t)}" for b, r, t in self.measured]
        text = "\n".join(rows)
        return Picture([sketch], text, f"Picture: seconds of ring and tree all_reduce over bytes, {n} ranks")


TASKS = (
    Puzzle(
        NAME,
        tuple(Case(1, f"{n} ranks", n) for n in RANKS),
        draw,
        verdict,
        praise,
        {"RankFailed": f"try it by hand, in a cell of its own: {NAME}(4, 1e-5, 1e-10)."},
    ),
)
