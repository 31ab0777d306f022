"""The short tasks of chapter 18.

steps_for_all(batches): the steps that all ranks can take.  sum_metrics(metrics): sums over the ranks, by one call.
straggler(spans): the rank that the others wait for.  first_difference(recorded): the call at which the ranks part.
cause(dumps): who holds up the others.  mean_of_good(gradient, good): the mean over the ranks whose batch was good.
"""

import math
from itertools import zip_longest
from typing import Any

import torch

from collectives.format import kind, name_ranks
from helpers.exercise import Budget, Case, Finding, OnError, Puzzle, Suspect, Task, valued

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


# --- steps_for_all ------------------------------------------------------------------------

ONE_EACH = tuple(Case(n, late=late) for n, late in ((2, None), (3, None), (4, 0), (5, None), (6, None), (7, 3), (8, None), (1, None)))  # fmt: skip


def has(d):
    """What a rank has: rank 0 neither the most nor the fewest, from 3 ranks on."""
    return (20 if d.rank == 0 else d.integer(*((21, 40) if d.rank % 2 else (3, 20))),)


def batches_of(args):
    return [batches for (batches,) in args]


def on_all(combined):
    """A result that every rank has.  combined: the ranks' numbers -> one number."""
    return lambda args: [combined(batches_of(args))] * len(args)


STEPS_FOR_ALL = Task(
    "steps_for_all",
    ONE_EACH,
    has,
    on_all(min),
    lambda case, args: Budget("one call, of one number", calls=[1] * case.world_size, largest=[8] * case.world_size),
    needs=lambda case, args: [1] * case.world_size,
    parameters=("batches",),
    suspects=(
        Suspect(lambda args: batches_of(args), "this is the number of the rank's own batches. What have the others?"),
        Suspect(on_all(max), "a rank with fewer batches can't take that many steps. Which `op` finds the smallest number?"),
        Suspect(on_all(sum), "this is the sum of all ranks' batches. Which `op` finds the smallest number?"),
        Suspect(on_all(lambda b: sum(b) // len(b)), "some ranks have fewer batches than the average."),
        Suspect(on_all(lambda b: b[0]), "this is what rank 0 has. Another rank may have fewer."),
    ),
    thoughts={
        "values": "return an int: the fewest batches that any rank has.",
        "calls": "one call can find the smallest number, and leave it on every rank.",
        "largest": "one number from each rank is enough.",
        "Stuck": "does every rank make the call?",
        "RankFailed": OnError(
            "Expected parameter|<class 'int'>", "a collective takes a tensor: `torch.tensor(batches)` makes one."
        ),
    },
)


# --- sum_metrics --------------------------------------------------------------------------

NAMES = ("loss", "correct", "tokens", "accuracy")
METRICS = tuple(Case(n, size=size, late=late) for n, size, late in ((2, 2, None), (2, 4, None), (3, 3, None), (4, 2, 1), (4, 4, None), (5, 3, None), (6, 2, None), (7, 3, 6), (8, 4, None), (1, 3, None)))  # fmt: skip


def measured(d):
    """The same names for all ranks, from the second on in an order of the rank's own."""
    names = [*NAMES[: d.case.size]]
    turn = d.rank % d.case.size
    return ({name: d.numbers(1) for name in names[turn:] + names[:turn]},)


def sums(args):
    return {name: sum(metrics[name] for (metrics,) in args) for name in args[0][0]}


def alphabetical(metrics):
    return torch.cat([metrics[name] for name in sorted(metrics)])


SUM_METRICS = Task(
    "sum_metrics",
    METRICS,
    measured,
    lambda args: [alphabetical(sums(args))] * len(args),
    lambda case, args: Budget("one call, of all metrics", calls=[1] * case.world_size),
    after=None,
    needs=lambda case, args: [4 * case.size * (case.world_size > 1)] * case.world_size,
    parameters=("metrics",),
    suspects=(
        Suspect(
            lambda args: [sum(torch.cat([*metrics.values()]) for (metrics,) in args)] * len(args),
            "each rank passes its numbers in its own order, so one rank's loss meets another's count. Which order do all "
            "know without asking?",
        ),
        Suspect(
            lambda args: [torch.cat([sums(args)[name] for name in metrics]) for (metrics,) in args],
            "the sums are right, but in the order of the rank's own dict.",
        ),
        Suspect(lambda args: [alphabetical(metrics) for (metrics,) in args], "these are the rank's own numbers."),
        Suspect(
            lambda args: [alphabetical(sums(args)) / len(args)] * len(args), "these are the means over the ranks."
        ),
        Suspect(
            lambda args: [alphabetical(sums(args)).flip(0)] * len(args), "the sums are right, but in reverse order."
        ),
    ),
    thoughts={
        "values": "return one tensor: for each name, in alphabetical order, the sum of all ranks' numbers.",
        "calls": "`torch.cat` makes one tensor of several, and one call sums it.",
        "Mismatch": "do all ranks make the same calls, with tensors of the same shape?",
        "Stuck": "does every rank make the call?",
    },
)


# --- straggler ----------------------------------------------------------------------------

STRAGGLER = valued(
    "straggler",
    {
        "one call, rank 2 late": ([[(1.0, 5.0)], [(2.0, 5.0)], [(4.5, 5.0)], [(3.0, 5.0)]],),
        "two hosts, whose clocks are minutes apart": (
            [[(0.0, 4.0), (5.0, 8.0)], [(3.5, 4.0), (7.0, 8.0)], [(301.0, 304.0), (304.5, 308.0)]],
        ),
        "a rank that is late once": (
            [[(1.0, 2.0), (4.5, 5.0), (6.0, 8.0)], [(1.5, 2.0), (4.0, 5.0), (7.5, 8.0)], [(1.9, 2.0), (3.0, 5.0), (5.5, 8.0)]],
        ),
        "one long wait, at the start": (
            [[(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)], [(-1.0, 1.0), (2.9, 3.0), (4.9, 5.0)], [(0.2, 1.0), (2.0, 3.0), (4.2, 5.0)]],
        ),
        "rank 0 always late": ([[(2.0, 2.1), (5.0, 5.1)], [(0.5, 2.1), (3.0, 5.1)]],),
    },
    lambda spans: min(range(len(spans)), key=lambda rank: in_calls(spans)[rank]),
    suspects={
        lambda spans: max(range(len(spans)), key=lambda rank: spans[rank][-1][0]): "these starts are from different clocks. "
        "How long a call took doesn't depend on the clock.",
        lambda spans: max(range(len(spans)), key=lambda rank: spans[rank][0][0]): "these starts are from different clocks. "
        "How long a call took doesn't depend on the clock.",
        lambda spans: max(range(len(spans)), key=lambda rank: in_calls(spans)[rank]): "this rank waits longest. The one that "
        "it waits for is the one that hardly waits.",
        lambda spans: min(range(len(spans)), key=lambda rank: [e - s for s, e in spans[rank]][0]): "this looks at the first "
        "call only.",
        lambda spans: min(range(len(spans)), key=lambda rank: [e - s for s, e in spans[rank]][-1]): "this looks at the last "
        "call only.",
        lambda spans: min(range(len(spans)), key=lambda rank: max(e - s for s, e in spans[rank])): "this compares the longest "
        "waits. What does each rank's time add up to?",
        lambda spans: min(in_calls(spans)): "this is the time. Which rank's is it?",
    },
    thought="how long was each rank in its calls, all together? Whoever comes last finds the others there, and waits least.",
    praise="Two ranks, and rank {} was late each time.",
)


def in_calls(spans):
    """The seconds that each rank was in its calls."""
    return [sum(end - start for start, end in calls) for calls in spans]


# --- first_difference ---------------------------------------------------------------------

SUM, SHARE = "all_reduce [2]", "broadcast [8]"


def parting(recorded):
    return next((k for k, calls in enumerate(zip_longest(*recorded), 1) if len(set(calls)) > 1), None)


FIRST_DIFFERENCE = valued(
    "first_difference",
    {
        "rank 1 makes a different second call": ([[SUM, SUM, SHARE], [SUM, SHARE, SHARE], [SUM, SUM, SHARE]],),
        "rank 2 lacks the last call": ([[SUM, SHARE], [SUM, SHARE], [SUM]],),
        "all alike": ([[SUM, SHARE], [SUM, SHARE]],),
        "rank 0 with no call": ([[], [SUM], [SUM]],),
        "two ranks in different orders": ([[SUM, SUM, SHARE], [SUM, SHARE, SUM]],),
        "the last call longer on rank 1": ([[SHARE, SUM], [SHARE, "all_reduce [3]"]],),
    },
    parting,
    suspects={
        lambda recorded: (parting(recorded) or 0) - 1 if parting(recorded) else None: "this counts from 0.",
        lambda recorded: next(
            (k for k, calls in enumerate(zip(*recorded), 1) if len(set(calls)) > 1), None
        ): "zip stops with the rank that has the fewest calls, and a call that this rank lacks isn't seen.",
        lambda recorded: None
        if len(set(map(len, recorded))) == 1
        else min(map(len, recorded)) + 1: "this looks at how many calls there are. As many calls can be different calls.",
    },
    thought="take the ranks' first calls, then their second ones, and so on. Which are the first that aren't all the same?",
    praise="All alike but the last: call {}.",
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
TASKS = (STEPS_FOR_ALL, SUM_METRICS, STRAGGLER, FIRST_DIFFERENCE, CAUSE, MEAN_OF_GOOD)
