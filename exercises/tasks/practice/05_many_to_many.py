"""The short tasks of chapter 05, one for each many-to-many collective.

value_range(x): the largest of all ranks' numbers minus the smallest.  gather_columns(part): a matrix from its columns.
my_votes(votes): what all ranks give this one.  transposed_rows(rows): this rank's rows of the transpose.
full_product(x, w): a matrix product whose inner dimension is spread over the ranks.  product_rows(x, w): this rank's rows of it.
"""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

SIZES = tuple(Case(n, size=size, late=late) for n, size, late in ((2, 1, None), (2, 3, None), (3, 2, None), (3, 1, 2), (4, 3, None), (5, 1, None), (6, 2, None), (7, 2, 0), (8, 1, None), (1, 2, None)))  # fmt: skip


def each(count, case):
    """A limit on the busiest rank: so many elements."""
    return [count * case.dtype.itemsize] * case.world_size


# --- value_range --------------------------------------------------------------------------

SIGNED = (
    Case(2, "negative numbers", 3),
    Case(3, "around -10,000", 4),
    Case(4, "fractions", 5),
    Case(4, "all equal", 2, late=1),
    Case(5, size=1),
    Case(6, "negative numbers", 3),
    Case(7, size=1),
    Case(8, "fractions", 4),
    Case(1, size=3),
)


def whole(args):
    return torch.cat([x for (x,) in args])


def spread(x):
    return x.max() - x.min()


VALUE_RANGE = Task(
    "value_range",
    SIGNED,
    lambda d: (d.numbers(d.case.size),),
    lambda args: [spread(whole(args))] * len(args),
    lambda case, args: Budget("one call, of two numbers", calls=[1] * case.world_size, largest=each(2, case)),
    needs=lambda case, args: [4] * case.world_size,
    suspects=(
        Suspect(
            lambda args: [spread(x) for (x,) in args],
            "this is the range of the rank's own numbers. Which two numbers do the others have to know?",
        ),
        Suspect(
            lambda args: [max(spread(x) for (x,) in args)] * len(args),
            "this is the largest of the ranks' ranges. The largest number and the smallest may be on different ranks.",
        ),
        Suspect(lambda args: [whole(args).max()] * len(args), "this is the largest number. And the smallest?"),
        Suspect(
            lambda args: [whole(args).max() - max(x.min() for (x,) in args)] * len(args),
            "MAX takes the largest of the ranks' smallest numbers. What could each pass in, so that MAX finds the smallest?",
        ),
    ),
    thoughts={
        "values": "return a scalar tensor: the largest number of all ranks, minus the smallest.",
        "calls": "two calls find the two ends. How can one MAX find the smallest number, too?",
        "largest": "two numbers per rank are all that the others need.",
        "inputs": "all_reduce writes into the tensor that it gets. Give it a new one.",
        "Stuck": "does every rank make the call?",
    },
)


# --- gather_columns -----------------------------------------------------------------------

ROWS = 3


def side_by_side(args):
    return torch.cat([part for (part,) in args], dim=1)


def columns_of_others(case):
    return each((case.world_size - 1) * ROWS * case.size, case)


GATHER_COLUMNS = Task(
    "gather_columns",
    SIZES,
    lambda d: (d.numbers(ROWS, d.case.size),),
    lambda args: [side_by_side(args)] * len(args),
    lambda case, args: Budget(
        "each rank's columns, sent N-1 times", sent=columns_of_others(case), received=columns_of_others(case)
    ),
    needs=lambda case, args: columns_of_others(case),
    parameters=("part",),
    suspects=(
        Suspect(
            lambda args: [torch.cat([part for (part,) in args])] * len(args),
            "the pieces are stacked one below the other. Columns go side by side: which dimension is that?",
        ),
        Suspect(
            lambda args: [torch.cat([part for (part,) in args]).view(ROWS, -1)] * len(args),
            "the numbers arrive piece after piece, and a row of the matrix needs numbers from every piece. A view can't "
            "mix them.",
        ),
        Suspect(
            lambda args: [torch.cat([part.T for (part,) in args])] * len(args),
            "this is the transpose of the matrix.",
        ),
    ),
    thoughts={
        "values": "which collective gives every rank all pieces? Then put them side by side.",
        "traffic": "each rank needs the others' columns once.",
        "RankFailed": "all_gather_single stacks the pieces along the first dimension. all_gather leaves them in a list.",
    },
)


# --- my_votes -----------------------------------------------------------------------------


def votes(args):
    return sum(given for (given,) in args)


MY_VOTES = Task(
    "my_votes",
    tuple(
        Case(n, late=late)
        for n, late in ((2, None), (3, None), (4, 0), (5, None), (6, None), (7, 3), (8, None), (1, None))
    ),  # fmt: skip
    lambda d: (d.numbers(d.world_size),),
    lambda args: list(votes(args).split(1)),
    lambda case, args: Budget(
        "one number to each of the others",
        sent=each(case.world_size - 1, case),
        received=each(case.world_size - 1, case),
    ),
    needs=lambda case, args: [4 * (case.world_size > 1)] * case.world_size,
    parameters=("votes",),
    suspects=(
        Suspect(
            lambda args: [given[rank : rank + 1] for rank, (given,) in enumerate(args)],
            "this is what the rank gives to itself. The others vote too.",
        ),
        Suspect(
            lambda args: [votes(args)] * len(args), "this is what every rank gets. Each needs its own number only."
        ),
        Suspect(
            lambda args: [given.sum().view(1) for (given,) in args],
            "this is how many points the rank gives away. How many does it get?",
        ),
    ),
    thoughts={
        "values": "return a tensor of one element: the sum of what all ranks give to this one.",
        "traffic": "the result is right, but the rank also gets numbers that are about other ranks. Which collective leaves "
        "each rank one chunk of the sum?",
        "inputs": "`votes[:1]` is a view of `votes`: what is written into it is written into `votes`.",
    },
)


# --- transposed_rows ----------------------------------------------------------------------


def matrix(args):
    return torch.cat([rows for (rows,) in args])


def other_blocks(case):
    return each((case.world_size - 1) * case.size**2, case)


TRANSPOSED_ROWS = Task(
    "transposed_rows",
    SIZES,
    lambda d: (d.numbers(d.case.size, d.world_size * d.case.size),),
    lambda args: [block.contiguous() for block in matrix(args).T.chunk(len(args))],
    lambda case, args: Budget("(N-1)/N of the rank's rows", sent=other_blocks(case), received=other_blocks(case)),
    needs=lambda case, args: other_blocks(case),
    parameters=("rows",),
    suspects=(
        Suspect(
            lambda args: [rows.T.contiguous() for (rows,) in args],
            "these are the rank's own rows, transposed: columns of the new matrix. Who has the rest of its rows?",
        ),
        Suspect(
            lambda args: [
                torch.cat([rows.chunk(len(args), 1)[rank] for (rows,) in args], 1) for rank in range(len(args))
            ],
            "every block is in its place, but lies on its side. Transpose each one, too.",
        ),
        Suspect(
            lambda args: [torch.cat([rows.chunk(len(args), 1)[rank] for (rows,) in args]) for rank in range(len(args))],
            "this is the rank's columns. Transpose them, and they are its rows.",
        ),
    ),
    thoughts={
        "values": "cut the rows into N square blocks. Which rank needs which of them, and lying which way?",
        "traffic": "the result is right, but a rank needs only its own columns of the matrix. Which collective turns rows "
        "into columns?",
        "RankFailed": "all_to_all takes two lists, with a tensor for each rank in both.",
    },
)


# --- product_rows -------------------------------------------------------------------------

INNER, COLUMNS = 2, 3  # of a rank's x and w
CASES = (
    Case(2, size=1),
    Case(2, "negative numbers", 2),
    Case(3, size=2),
    Case(3, size=1, late=2),
    Case(4, size=3),
    Case(5, size=1),
    Case(6, size=1),
    Case(7, size=2),
    Case(8, size=2),
    Case(8, size=1, late=0),
    Case(1, size=2),
)


def draw(d):
    return d.numbers(d.world_size * d.case.size, INNER), d.numbers(INNER, COLUMNS)


def product(args):
    return sum(x @ w for x, w in args)


def reference(args):
    return list(product(args).chunk(len(args)))


def budget(case, args):
    n = case.world_size
    nbytes = (n - 1) * case.size * COLUMNS * case.dtype.itemsize
    return Budget(
        "(N-1)/N of a matrix of the product's size per rank, which is half an all_reduce", [nbytes] * n, [nbytes] * n
    )


def needs(case, args):
    return [case.size * COLUMNS * case.dtype.itemsize] * case.world_size


PRODUCT_ROWS = Task(
    "product_rows",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("x", "w"),
    suspects=(
        Suspect(
            lambda args: [(x @ w).chunk(len(args))[rank] for rank, (x, w) in enumerate(args)],
            "these are rows of the rank's own partial sum. The other ranks' parts of each number are missing.",
        ),
        Suspect(
            lambda args: [product(args)] * len(args),
            "this is the whole product. Rank r should return only the r-th block of its rows.",
        ),
        Suspect(
            lambda args: [(x @ w) for x, w in args],
            "this is the rank's own partial sum of the whole product. Who has the rest of each number?",
        ),
    ),
    thoughts={
        "values": "x @ w is as large as the whole product, but is it a piece of it or a partial sum? And who needs what?",
        "sent": "the result is right, but an all_reduce gives every rank rows that it throws away. Which collective gives each "
        "rank only its part of the sum?",
        "received": "the result is right, but some rank receives rows that it does not need. Which collective gives each rank "
        "only its part of the sum?",
    },
)

# --- full_product -------------------------------------------------------------------------

FULL_PRODUCT = Task(
    "full_product",
    CASES,
    draw,
    lambda args: [product(args)] * len(args),
    lambda case, args: Budget("one call", calls=[1] * case.world_size),
    needs=lambda case, args: [4 * (case.world_size > 1)] * case.world_size,
    parameters=("x", "w"),
    suspects=(
        Suspect(
            lambda args: [x @ w for x, w in args],
            "this is the rank's own partial sum. The other ranks' parts of each number are missing.",
        ),
        Suspect(
            lambda args: [product(args) / len(args)] * len(args), "this is the mean of the partial sums, not their sum."
        ),
        Suspect(
            lambda args: [sum(x for x, _ in args) @ sum(w for _, w in args)] * len(args),
            "this multiplies sums. A rank's columns of X only go with its own rows of W: multiply first, then add.",
        ),
        Suspect(
            lambda args: [torch.cat([x @ w for x, w in args])] * len(args),
            "these are the partial sums, one below the other. Each number of X W is the sum of one from each.",
        ),
    ),
    thoughts={
        "values": "x @ w is a partial sum of X W. Which collective adds them up, and leaves the sum on every rank?",
        "calls": "one call can add up the partial sums and give the sum to all.",
        "Mismatch": "do all ranks make the same calls, with tensors of the same shape?",
        "Stuck": "does every rank make the call?",
    },
)

TASKS = (FULL_PRODUCT, VALUE_RANGE, GATHER_COLUMNS, MY_VOTES, TRANSPOSED_ROWS, PRODUCT_ROWS)
