"""mean_of_good(gradient, good): the mean over the ranks whose batch was good."""

import math

import torch

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2, "all are good"),
    Case(2, "rank 0 is bad"),
    Case(3, "the last rank is bad", 4),
    Case(3, "none is good", 2),
    Case(4, "only rank 1 is good", 5),
    Case(4, "the last rank is bad", 3, torch.float64, late=0),
    Case(5, "rank 0 is bad", 2),
    Case(8, "every other rank is bad", 4),
    Case(6, "only rank 1 is good", 3),
    Case(7, "the last rank is bad", 2),
    Case(8, "none is good", 3, late=6),
    Case(1, "all are good"),
    Case(1, "none is good"),
)
GOOD = {
    "all are good": lambda rank, n: True,
    "none is good": lambda rank, n: False,
    "rank 0 is bad": lambda rank, n: rank > 0,
    "the last rank is bad": lambda rank, n: rank < n - 1,
    "only rank 1 is good": lambda rank, n: rank == 1,
    "every other rank is bad": lambda rank, n: rank % 2 == 0,
}


def draw(d):
    good = GOOD[d.case.kind](d.rank, d.world_size)
    gradient = d.numbers(d.case.size)
    if not good:
        gradient[0] = math.nan
    return gradient, good


def mean(args, divisor):
    """The sum of the good ranks' gradients by a divisor, on every rank."""
    total = sum((g.double() for g, good in args if good), torch.zeros(len(args[0][0]), dtype=torch.double))
    return [(total / divisor).to(args[0][0].dtype)] * len(args)


def count(args):
    return sum(good for _, good in args)


def reference(args):
    return mean(args, max(1, count(args)))


def with_nan(args):
    total = sum(g.double() for g, _ in args)
    return [(total / max(1, count(args))).to(args[0][0].dtype)] * len(args)


def times_flag(args):
    total = sum(g.double() * good for g, good in args)
    return [(total / max(1, count(args))).to(args[0][0].dtype)] * len(args)


def budget(case, args):
    n, nbytes = case.world_size, case.size * case.dtype.itemsize
    limit = [2 * (n - 1) / n * (nbytes + 8)] * n
    return Budget("one all_reduce of the gradient, and one of a number", sent=limit, received=limit)


def needs(case, args):
    return [1] * case.world_size


TASK = Task(
    "mean_of_good",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    scale=lambda args: 10.0,
    parameters=("gradient", "good"),
    suspects=(
        Suspect(
            times_flag,
            "a bad rank's gradient holds a NaN, and NaN times 0 is NaN. Bring zeros instead.",
        ),
        Suspect(with_nan, "the bad ranks' gradients are in the sum, and one of their numbers is a NaN."),
        Suspect(lambda args: mean(args, 1), "this is the sum over the good ranks. How many were good?"),
        Suspect(
            lambda args: mean(args, len(args)),
            "the sum is divided by the number of all ranks. How many were good?",
        ),
        Suspect(
            lambda args: mean(args, count(args)),
            "no rank was good, and 0 / 0 is NaN. What shall the ranks return then?",
        ),
    ),
    thoughts={
        "values": "what does a bad rank bring to the sum, and what to the count?",
        "traffic": "a sum and a count are enough.",
        "Stuck": "a rank with a bad batch leaves a call out, and the others wait for it. Let it take part, with nothing to add.",
        "Mismatch": "do all ranks bring the same shape and dtype, the bad ones too?",
    },
)
