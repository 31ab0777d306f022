"""The short tasks of chapter 10: seconds, and what they say.

equal_parts(alpha, bandwidth): where latency is half of the time.  bus_bandwidth(op, n, nbytes, seconds): in GB/s.
exposed(backward, count, seconds): the last bucket's end after the backward pass.
read_link(n, small, large): a link's latency and bandwidth, from two times of a ring all_reduce.
"""

from math import isclose
from typing import Any

from collectives.format import duration, kind
from helpers.exercise import Case, Finding, Puzzle, valued

# --- equal_parts --------------------------------------------------------------------------

EQUAL_PARTS = valued(
    "equal_parts",
    {
        "20 µs and 4 GB/s": (2e-5, 4e9),
        "5 µs and 25 GB/s": (5e-6, 25e9),
        "1 ms and 0.1 GB/s": (1e-3, 1e8),
        "600 ns and 450 GB/s": (6e-7, 450e9),
    },
    lambda alpha, bandwidth: alpha * bandwidth,
    suspects={
        lambda alpha, bandwidth: (
            alpha / bandwidth
        ): "a byte takes 1 / bandwidth seconds. What is alpha divided by that?",
        lambda alpha, bandwidth: 1 / (alpha * bandwidth): "this is one over the size.",
        lambda alpha, bandwidth: 2 * alpha * bandwidth: "at this size, latency is a third of the time.",
        lambda alpha, bandwidth: alpha * bandwidth / 2: "at this size, latency is two thirds of the time.",
    },
    thought="for which n is alpha as long as n / bandwidth?",
    praise="With 600 ns and 450 GB/s: {} bytes.",
)


# --- bus_bandwidth ------------------------------------------------------------------------

ONCE = ("all_gather", "reduce_scatter", "all_to_all")


def algorithm_bandwidth(op, n, nbytes, seconds):
    return nbytes / seconds / 1e9


def bus_bandwidth(op, n, nbytes, seconds):
    factor = 2 * (n - 1) / n if op == "all_reduce" else (n - 1) / n if op in ONCE else 1
    return algorithm_bandwidth(op, n, nbytes, seconds) * factor


BUS_BANDWIDTH = valued(
    "bus_bandwidth",
    {
        "an all_reduce of 8 ranks": ("all_reduce", 8, 2**30, 0.004),
        "an all_gather of 4 ranks": ("all_gather", 4, 2**28, 0.01),
        "a broadcast of 16 ranks": ("broadcast", 16, 2**30, 0.02),
        "a reduce_scatter of 64 ranks": ("reduce_scatter", 64, 2**30, 0.0035),
        "a reduce of 8 ranks": ("reduce", 8, 2**20, 0.0002),
        "an all_to_all of 8 ranks": ("all_to_all", 8, 2**30, 0.0026),
        "an all_reduce of 1,024 ranks": ("all_reduce", 1024, 2**33, 0.05),
    },
    bus_bandwidth,
    suspects={
        algorithm_bandwidth: "this is algbw. By which factor do the bytes that a link carries differ from the buffer?",
        lambda *of: bus_bandwidth(*of) * 1e9: "this is in bytes per second. A GB is 10**9 bytes.",
        lambda *of: bus_bandwidth(*of) * 1e9 / 2**30: "a GB/s has 10**9 bytes. This counts 2**30.",
        lambda op, n, nbytes, seconds: (
            2 * (n - 1) / n * nbytes / seconds / 1e9
        ): "the factor 2(N-1)/N is all_reduce's. Which one do the others have?",
    },
    thought="first algbw, bytes over seconds, then the factor of this collective.",
    praise="With an all_reduce of 1,024 ranks: {} GB/s.",
)


# --- exposed ------------------------------------------------------------------------------


def exposed(backward, count, seconds):
    end = 0.0
    for k in range(1, count + 1):
        end = max(end, k * backward / count) + seconds
    return end - backward


EXPOSED = valued(
    "exposed",
    {
        "4 buckets that hide": (0.4, 4, 0.05),
        "1 bucket": (0.3, 1, 0.1),
        "10 buckets that are too slow": (0.2, 10, 0.05),
        "534 buckets of 0.5 ms": (0.29, 534, 0.0005),
        "534 buckets of 0.6 ms": (0.29, 534, 0.0006),
    },
    exposed,
    suspects={
        lambda backward, count, seconds: max(
            0.0, count * seconds - backward
        ): "even if all the others hide, the last bucket is ready only when the pass is over.",
        lambda backward, count, seconds: (
            exposed(backward, count, seconds) + backward
        ): "this is when the last sum ends, counted "
        "from the start of the backward pass. How long is that after the pass?",
        lambda backward, count, seconds: (
            count * seconds
        ): "these are all sums, as if none could start before the end of the pass.",
        lambda backward, count, seconds: (
            max(0.0, count * seconds - backward) + seconds
        ): "the first sum can't start before the first bucket is ready, at backward / count.",
        lambda backward, count, seconds: (
            seconds
        ): "that is right while the sums keep up with the buckets. What if each takes longer than "
        "a bucket takes to fill?",
    },
    thought="go through the buckets one by one. A sum starts when its bucket is ready and the sum before it has ended.",
    praise="With 534 buckets of 0.6 ms: {} s.",
)


# --- read_link ----------------------------------------------------------------------------

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
        return Finding("values", words=words, thought="alpha is in seconds, bandwidth in bytes per second.")
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
        (got[0], start / (n - 1), "a ring goes around twice: to add up, and to pass it on."),
        (got[1], rate, "that is S / T. How many times its buffer does each rank of a ring send?"),
        (got[1], large[0] / large[1], "that is the algbw of the large buffer. How much does each rank send for it?"),
        (got[1], rate * 2 * (n - 1), "a step carries 1/N of the buffer, not all of it."),
    )
    for number, of_mistake, words in known:
        if isclose(number, of_mistake, rel_tol=1e-3):
            return words
    return "write the ring's time as steps x alpha + bytes x beta, once for each measurement. Two lines, two unknowns."


def praise(case: Case, arguments: tuple, result: Any) -> str:
    return f"With {case.kind}: {said(tuple(result))}."


READ_LINK = Puzzle(NAME, tuple(Case(1, f"{n} ranks", n) for n in RANKS), draw, verdict, praise)

TASKS = (EQUAL_PARTS, BUS_BANDWIDTH, EXPOSED, READ_LINK)
