"""The short tasks of chapter 07: groups, their members, and the grid.

pair_sum(x): the sum over ranks 0 and 1, 2 and 3, ...  from_first(x, members): a broadcast within a group.
row_and_column(rank, n, tp): a rank's two groups in the grid.
average_over_copies(gradient, tp): the mean over the ranks that hold the same piece of a model.
"""

import torch

from helpers.exercise import Budget, Case, Suspect, Task, valued

ALL_MAKE_ALL = "every rank makes every group, in the same order, even those that it isn't in."

# --- pair_sum -----------------------------------------------------------------------------

FEW = tuple(
    Case(n, size=size, late=late)
    for n, size, late in ((4, 3, None), (3, 2, None), (2, 3, None), (4, 1, 2), (5, 2, None), (6, 2, 0), (7, 1, None), (8, 3, None), (1, 2, None))
)  # fmt: skip


def partner(rank, n):
    return rank ^ 1 if rank ^ 1 < n else rank


def with_partner(args, combine):
    return [
        combine(x, args[partner(rank, len(args))][0], partner(rank, len(args)) != rank)
        for rank, (x,) in enumerate(args)
    ]


def has_partner(case):
    return [
        case.size * case.dtype.itemsize * (partner(rank, case.world_size) != rank) for rank in range(case.world_size)
    ]


PAIR_SUM = Task(
    "pair_sum",
    FEW,
    lambda d: (d.numbers(d.case.size),),
    lambda args: with_partner(args, lambda own, other, paired: own + other if paired else own),
    lambda case, args: Budget(
        "one all_reduce of x between two ranks", sent=has_partner(case), received=has_partner(case)
    ),
    needs=lambda case, args: has_partner(case),
    suspects=(
        Suspect(
            lambda args: [sum(x for (x,) in args)] * len(args),
            "this is the sum over all ranks. Which argument says who takes part in a call?",
        ),
        Suspect(
            lambda args: [sum(x for (x,) in args[rank % 2 :: 2]) for rank in range(len(args))],
            "this is the sum over the even ranks, or over the odd ones. Partners are neighbors: 0 and 1, 2 and 3.",
        ),
        Suspect(
            lambda args: with_partner(args, lambda own, other, paired: (own + other) / 2 if paired else own),
            "this is the mean of the pair. Which op gives its sum?",
        ),
        Suspect(
            lambda args: with_partner(args, lambda own, other, paired: other),
            "these are the partner's numbers. The sum has the rank's own, too.",
            where_wrong=True,
        ),
        Suspect(
            lambda args: [x for (x,) in args],
            "this is what the rank had before. On a group that a rank isn't in, or has to itself, a call changes nothing.",
            where_wrong=True,
        ),
    ),
    thoughts={
        "values": "which group is this rank in? Rank // 2 counts the pairs.",
        "traffic": "a rank needs its partner's numbers, and no others.",
        "inputs": "all_reduce overwrites what it gets. Sum a copy.",
        "Stuck": ALL_MAKE_ALL,
        "Mismatch": ALL_MAKE_ALL,
        "RankFailed": "with an odd number of ranks, the last one has no partner: its group has one member.",
    },
)


# --- from_first ---------------------------------------------------------------------------

# The kind says how the ranks are divided.
DIVISIONS = {
    "two halves": lambda n: [[*range(n // 2)], [*range(n // 2, n)]],
    "even and odd ranks": lambda n: [[*range(0, n, 2)], [*range(1, n, 2)]],
    "rank 0 and all others": lambda n: [[0], [*range(1, n)]],
    "one group": lambda n: [[*range(n)]],
}


def first_of(rank, groups):
    return next(members[0] for members in groups if rank in members)


def from_others(case, args):
    return [case.size * case.dtype.itemsize * (first_of(rank, groups) != rank) for rank, (_, groups) in enumerate(args)]


FROM_FIRST = Task(
    "from_first",
    tuple(
        Case(n, kind, size, late=late)
        for n, kind, size, late in (
            (4, "two halves", 2, None),
            (4, "even and odd ranks", 3, None),
            (3, "rank 0 and all others", 2, None),
            (2, "one group", 1, None),
            (5, "even and odd ranks", 2, 1),
            (6, "two halves", 1, None),
            (7, "rank 0 and all others", 2, 0),
            (8, "even and odd ranks", 2, None),
            (1, "one group", 2, None),
        )
    ),
    lambda d: (d.numbers(d.case.size), DIVISIONS[d.case.kind](d.world_size)),
    lambda args: [args[first_of(rank, groups)][0] for rank, (_, groups) in enumerate(args)],
    lambda case, args: Budget("one broadcast in each group", received=from_others(case, args)),
    needs=lambda case, args: from_others(case, args),
    parameters=("x", "groups"),
    suspects=(
        Suspect(
            lambda args: [args[0][0]] * len(args),
            "these are rank 0's numbers on every rank. Which argument says who takes part in a call?",
        ),
        Suspect(
            lambda args: [x for x, _ in args],
            "these are still the rank's own numbers. On a group that a rank isn't in, a call does nothing.",
            where_wrong=True,
        ),
    ),
    thoughts={
        "values": "make all the groups, then broadcast in this rank's own, from its first member.",
        "received": "a rank needs the numbers of one other rank, and no more.",
        "inputs": "broadcast overwrites what it gets. Give it a copy.",
        "Stuck": ALL_MAKE_ALL,
        "Mismatch": ALL_MAKE_ALL,
        "RankFailed": "src is a global rank, even with a group. Which rank is the first member? Or say group_src=0.",
    },
)


# --- row_and_column -----------------------------------------------------------------------


def row(rank, n, tp):
    return [*range(rank // tp * tp, rank // tp * tp + tp)]


def column(rank, n, tp):
    return [*range(rank % tp, n, tp)]


def row_and_column(rank, n, tp):
    return row(rank, n, tp), column(rank, n, tp)


ROW_AND_COLUMN = valued(
    "row_and_column",
    {
        "rank 1 of 4, rows of 2": (1, 4, 2),
        "rank 2 of 6, rows of 3": (2, 6, 3),
        "rank 7 of 8, rows of 2": (7, 8, 2),
        "rank 3 of 8, rows of 8": (3, 8, 8),
        "rank 4 of 5, rows of 1": (4, 5, 1),
        "rank 37 of 64, rows of 8": (37, 64, 8),
    },
    row_and_column,
    suspects={
        lambda rank, n, tp: (
            column(rank, n, tp),
            row(rank, n, tp),
        ): "these are the column and then the row. The row comes first.",
        lambda rank, n, tp: (
            row(rank, n, n // tp),
            column(rank, n, n // tp),
        ): "this grid has tp rows. It's the rows that have tp ranks each.",
        lambda rank, n, tp: (
            [*range(rank, rank + tp)],
            [*range(rank, n, tp)],
        ): "a row and a column begin before this rank does. Which rank is the first of its row?",
    },
    thought="the ranks of a row follow each other, and a row begins at a multiple of tp. Those of a column are tp apart.",
)


# --- average_over_copies ------------------------------------------------------------------

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


AVERAGE_OVER_COPIES = Task(
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
            "this is the mean along the rows, over different pieces. A piece's copies are in one column.",
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

TASKS = (PAIR_SUM, FROM_FIRST, ROW_AND_COLUMN, AVERAGE_OVER_COPIES)
