"""in_sync(x): whether x is the same on every rank."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

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
    Case(1, "all the same"),
)


def draw(d):
    x = d.numbers(d.case.size, common=True)
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


def reference(args):
    return [all(torch.equal(x, args[0][0]) for (x,) in args)] * len(args)


def compared(args, rank):
    return [torch.equal(x, args[rank][0]) for (x,) in args]


def budget(case, args):
    n, nbytes = case.world_size, case.size * case.dtype.itemsize
    limit = [2 * 2 * (n - 1) / n * nbytes + 2 * 8] * n
    return Budget("two all_reduces of x, and a number besides", sent=limit, received=limit)


def needs(case, args):
    return [1] * case.world_size


TASK = Task(
    "in_sync",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    suspects=(
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
        "values": "what do the least and the greatest of each place over all ranks say?",
        "traffic": "no rank has to see all the others' numbers. Which reductions keep one number of each place?",
        "Mismatch": "do all ranks make the same calls, also the one that has found a difference?",
        "Stuck": "do all ranks make the same calls, also the one that has found a difference?",
    },
)
