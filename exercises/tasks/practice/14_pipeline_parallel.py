"""The short tasks of chapter 14: messages between stages, and the orders of a pipeline.

through_stages(x, w): forward through all stages.  microbatches_needed(ranks, most): for a bubble of at most so much.
order_1f1b(rank, ranks, microbatches): a rank's order in 1F1B.  exchange(activation, gradient): with both neighbors at once.
tied_gradient(gradient): the sum of the two gradients of a table that the first and the last rank share.
"""

from typing import Any

from collectives.algorithms.pipeline.schedules import one_f_one_b_row
from collectives.format import kind
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task

CASES = tuple(Case(n, size=2, late=0 if n in (3, 7) else None) for n in (2, 3, 4, 5, 6, 7, 8, 1)) + (
    Case(4, "negative numbers", 1),
)


# --- through_stages -----------------------------------------------------------------------

WIDTH = 2


def stages(args):
    """Each rank's result: rank 0's x, times the matrices up to this rank's."""
    results, y = [], args[0][0]
    for _, w in args:
        y = y @ w
        results.append(y)
    return results


def one_message_each(case, args):
    n, nbytes = case.world_size, args[0][0].nbytes
    return Budget(
        "one message per boundary",
        sent=[nbytes] * (n - 1) + [0],
        received=[0] + [nbytes] * (n - 1),
        messages=[1] * (n - 1) + [0],
        steps=n - 1,
    )


THROUGH_STAGES = Task(
    "through_stages",
    CASES,
    lambda d: (d.numbers(d.case.size, WIDTH), d.integers(-1, 2, WIDTH, WIDTH)),  # products stay small
    stages,
    one_message_each,
    needs=lambda case, args: [0] + [args[0][0].nbytes] * (case.world_size - 1),
    allowed=frozenset({"send", "recv"}),
    parameters=("x", "w"),
    suspects=(
        Suspect(
            lambda args: [x @ w for x, w in args],
            "each rank has multiplied its own x. What comes from the rank before?",
        ),
        Suspect(
            lambda args: [stages(args)[max(rank - 1, 0)] if rank else args[0][0] for rank in range(len(args))],
            "this is what the rank received. Its own matrix is missing.",
        ),
    ),
    thoughts={
        "values": "rank 0 takes x, any other rank what the rank before sends. Which result does a rank send on?",
        "Stuck": "rank 0 has no rank before it, and the last rank none after it.",
    },
)


# --- microbatches_needed ------------------------------------------------------------------

NEEDED = "microbatches_needed"
LIMITS = {"4 ranks, 5%": (4, 0.05), "2 ranks, 10%": (2, 0.1), "4 ranks, 50%": (4, 0.5), "1 rank, 5%": (1, 0.05)}
LIMITS["8 ranks, 3%"] = (8, 0.03)


def fewest(ranks: int, most: float, of_time: bool = False, strictly: bool = False) -> int:
    """The fewest microbatches with a bubble of at most so much of the work (of the time), or strictly below it."""
    for m in range(1, 10_000):
        bubble = (ranks - 1) / (m + ranks - 1 if of_time else m)
        if bubble < most or bubble == most and not strictly:
            return m
    raise ValueError("more than 10,000 microbatches")


def judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    expected = fewest(*arguments)
    if isinstance(result, int) and result == expected:
        return None
    said = f"{NEEDED} is wrong with {case.kind}: expected {expected}, got"
    if isinstance(result, bool) or not isinstance(result, (int, float)):
        return Finding("values", words=f"{said} {kind(result)}.", thought="it returns how many microbatches, an int.")
    known = (
        (
            fewest(*arguments, of_time=True),
            "that is for a bubble as a fraction of the time. Of the work, it's (p - 1) / m.",
        ),
        (fewest(*arguments, strictly=True), "exactly the limit is allowed too."),
        (float(expected), "the number is right, but it's a float. Microbatches are counted: return an int, rounded up."),
        (0, "a step has at least one microbatch, even on one rank."),
        (expected - 1, "with one fewer, the bubble is just above the limit. Round up."),
    )
    thought = next((thought for mistaken, thought in known if result == mistaken), "")
    return Finding("values", words=f"{said} {result}.", thought=thought or "the bubble is (p - 1) / m of the work.")


MICROBATCHES_NEEDED = Puzzle(
    NEEDED,
    tuple(Case(1, words) for words in LIMITS),
    lambda d: LIMITS[d.case.kind],
    judged,
    lambda case, arguments, result: f"With {case.kind}: {result} microbatches.",
)


# --- order_1f1b ---------------------------------------------------------------------------

ORDER = "order_1f1b"
PLACES = {  # what a case says -> (rank, ranks, microbatches)
    "4 ranks, 8 microbatches, rank 0": (0, 4, 8),
    "4 ranks, 8 microbatches, rank 3": (3, 4, 8),
    "4 ranks, 2 microbatches, rank 0": (0, 4, 2),
    "1 rank, 3 microbatches": (0, 1, 3),
    "8 ranks, 16 microbatches, rank 2": (2, 8, 16),
}


def row(warm: int, microbatches: int) -> list[str]:
    """So many forwards, then a forward and a backward alternately, then the remaining backwards."""
    return one_f_one_b_row(warm + 1, microbatches)


def order_judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    rank, ranks, microbatches = arguments
    expected = row(ranks - 1 - rank, microbatches)
    said = f"{ORDER} is wrong with {case.kind}"
    if not isinstance(result, (list, tuple)) or not all(isinstance(action, str) for action in result):
        words = f"{said}: it must return a list of actions, not {kind(result)}."
        return Finding("values", words=words, thought='the list for one microbatch is ["F0", "B0"].')
    if list(result) == expected:
        return None
    words = f"{said}.\n  expected {' '.join(expected)}\n  got      {' '.join(result)}"
    known = (
        (row(0, microbatches), "there is no warm-up here. How many forwards fill the pipeline behind this rank?"),
        (
            row(ranks - rank, microbatches),
            "that is one forward too many before they alternate: the rank keeps one more.",
        ),
        (
            row(rank, microbatches),
            "the warm-up is turned around: the first rank's is the longest, and the last rank needs none.",
        ),
        (row(microbatches, microbatches), "that is GPipe's order. When can the first backward start?"),
    )
    thought = next((thought for mistaken, thought in known if list(result) == mistaken), "")
    if not thought and sorted(result) != sorted(expected):
        thought = "each microbatch has one forward and one backward in the list, even if there are fewer than ranks."
    return Finding(
        "values", words=words, thought=thought or "warm-up, then one forward and one backward, then what is left."
    )


ORDER_1F1B = Puzzle(
    ORDER,
    tuple(Case(1, words) for words in PLACES),
    lambda d: PLACES[d.case.kind],
    order_judged,
    lambda case, arguments, result: f"With {case.kind}: {' '.join(result[:8])} ...",
)


# --- exchange -----------------------------------------------------------------------------


def from_neighbors(args):
    n = len(args)
    return [(args[r - 1][0] if r else None, args[r + 1][1] if r < n - 1 else None) for r in range(n)]


def both_neighbors(case, args):
    n, nbytes = case.world_size, args[0][0].nbytes
    many = [(rank > 0) + (rank < n - 1) for rank in range(n)]
    bytes_each = [k * nbytes for k in many]
    return Budget(
        "one message to each neighbor, and four steps", sent=bytes_each, received=bytes_each, messages=many, steps=4
    )


EXCHANGE = Task(
    "exchange",
    CASES,
    lambda d: (d.numbers(d.case.size), d.numbers(d.case.size)),
    from_neighbors,
    both_neighbors,
    needs=lambda case, args: both_neighbors(case, args).received,
    parameters=("activation", "gradient"),
    suspects=(
        Suspect(
            lambda args: [pair[::-1] for pair in from_neighbors(args)],
            "the pair is turned around. The activation from the rank before comes first.",
        ),
    ),
    thoughts={
        "values": "the activation comes from rank - 1, the gradient from rank + 1, and the ends have one neighbor only.",
        "Stuck": "every rank waits in a send, or for a rank that isn't there. Start all messages, then wait for all.",
        "Mismatch": "every rank sends to each neighbor that it receives from.",
        "steps": "the result is right, but the messages travel one after the other along all ranks. Start all of them at once.",
    },
)


# --- tied_gradient ------------------------------------------------------------------------


def is_end(rank: int, n: int) -> bool:
    return rank in (0, n - 1)


def summed(args):
    n = len(args)
    total = sum(args[rank][0] for rank in sorted({0, n - 1}))
    return [total if is_end(rank, n) else None for rank in range(n)]


def between_the_ends(case, args):
    n = case.world_size
    limit = [args[0][0].nbytes * (n > 1 and is_end(rank, n)) for rank in range(n)]
    return Budget("one all_reduce between the two", sent=limit, received=limit)


TIED_GRADIENT = Task(
    "tied_gradient",
    CASES,
    lambda d: (d.numbers(d.case.size) if is_end(d.rank, d.world_size) else None,),
    summed,
    between_the_ends,
    needs=lambda case, args: between_the_ends(case, args).received,
    parameters=("gradient",),
    suspects=(
        Suspect(
            lambda args: [gradient for (gradient,) in args],
            "each end has the gradient of its own copy only. The other's is missing.",
        ),
        Suspect(
            lambda args: [None if each is None else each / 2 for each in summed(args)],
            "this is the mean. Both copies are one parameter, and its gradient is the sum of both uses.",
        ),
    ),
    thoughts={
        "values": "the two gradients add up, on both ends. The ranks between them return None.",
        "traffic": "the result is right, but the ranks between the ends send or receive something. Make a group of the two.",
        "Stuck": "every rank must call new_group, even one that won't be a member.",
        "Mismatch": "every rank must call new_group, even one that won't be a member, in the same order and with the same ranks.",
        "RankFailed": "the ranks between the ends have None: there is nothing to add.",
    },
)

TASKS = (THROUGH_STAGES, MICROBATCHES_NEEDED, ORDER_1F1B, EXCHANGE, TIED_GRADIENT)
