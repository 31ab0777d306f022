"""deal_rows(table): this rank's part of the rows of rank 0's table."""

from helpers.exercise import Budget, Case, Suspect, Task

COLUMNS = 2
CASES = (
    Case(2, size=1),
    Case(2, "negative numbers", 3),
    Case(3, size=2),
    Case(3, size=1, late=0),
    Case(4, "fractions", 2),
    Case(5, size=1),
    Case(5, size=2, late=4),
    Case(6, size=2),
    Case(7, size=1),
    Case(8, size=1),
    Case(8, size=3),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.world_size * d.case.size, COLUMNS),)


def reference(args):
    return list(args[0][0].chunk(len(args)))


def budget(case, args):
    n, nbytes = case.world_size, case.size * COLUMNS * case.dtype.itemsize
    return Budget(
        "rank 0 sends each of the others its rows and nothing else, (N-1)/N of the table in all",
        sent=[(n - 1) * nbytes] + [0] * (n - 1),
        received=[0] + [nbytes] * (n - 1),
    )


def needs(case, args):
    return [0] + [case.size * COLUMNS * case.dtype.itemsize] * (case.world_size - 1)


TASK = Task(
    "deal_rows",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("table",),
    suspects=(
        Suspect(
            lambda args: [table.chunk(len(args))[rank] for rank, (table,) in enumerate(args)],
            "these are rows of the rank's own table. Only rank 0's holds the numbers that count.",
        ),
        Suspect(
            lambda args: [args[0][0][rank :: len(args)] for rank in range(len(args))],
            "these are every N-th row. Rank r gets the r-th stretch of them.",
        ),
    ),
    thoughts={
        "values": "rank 0 cuts the table into N stretches of rows, and rank r gets the r-th.",
        "traffic": "a broadcast gives every rank the whole table. Which collective gives each its own part?",
        "inputs": "the numbers that arrive need a buffer of their own.",
        "RankFailed": "scatter takes a list, on rank 0 only, with one tensor for each rank. Who cuts?",
        "Stuck": "does every rank call, and not only rank 0?",
    },
)
