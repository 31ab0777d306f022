"""product_rows(x, w): this rank's rows of a matrix product whose inner dimension is spread over the ranks."""

from helpers.exercise import Budget, Case, Suspect, Task

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
        "(N-1)/N of a matrix of the product's size a rank, which is half an all_reduce", [nbytes] * n, [nbytes] * n
    )


def needs(case, args):
    return [case.size * COLUMNS * case.dtype.itemsize] * case.world_size


TASK = Task(
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
