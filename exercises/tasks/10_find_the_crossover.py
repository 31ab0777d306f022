"""crossover(n, alpha, beta): the buffer size at which ring and tree all_reduce take the same time."""

from math import ceil, inf, isclose, isfinite, log2
from typing import Any

import torch

from collectives.cost.crossover import Crossover, in_bytes, ring_and_tree
from collectives.format import duration, kind
from helpers.exercise import Case, Finding, Puzzle

NAME = "crossover"
RANKS = (4, 2, 3, 5, 16, 65, 129, 8)
EXACT = 5  # ranks, where the crossover is so small, and so far from a multiple of 16 bytes, that a rounded one is wrong


def draw(d):
    """n, and latency and bandwidth of anything from one node's links to a slow network."""
    n = d.case.size
    while True:
        alpha = d.integer(5, 50 if n == EXACT else 500) * 1e-7
        beta = 1 / (d.integer(1, 20 if n == EXACT else 400) * 1e9)
        if n != EXACT or 4 < exact(n, alpha, beta) % 16 < 12:
            return n, alpha, beta


def exact(n: int, alpha: float, beta: float) -> float:
    """Both times are straight lines over the size: where they meet, from their values at 0 and at 1 byte."""
    scale = alpha / beta  # a size at which latency and bytes weigh alike
    (ring, tree), (ring_more, tree_more) = ring_and_tree(n, 0, alpha, beta), ring_and_tree(n, scale, alpha, beta)
    return scale * max(0.0, ring - tree) / ((tree_more - tree) - (ring_more - ring))


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    n, alpha, beta = arguments
    wanted = exact(*arguments)
    if isinstance(result, torch.Tensor) and result.numel() == 1:
        result = result.item()
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        printed = "printing a number does not return it."
        return Finding(
            "values",
            words=f"{NAME} must return a number of bytes, not {kind(result)}.",
            thought=printed if result is None else "one size in bytes, an int or a float.",
        )
    try:
        result = float(result)
    except OverflowError:
        result = inf if result > 0 else -inf
    if isfinite(result) and abs(result - wanted) <= max(1.0, 1e-6 * wanted):
        return None
    details = [f"  expected   {in_bytes(wanted)}", f"  got        {in_bytes(result)}"]
    if isfinite(result) and result >= 0:
        ring, tree = map(duration, ring_and_tree(n, result, alpha, beta))
        more = "At the crossover both take the same." if wanted else "Here the ring is never the slower one."
        details.append(f"For {in_bytes(result)} the ring takes {ring}, and the tree {tree}. {more}")
    headline = f"{NAME} is wrong with {case.kind}, alpha = {duration(alpha)} and beta = 1 / ({1 / beta / 1e9:g} GB/s)."
    lines = Crossover(n, alpha, beta, {"wanted": wanted, "got": result})
    thought = suspicion(result, n, alpha, beta)
    return Finding("values", words="\n".join([headline, *details]), thought=thought, shows=lines)


def suspicion(result: float, n: int, alpha: float, beta: float) -> str:
    """What to think about, from the mistake that gives this very number."""
    unit, up = alpha / beta, ceil(log2(n))

    def meet(ring_steps: float, ring_bytes: float, tree_steps: float, tree_bytes: float) -> float:
        parallel = tree_bytes == ring_bytes
        return float("nan") if parallel else unit * (ring_steps - tree_steps) / (tree_bytes - ring_bytes)

    ring, tree = (2 * (n - 1), 2 * (n - 1) / n), (2 * up, 2 * up)
    down, smooth = n.bit_length() - 1, log2(n)
    known = (
        (unit, 
            "alpha / beta is where one message spends as long on latency as on bytes. How many steps does the ring "
            "have, how many does the tree have, and how many bytes go in each?"),
        (meet(ring[0], ring[0], *tree), "a ring's message carries one chunk, 1/N of the buffer, not all of it."),
        (meet(n - 1, (n - 1) / n, *tree), "the ring goes around twice: once to add up, once to pass the sums around."),
        (meet(*ring, up, up), "the tree goes up, and then down again."),
        (meet(n - 1, (n - 1) / n, up, up) if n > 3 else float("nan"), "both go twice: there and back."),
        (meet(*ring, 2 * smooth, 2 * smooth), "there are no half steps: with 5 ranks the tree has 3 steps up."),
        (meet(*ring, 2 * down, 2 * down), "the tree reaches 2, 4, 8 ranks with 1, 2, 3 steps. How many does it need for 5?"),
        (meet(n, 1, *tree), "how many messages does it take from the first rank of a ring to the last?"),
        (exact(n, alpha, beta) / 4, "this counts numbers of 4 bytes; the task asks for bytes."),
        (exact(n, alpha, 1 / beta), "beta is seconds per byte, so it gets smaller where the network gets faster."),
    )  # fmt: skip
    for number, words in known:
        if isfinite(number) and isclose(result, number, rel_tol=1e-4):
            return words
    if result < 0:
        return (
            "a size below 0: with so few ranks the tree never wins, so the ring is the better one from 0 bytes onward."
        )
    return "write both times as steps x alpha + bytes x beta, for this n, and put in the size that you return."


def praise(case: Case, arguments: tuple, result: Any) -> str:
    n, alpha, beta = arguments
    return (
        f"With {case.kind}, alpha = {duration(alpha)} and beta = 1 / ({1 / beta / 1e9:g} GB/s) it is {in_bytes(result)}: both take "
        f"{duration(ring_and_tree(n, result, alpha, beta)[0])}."
    )


TASK = Puzzle(
    NAME,
    tuple(Case(1, f"{n} ranks", n) for n in RANKS),
    draw,
    verdict,
    praise,
)
