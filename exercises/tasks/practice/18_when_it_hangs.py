"""cause(dumps): who holds up the others; mean_of_good(gradient, good): the mean over the ranks whose batch was good."""

import math
from typing import Any

import torch

from collectives.format import kind, name_ranks
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task

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


MEAN_OF_GOOD = Task(
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
            "a bad rank's gradient holds a NaN, and NaN times 0 is NaN. Contribute zeros instead.",
        ),
        Suspect(with_nan, "the bad ranks' gradients are in the sum, and one of their numbers is a NaN."),
        Suspect(lambda args: mean(args, 1), "this is the sum over the good ranks. How many were good?"),
        Suspect(
            lambda args: mean(args, len(args)),
            "the sum is divided by the number of all ranks. How many were good?",
        ),
        Suspect(
            lambda args: mean(args, count(args)),
            "no rank was good, and 0 / 0 is NaN. What should the ranks return then?",
        ),
    ),
    thoughts={
        "values": "what does a bad rank contribute to the sum, and what to the count?",
        "traffic": "a sum and a count are enough.",
        "Stuck": "a rank with a bad batch leaves a call out, and the others wait for it. Let it take part, with nothing to add.",
        "Mismatch": "do all ranks make the same calls, the bad ones too, and with the same shape and dtype?",
    },
)


# --- cause --------------------------------------------------------------------------------

CIRCLE = "rows and columns, called in two orders"
STEPS = 4
DUMPS = tuple(Case(1, kind, n) for kind in ("one group", "rows and columns", CIRCLE) for n in (4, 8))


def dumps_of(d) -> tuple[dict[int, list[dict]]]:
    """By rank, the calls that it has made when nothing moves any more."""
    programs = {rank: program(rank, d.case) for rank in range(d.case.size)}
    if d.case.kind == CIRCLE:
        at = 2 * d.integer(1, STEPS)
        for rank, calls in programs.items():
            if sum(divmod(rank, 2)) % 2:
                calls[at : at + 2] = reversed(calls[at : at + 2])
    else:
        culprit = 2 * d.integer(1, d.case.size // 2) + 1  # rank 0 never waits for it directly, in rows and columns
        del programs[culprit][d.integer(2, len(programs[culprit])) :]
    made: dict[int, list[dict]] = {rank: [] for rank in programs}
    while free := [
        rank
        for rank, calls in made.items()
        if len(calls) < len(programs[rank]) and not (calls and lacking(calls[-1], made))
    ]:
        for rank in free:
            made[rank].append(programs[rank][len(made[rank])])
    return (made,)


def program(rank: int, case: Case) -> list[dict]:
    """The calls of a rank that nothing holds up."""
    groups = {"all": tuple(range(case.size))}
    if case.kind.startswith("rows"):
        row, column = divmod(rank, 2)
        groups = {f"row {row}": (2 * row, 2 * row + 1), f"column {column}": tuple(range(column, case.size, 2))}
    return [
        {"group": group, "members": members, "number": step + 1}
        for step in range(STEPS)
        for group, members in groups.items()
    ]


def lacking(call: dict, made: dict[int, list[dict]]) -> list[int]:
    """The members that haven't made a call."""
    return [member for member in call["members"] if call not in made[member]]


def waiting(dumps: dict[int, list[dict]]) -> dict[int, list[int]]:
    """The ranks whose last call lacks somebody, and whom."""
    lacks = {rank: lacking(calls[-1], dumps) for rank, calls in dumps.items()}
    return {rank: absent for rank, absent in lacks.items() if absent}


def true_cause(dumps: dict[int, list[dict]]) -> int | None:
    waits = waiting(dumps)
    return next((rank for absent in waits.values() for rank in absent if rank not in waits), None)


def judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    wanted = true_cause(*arguments)
    if result == wanted and type(result) is type(wanted):
        return None
    if type(result) not in (int, type(None)):
        return Finding(
            "values", words=f"cause must return a rank or None, not {kind(result)}.", thought="return a number."
        )
    words = f"cause is wrong with {case.size} ranks in {case.kind}.\n  expected   {wanted}\n  got        {result}"
    return Finding("values", words=words, thought=to_think(result, wanted, *arguments))


def to_think(result: int | None, wanted: int | None, dumps: dict[int, list[dict]]) -> str:
    waits = waiting(dumps)
    if result is None:
        return f"rank {min(waits)} waits. Follow that from rank to rank: there's one that waits for no rank."
    if result in waits and wanted is None:
        return f"rank {result} waits itself, for {name_ranks(waits[result])}. Here the ranks wait in a circle."
    if result in waits:
        return f"rank {result} waits itself, for {name_ranks(waits[result])}. Follow that to a rank that waits for no rank."
    return "does any rank wait for this one? Compare group and number of its calls with those that others wait in."


def found(case: Case, arguments: tuple, result: Any) -> str:
    who = "no rank alone" if result is None else f"rank {result}"
    return f"With {case.size} ranks in {case.kind}: {who}."


CAUSE = Puzzle("cause", DUMPS, dumps_of, judged, found)
TASKS = (CAUSE, MEAN_OF_GOOD)
