"""average_over_copies(gradient, tp): the mean over the ranks that hold the same piece of a model."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

# The kind says how many ranks a copy of the model is cut over.
CASES = (
    Case(2, "tp = 1"),
    Case(2, "tp = 2"),
    Case(3, "tp = 1", 4),
    Case(4, "tp = 2", 5),
    Case(4, "tp = 4", 3),
    Case(4, "tp = 2", 3, torch.float64, late=3),
    Case(5, "tp = 1", 2),
    Case(6, "tp = 3", 2),
    Case(7, "tp = 1", 3),
    Case(8, "tp = 2", 4),
    Case(8, "tp = 4", 6, late=1),
    Case(1, "tp = 1"),
)


def cut(case):
    return int(case.kind.rpartition(" ")[2])


def draw(d):
    return d.numbers(d.case.size), cut(d.case)


def combined(args, alike, divide=lambda total, members: total / members):
    """Per rank, what the ranks that are alike combine to.  alike: rank, other, tp -> bool"""
    found = []
    for rank, (mine, tp) in enumerate(args):
        members = [x.double() for other, (x, _) in enumerate(args) if alike(rank, other, tp)]
        found.append(divide(sum(members), len(members)).to(mine.dtype))
    return found


def same_column(rank, other, tp):
    return rank % tp == other % tp


def reference(args):
    return combined(args, same_column)


def budget(case, args):
    copies = case.world_size // cut(case)
    limit = [2 * (copies - 1) / copies * case.size * case.dtype.itemsize] * case.world_size
    return Budget("one all_reduce of the gradient among its copies", sent=limit, received=limit)


def needs(case, args):
    return [case.size * case.dtype.itemsize * (case.world_size > cut(case))] * case.world_size


TASK = Task(
    "average_over_copies",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("gradient", "tp"),
    suspects=(
        Suspect(
            lambda args: combined(args, lambda *_: True),
            "this is the mean over all ranks. Ranks of one row hold different pieces of the model; which ranks hold the same?",
        ),
        Suspect(
            lambda args: combined(args, lambda rank, other, tp: rank // tp == other // tp),
            "this is the mean along the rows, over different pieces. A piece's copies stand in a column.",
        ),
        Suspect(
            lambda args: combined(args, same_column, lambda total, _: total),
            "this is the sum over the copies. How many are there?",
        ),
        Suspect(
            lambda args: combined(args, same_column, lambda total, _: total / len(args)),
            "the sum over the copies is divided by the number of all ranks. Divide by the size of the group you summed over.",
        ),
    ),
    thoughts={
        "values": "draw the ranks as a grid with rows of tp. With which ranks does rank 0 share its piece?",
        "traffic": "each rank's gradient concerns only the copies of its own piece. Do the others have to receive it?",
        "Stuck": "every rank makes every group, in the same order, even those that it isn't in. init_device_mesh does that for you.",
        "Mismatch": "every rank makes every group, in the same order, even those that it isn't in. init_device_mesh does that for you.",
    },
)
