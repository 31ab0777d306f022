"""sum_all(tensors): the sums over ranks of several tensors, by one call."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2, size=2),
    Case(2, "negative numbers", 3, torch.int64),
    Case(3, size=3),
    Case(4, "fractions", 2),
    Case(4, "negative numbers", 4),
    Case(5, size=3, dtype=torch.float64, late=2),
    Case(8, "up to 10,000 and down to -10,000", 2),
    Case(6, size=2),
    Case(7, size=3, dtype=torch.int32),
    Case(8, size=5, dtype=torch.int32),
    Case(1, size=3),
)


def draw(d):
    """A matrix, a scalar, a column of a matrix, a transposed matrix, and nothing."""
    k = d.case.size
    tensors = [d.numbers(k, 2), d.numbers(), d.numbers(k, 3)[:, 1], d.numbers(3, k).t(), d.numbers(0)]
    return (tensors,)


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


def totals(args):
    return [sum(ts[1:], ts[0]).contiguous() for ts in zip(*(tensors for (tensors,) in args))]


def reference(args):
    return [totals(args)] * len(args)


def by_memory(args):
    """As if the transposed matrix had been sent as it lies in memory, and given back in its shape."""
    right = totals(args)
    return [[*right[:3], right[3].t().flatten().view(right[3].shape), right[4]]] * len(args)


def budget(case, args):
    n, nbytes = case.world_size, flat(args[0][0]).numel() * case.dtype.itemsize
    limit = [2 * (n - 1) / n * nbytes] * n
    return Budget("one call, with each number in it once", sent=limit, received=limit, calls=[1] * n)


def needs(case, args):
    return [flat(args[0][0]).nbytes] * case.world_size


TASK = Task(
    "sum_all",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("tensors",),
    suspects=(
        Suspect(
            lambda args: [[t.flatten() for t in totals(args)]] * len(args),
            "the numbers are right and the shapes are gone. Give each sum the shape of its tensor.",
        ),
        Suspect(
            lambda args: [flat(totals(args))] * len(args),
            "this is one long tensor. A list is wanted, with a sum for each tensor.",
        ),
        Suspect(by_memory, "the transposed matrix was taken as it lies in memory, not as it is read, row by row."),
        Suspect(
            lambda args: [tensors for (tensors,) in args], "these are the rank's own tensors. Where did the sums go?"
        ),
    ),
    thoughts={
        "values": "put all numbers into one contiguous tensor, sum that, and cut it into pieces of the right sizes and shapes.",
        "calls": "the number of calls must not grow with the number of tensors. What if all numbers lie in one tensor?",
        "traffic": "each number needs to be in the call once.",
        "Mismatch": "a view with gaps isn't one block of memory. What does torch.cat make of views?",
        "RankFailed": "view() refuses a tensor that is not contiguous; reshape() and flatten() copy where they must.",
    },
)
