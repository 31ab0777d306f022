"""The short tasks of chapter 11: gradients in one call and in buckets, clipped, and copies that must not drift apart.

mean_in_one_call(gradients): the mean of each, by one collective.  bucket_sizes(sizes, cap): the bytes of each bucket.
clipped_mean(gradient, limit): the mean gradient, its norm within a limit.  in_sync(x): whether x has the same bits on every rank.
"""

from itertools import accumulate
from typing import Any

import torch

from collectives.format import kind
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task


def one_all_reduce(nbytes, case, words, calls=None):
    """The budget of one all_reduce of so many bytes."""
    n = case.world_size
    limit = [2 * (n - 1) / n * nbytes] * n
    return Budget(words, sent=limit, received=limit, calls=calls)


# --- mean_in_one_call ---------------------------------------------------------------------

SIZES = tuple(Case(n, size=2, late=n - 1 if n == 4 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1)) + (
    Case(3, "negative numbers", 3),
    Case(2, "fractions", 1, torch.float64),
)


def three_gradients(d):
    """A matrix, a vector and a single number, as a layer's gradients may be."""
    return ([d.numbers(d.case.size, 3), d.numbers(d.case.size), d.numbers(1).reshape(())],)


def over_ranks(args, divisor):
    """Each gradient's sum over the ranks, divided."""
    lists = [gradients for (gradients,) in args]
    return [(sum(g.double() for g in same) / divisor).to(same[0].dtype) for same in zip(*lists)]


def bytes_of_all(case):
    return (4 * case.size + 1) * case.dtype.itemsize


MEAN_IN_ONE_CALL = Task(
    "mean_in_one_call",
    SIZES,
    three_gradients,
    lambda args: [over_ranks(args, len(args))] * len(args),
    lambda case, args: one_all_reduce(
        bytes_of_all(case), case, "one collective, and the bytes of one all_reduce", [1] * case.world_size
    ),
    needs=lambda case, args: [bytes_of_all(case)] * case.world_size if case.world_size > 1 else [0],
    parameters=("gradients",),
    suspects=(
        Suspect(
            lambda args: [over_ranks(args, 1)] * len(args),
            "these are the sums over the ranks. How many ranks are there?",
        ),
        Suspect(
            lambda args: [gradients for (gradients,) in args],
            "these are the rank's own gradients. Copy the parts of the mean back into the shapes.",
        ),
    ),
    thoughts={
        "values": "flatten each gradient, put them end to end, average, and cut the result at the same lengths.",
        "calls": "the result is right, but there is a call for each gradient. How can all of them travel in one tensor?",
        "traffic": "the result is right, but more travels than one all_reduce of all gradients.",
        "RankFailed": "torch.cat wants flat tensors, and view_as gives each part its shape back.",
    },
)


# --- bucket_sizes -------------------------------------------------------------------------

BUCKETS = "bucket_sizes"
ARRIVALS = {  # what a case says -> (sizes, cap)
    "a bucket that is filled exactly": ([40, 60, 30], 100),
    "a gradient larger than the cap": ([30, 250, 30, 30], 100),
    "no gradients": ([], 100),
    "nothing left at the end": ([60, 60, 60, 60], 100),
    "a cap of 0": ([8, 4, 2], 0),
    "a model's gradients": ([512, 64, 64, 256, 256, 64, 512], 600),
}


def closed(sizes: list[int], cap: float, after: bool = True, strictly: bool = False, rest: bool = True) -> list[int]:
    """The rule, and what people write instead: closed before a gradient would exceed the cap, only above it, no rest."""
    buckets, filled = [], 0
    for size in sizes:
        if not after and filled and filled + size > cap:
            buckets, filled = [*buckets, filled], 0
        filled += size
        if after and (filled > cap if strictly else filled >= cap):
            buckets, filled = [*buckets, filled], 0
    return buckets + [filled] * (filled > 0 and rest)


def never_emptied(sizes, cap):
    filled = list(accumulate(sizes))
    return [size for size in filled if size >= cap] + filled[-1:]


def judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    expected = closed(*arguments)
    said = f"{BUCKETS} is wrong with {case.kind}"
    if not isinstance(result, (list, tuple)) or not all(isinstance(size, (int, float)) for size in result):
        words = f"{said}: it must return a list of bytes, not {kind(result)}."
        return Finding("values", words=words, thought="one number for each bucket, in the order in which they leave.")
    if list(result) == expected:
        return None
    known = (
        (closed(*arguments, rest=False), "gradients are left over at the end. Who sends them?"),
        (
            closed(*arguments, after=False),
            "that closes a bucket before it holds `cap`. It leaves once it holds at least `cap`.",
        ),
        (closed(*arguments, strictly=True), "a bucket that holds exactly `cap` is full."),
        (expected + [0], "an empty bucket doesn't leave."),
        (never_emptied(*arguments), "these buckets only grow. What empties one when it leaves?"),
    )
    thought = next((thought for mistaken, thought in known if list(result) == mistaken), "")
    return Finding(
        "values",
        words=f"{said}.\n  expected {expected}\n  got      {list(result)}",
        thought=thought or "add a gradient first, and then ask whether the bucket is full.",
    )


BUCKET_SIZES = Puzzle(
    BUCKETS,
    tuple(Case(1, words) for words in ARRIVALS),
    lambda d: ARRIVALS[d.case.kind],
    judged,
    lambda case, arguments, result: f"With {case.kind}: {', '.join(map(str, result))}.",
)


# --- clipped_mean -------------------------------------------------------------------------

LIMIT = {"within the limit": 1000.0}  # of any other kind of case: 2
CLIPPED = tuple(Case(n, size=3, late=n - 1 if n == 3 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1)) + (
    Case(3, "within the limit", 3),
    Case(4, "within the limit", 5),
)


def own_clipped(args, at_most=1.0):
    """Each rank's own gradient, its norm within the limit."""
    return [g.double() * min(at_most, float(limit / g.double().norm())) for g, limit in args]


def mean_clipped(args, divisor=None, at_most=1.0):
    total, limit = sum(g.double() for g, _ in args), args[0][1]
    mean = total / (divisor or len(args))
    clipped = mean * min(at_most, float(limit / mean.norm()))
    return [clipped.to(args[0][0].dtype)] * len(args)


def mean_of_clipped(args):
    return [(sum(own_clipped(args)) / len(args)).to(args[0][0].dtype)] * len(args)


CLIPPED_MEAN = Task(
    "clipped_mean",
    CLIPPED,
    lambda d: (d.numbers(d.case.size) + d.rank, LIMIT.get(d.case.kind, 2.0)),
    mean_clipped,
    lambda case, args: one_all_reduce(case.size * case.dtype.itemsize, case, "one all_reduce of the gradient"),
    scale=lambda args: 1.0,
    needs=lambda case, args: [case.size * case.dtype.itemsize * (case.world_size > 1)] * case.world_size,
    parameters=("gradient", "limit"),
    suspects=(
        Suspect(
            mean_of_clipped,
            "this is the mean of clipped gradients. Each rank scaled by a different factor, so it points elsewhere.",
        ),
        Suspect(
            lambda args: mean_clipped(args, at_most=torch.inf),
            "a factor above 1 enlarges a mean that is within the limit already.",
            where_wrong=True,
        ),
        Suspect(
            lambda args: mean_clipped(args, divisor=1),
            "this is the clipped sum. Its direction is right, but a sum exceeds the limit where the mean doesn't.",
        ),
    ),
    thoughts={
        "values": "average first. Then every rank has the whole gradient, and can compute its norm and the factor alone.",
        "traffic": "the result is right, but the norm doesn't need to travel: after the averaging, every rank can compute it.",
    },
)


# --- in_sync ------------------------------------------------------------------------------

CASES = (
    Case(2, "all the same"),
    Case(2, "rank 0 differs"),
    Case(3, "the last rank differs", 4),
    Case(3, "two numbers change places", 4),
    Case(4, "all the same", 5, torch.int64),
    Case(4, "neighbors differ", 3),
    Case(5, "the last rank differs", 1, torch.int32),
    Case(8, "two numbers change places", 8),
    Case(6, "the last rank differs", 3),
    Case(7, "neighbors differ", 2),
    Case(8, "all the same", 3, late=3),
    Case(2, "the last rank has a NaN"),
    Case(3, "rank 0 has a NaN"),
    Case(4, "all have the same NaN"),
    Case(1, "all the same"),
)
NAN = {"the last rank has a NaN": lambda d: d.rank == d.world_size - 1, "rank 0 has a NaN": lambda d: d.rank == 0}
NAN["all have the same NaN"] = lambda d: True


def draw(d):
    x = d.numbers(d.case.size, common=True)
    if d.case.kind in NAN:
        if NAN[d.case.kind](d):
            x[-1] = torch.nan
        return (x,)
    changed = {
        "all the same": False,
        "rank 0 differs": d.rank == 0,
        "the last rank differs": d.rank == d.world_size - 1,
        "two numbers change places": d.rank == 1,
        "neighbors differ": d.rank % 2 == 1,
    }[d.case.kind]
    if changed and d.case.kind == "two numbers change places":
        x[0], x[-1] = 11, 12  # the sum tells nothing: on the other ranks they stand the other way round
    elif d.case.kind == "two numbers change places":
        x[0], x[-1] = 12, 11
    elif changed:
        x[-1] += 1
    return (x,)


def same_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def reference(args):
    return [all(same_bits(x, args[0][0]) for (x,) in args)] * len(args)


def compared(args, rank):
    return [same_bits(x, args[rank][0]) for (x,) in args]


def blind_to_nan(args):
    """Whether the ranks agree on each element, if a NaN agrees with everything."""
    known = [{value for value in values if value == value} for values in zip(*(x.tolist() for (x,) in args))]
    return [all(len(values) <= 1 for values in known)] * len(args)


def budget(case, args):
    n, nbytes = case.world_size, case.size * case.dtype.itemsize
    limit = [2 * 2 * (n - 1) / n * nbytes + 2 * 8] * n
    return Budget("two all_reduces of x, and one number more", sent=limit, received=limit)


def needs(case, args):
    return [1] * case.world_size


IN_SYNC = Task(
    "in_sync",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    suspects=(
        Suspect(
            blind_to_nan,
            "a NaN on one rank is overlooked. It is neither smaller nor larger than any number, so MIN and MAX may drop it. "
            "Its bytes differ: what does x.view(torch.uint8) give?",
        ),
        Suspect(
            lambda args: [all(torch.equal(x, args[0][0]) for (x,) in args)] * len(args),
            "the bits are the same everywhere, but NaN == NaN is False. Compare bytes: x.view(torch.uint8).",
        ),
        Suspect(
            lambda args: compared(args, 0),
            "each rank compares itself with rank 0, but the answer must be the same on all. Who tells rank 0 that another differs?",
        ),
        Suspect(
            lambda args: [len({x.double().sum().item() for (x,) in args}) == 1] * len(args),
            "this compares sums. Two numbers that change places leave the sum as it is.",
        ),
        Suspect(lambda args: [True] * len(args), "this says yes to everything."),
    ),
    thoughts={
        "values": "view x as bytes. What do the smallest and the largest of each byte over all ranks say?",
        "traffic": "no rank has to see all the others' elements. Which reductions keep one byte of each position?",
        "Mismatch": "do all ranks make the same calls, also the one that has found a difference?",
        "Stuck": "do all ranks make the same calls, also the one that has found a difference?",
    },
)

TASKS = (MEAN_IN_ONE_CALL, BUCKET_SIZES, CLIPPED_MEAN, IN_SYNC)
