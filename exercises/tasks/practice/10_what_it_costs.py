"""read_link(n, small, large): a link's latency and bandwidth, from two times of a ring all_reduce."""

from math import isclose
from typing import Any

from collectives.format import duration, kind
from helpers.exercise import Case, Finding, Puzzle

NAME = "read_link"
RANKS = (4, 2, 3, 5, 64, 8)
SMALL, LARGE = 2**10, 2**30


def draw(d):
    """n and two measurements, (bytes, seconds), of links between those of a node and of a slow network."""
    n, alpha, bandwidth = d.case.size, d.integer(5, 500) * 1e-7, d.integer(1, 400) * 1e9
    return n, (SMALL, ring_seconds(n, SMALL, alpha, bandwidth)), (LARGE, ring_seconds(n, LARGE, alpha, bandwidth))


def ring_seconds(n: int, nbytes: float, alpha: float, bandwidth: float) -> float:
    return 2 * (n - 1) * (alpha + nbytes / n / bandwidth)


def line(small: tuple, large: tuple) -> tuple[float, float]:
    """Seconds at 0 bytes, and bytes/s of the slope."""
    slope = (large[1] - small[1]) / (large[0] - small[0])
    return small[1] - slope * small[0], 1 / slope


def exact(n: int, small: tuple, large: tuple) -> tuple[float, float]:
    """(latency in seconds, bandwidth in bytes/s)"""
    start, rate = line(small, large)
    return start / (2 * (n - 1)), rate * 2 * (n - 1) / n


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    wanted = exact(*arguments)
    try:
        alpha, bandwidth = map(float, result)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        words = f"{NAME} must return two numbers, (alpha, bandwidth), not {kind(result)}."
        return Finding("values", words=words, thought="alpha is in seconds, the bandwidth in bytes a second.")
    got = alpha, bandwidth
    if all(isclose(g, w, rel_tol=1e-4) for g, w in zip(got, wanted)):
        return None
    words = f"{NAME} is wrong with {case.kind}.\n  expected   {said(wanted)}\n  got        {said(got)}"
    return Finding("values", words=words, thought=suspicion(got, *arguments))


def said(link: tuple[float, float]) -> str:
    alpha, bandwidth = link
    latency = duration(alpha) if alpha >= 0 else f"{alpha:g} s"
    return f"latency {latency}, bandwidth {bandwidth / 1e9:.4g} GB/s"


def suspicion(got: tuple[float, float], n: int, small: tuple, large: tuple) -> str:
    """What to think about, from the mistake that gives this very number."""
    (_, bandwidth), (start, rate) = exact(n, small, large), line(small, large)
    known = (
        (got[1], 1 / bandwidth, "that is beta, the seconds of a byte. A bandwidth is one over it."),
        (got[0], bandwidth, "the latency comes first, then the bandwidth."),
        (got[0], start, "that is the latency of the whole all_reduce. How many steps of a ring does it hold?"),
        (got[0], start / (n - 1), "a ring goes round twice: once to add up, once to hand round."),
        (got[1], rate, "that is S / T. How many times its buffer does each rank of a ring send?"),
        (got[1], large[0] / large[1], "that is the algbw of the large buffer. How much does each rank send for it?"),
        (got[1], rate * 2 * (n - 1), "a step carries an N-th of the buffer, not all of it."),
    )
    for number, of_mistake, words in known:
        if isclose(number, of_mistake, rel_tol=1e-3):
            return words
    return "write the ring's time as steps x alpha + bytes x beta, once for each measurement. Two lines, two unknowns."


def praise(case: Case, arguments: tuple, result: Any) -> str:
    return f"With {case.kind}: {said(tuple(result))}."


TASK = Puzzle(NAME, tuple(Case(1, f"{n} ranks", n) for n in RANKS), draw, verdict, praise)
