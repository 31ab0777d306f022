"""distributed_mean(x): the mean over ranks, number by number."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2),
    Case(2, "negative numbers", 1),
    Case(3, size=4),
    Case(3, "negative numbers", 2, torch.int64),
    Case(4, "fractions", 5),
    Case(4, size=3, dtype=torch.bfloat16),
    Case(3, size=0, dtype=torch.int64),
    Case(4, size=0),
    Case(5, "up to 10,000 and down to -10,000", 6, torch.float64),
    Case(6, size=3, late=2),
    Case(7, "all equal", 4, torch.int32),
    Case(8, size=10),
    Case(1, size=3),
    Case(1, size=2, dtype=torch.int64),
)


def draw(d):
    return (d.numbers(d.case.size),)


def result_type(x):
    return x.dtype if x.is_floating_point() else torch.float32


def total(args):
    return sum(x.double() for (x,) in args)


def everywhere(value, args):
    return [value.to(result_type(x)) for (x,) in args]


def reference(args):
    return everywhere(total(args) / len(args), args)


def on_zero_only(args):
    return [
        value if rank == 0 else x.to(result_type(x)) for rank, ((x,), value) in enumerate(zip(args, reference(args)))
    ]


def budget(case, args):
    n = case.world_size
    elements = case.size * max(4, case.dtype.itemsize)
    limit = [2 * (n - 1) / n * elements] * n
    least = 2 * (n - 1) / n * case.size * min(4, case.dtype.itemsize)
    return Budget(
        "2(N-1)/N of a buffer sent and received by each rank, at 4 bytes per element (8 for int64 and float64)",
        limit,
        limit,
        least=least,
    )


def needs(case, args):
    """The sum of the others' numbers, in the narrower of x's dtype and the result's."""
    return [case.size * min(4, case.dtype.itemsize)] * case.world_size


TASK = Task(
    "distributed_mean",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    suspects=(
        Suspect(
            lambda args: everywhere(total(args), args), "this is the sum. How many numbers went into each element?"
        ),
        Suspect(
            lambda args: everywhere(total(args) / 4, args),
            "this is the sum divided by 4. What about other world sizes? Ask dist.get_world_size().",
        ),
        Suspect(
            lambda args: [x.to(result_type(x)) for (x,) in args],
            "this is what the rank had before. Which tensor does the collective's result arrive in?",
        ),
        Suspect(
            on_zero_only,
            "only rank 0 has the mean, but every rank must return it. Which collective gives all ranks the sum?",
        ),
        Suspect(
            lambda args: everywhere(torch.div(total(args), len(args), rounding_mode="floor"), args),
            "the fraction is lost. What do you get when you divide integers by //, or in place?",
        ),
        Suspect(
            lambda args: everywhere(torch.div(total(args), len(args), rounding_mode="trunc"), args),
            "the fraction is lost. What type do you divide in?",
        ),
        Suspect(
            lambda args: everywhere(total(args).mean().expand(args[0][0].shape), args),
            "this is one mean over everything. The task asks for a mean per element, in the shape of x.",
        ),
    ),
    thoughts={
        "values": "what must happen to one element of x on its way from N ranks to a mean on every rank?",
        "sent": "some rank passes around whole buffers. Which collective adds up and gives every rank the result in one go?",
        "received": "some rank receives every other rank's buffer, but it needs only their sum. Which collective adds on the way?",
    },
)
