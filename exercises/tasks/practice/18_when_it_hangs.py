"""cause(dumps): who holds up the others, and why; mean_of_good(gradient, good): the mean over the ranks whose batch was good."""

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


# --- cause --------------------------------------------------------------------------------

MISSING, DIFFERENT = "missing", "different"
STEPS = 4
DUMPS = (
    Case(1, "one group, a call is missing", 4),
    Case(1, "one group, another collective", 4),
    Case(1, "one group, another size", 8),
    Case(1, "rows and columns, a call is missing", 4),
    Case(1, "rows and columns, a call is missing", 8),
)


def dumps_of(d) -> tuple[dict[int, list[dict]]]:
    """By rank, the calls that it has made when nothing moves any more."""
    programs, culprit, at = broken(d)
    made: dict[int, list[dict]] = {rank: [] for rank in programs}
    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            done = len(made[rank])
            stopped = rank == culprit and at == done and d.case.kind.endswith("missing")
            if done < len(program) and not stopped and (not done or over(made[rank][-1], made)):
                made[rank].append(program[done])
                moved = True
    return (made,)


def over(call: dict, made: dict[int, list[dict]]) -> bool:
    """Whether all members have made a call, and the same."""
    parts = [part_of(made[rank], call) for rank in call["members"]]
    return None not in parts and len(set(parts)) == 1


def part_of(calls: list[dict], call: dict) -> tuple[str, int] | None:
    """What a rank passes to a call, if it has made it."""
    same = (own for own in calls if (own["group"], own["number"]) == (call["group"], call["number"]))
    return next(((own["op"], own["elements"]) for own in same), None)


def broken(d) -> tuple[dict[int, list[dict]], int, int]:
    """By rank, the calls it should make; the rank at which that goes wrong, and before which of them, or in which."""
    n, world = d.case.size, tuple(range(d.case.size))
    programs = {}
    for rank in world:
        groups = {"all": world}
        if d.case.kind.startswith("rows"):
            row, column = rank // 2 * 2, rank % 2
            groups = {f"row {row // 2}": (row, row + 1), f"column {column}": tuple(range(column, n, 2))}
        programs[rank] = [
            {"group": group, "members": members, "number": step + 1, "op": "all_reduce", "elements": 64}
            for step in range(STEPS)
            for group, members in groups.items()
        ]
    culprit = d.integer(0, n)
    at = d.integer(2, len(programs[culprit]))
    if not d.case.kind.endswith("missing"):
        changed = {"op": "broadcast"} if d.case.kind.endswith("collective") else {"elements": 63}
        programs[culprit][at] = programs[culprit][at] | changed
    return programs, culprit, at


def waiting(dumps: dict[int, list[dict]]) -> dict[int, list[int]]:
    """The ranks whose last call lacks somebody, and whom."""
    lacks = {
        rank: [m for m in calls[-1]["members"] if part_of(dumps[m], calls[-1]) is None]
        for rank, calls in dumps.items()
        if calls
    }
    return {rank: absent for rank, absent in lacks.items() if absent}


def true_cause(dumps: dict[int, list[dict]]) -> tuple[int, str]:
    waits = waiting(dumps)
    if missing := [rank for absent in waits.values() for rank in absent if rank not in waits]:
        return missing[0], MISSING
    for calls in dumps.values():
        parts = {rank: part_of(dumps[rank], calls[-1]) for rank in calls[-1]["members"]}
        for rank, part in parts.items():
            if list(parts.values()).count(part) * 2 < len(parts):
                return rank, DIFFERENT
    raise AssertionError("nothing is wrong with these")


def judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    wanted = true_cause(*arguments)
    if result == wanted:
        return None
    if not isinstance(result, tuple) or len(result) != 2:
        words = f'cause must return a rank and "{MISSING}" or "{DIFFERENT}", not {kind(result)}.'
        return Finding("values", words=words, thought=f"return rank, why, as in {wanted}.")
    words = f"cause is wrong with {case.size} ranks in {case.kind}.\n  expected   {wanted}\n  got        {result}"
    return Finding("values", words=words, thought=to_think(result, wanted, *arguments))


def to_think(result: tuple, wanted: tuple, dumps: dict[int, list[dict]]) -> str:
    waits = waiting(dumps)
    if result[0] in waits and wanted[1] == MISSING:
        return f"rank {result[0]} waits itself, for {name_ranks(waits[result[0]])}. Follow that to a rank that waits for nobody."
    if result[0] == wanted[0]:
        return "has this rank made the call that the others wait in, or not?"
    if wanted[1] == DIFFERENT:
        return "nobody lacks a call here. Compare what the members pass to the same call: op and elements."
    return "whose call is it that the waiting ranks' groups lack? Count by group and number."


def found(case: Case, arguments: tuple, result: Any) -> str:
    return f"With {case.size} ranks in {case.kind}: rank {result[0]}, {result[1]}."


CAUSE = Puzzle("cause", DUMPS, dumps_of, judged, found)
TASKS = (CAUSE, MEAN_OF_GOOD)
