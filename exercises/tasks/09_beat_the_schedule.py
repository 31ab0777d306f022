"""faster_all_reduce(n, node): a schedule of an all_reduce that suits nodes with fast links inside and slow ones between."""

from math import prod
from typing import Any

import torch

from collectives.algorithms import (
    Message,
    Schedule,
    WrongSchedule,
    double_tree_all_reduce,
    doubling_all_reduce,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
    naive_all_reduce,
    rabenseifner_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from collectives.cost import cost
from collectives.format import duration, kind, size
from collectives.machines import gpu_nodes
from helpers.exercise import Case, Finding, Puzzle

NAME = "faster_all_reduce"
RACE = "16 ranks in nodes of 4"
CLUSTERS = {"4 ranks in nodes of 2": (4, 2), "8 ranks in nodes of 4": (8, 4), "1 rank": (1, 1), RACE: (16, 4)}
DRAWN = {  # what a case says -> how many ranks a node may have, how many nodes there may be
    "nodes of 4 or 8": ((4, 8), (2, 3)),
    "nodes of 3, 5, 6 or 7": ((3, 5, 6, 7), (2, 3, 4)),
    "many small nodes": ((1, 2, 3), (5, 6, 7)),
    "one node": ((4, 5, 6, 7), (1,)),
}
SIZES = (64 * 2**10, 2**20, 2**30)  # bytes
GOAL = 0.5  # of the ring's seconds
MAX_WORK = 1_000_000  # ranks x chunks x steps: what is larger would take for ever to prove


def draw(d) -> tuple[int, int]:
    """n and node."""
    if d.case.kind in CLUSTERS:
        return CLUSTERS[d.case.kind]
    node, nodes = (of[d.integer(0, len(of))] for of in DRAWN[d.case.kind])
    return node * nodes, node


def situation(n: int, node: int) -> str:
    return f"{n} rank{'s' * (n != 1)} in nodes of {node}"


def seconds(s: Schedule, node: int) -> list[float]:
    """At each of SIZES."""
    return [cost(s, nbytes, gpu_nodes(s.world_size, node)).seconds for nbytes in SIZES]


def board(mine: Schedule, node: int) -> str:
    """The built-in schedules and this one, least product of their times first; ! where one is over the goal."""
    n = mine.world_size
    built_in = [
        naive_all_reduce(n), tree_all_reduce(n), ring_all_reduce(n), doubling_all_reduce(n), rabenseifner_all_reduce(n),
        double_tree_all_reduce(n), multi_ring_all_reduce(n, node), hierarchical_all_reduce(n, node),
    ]  # fmt: skip
    goals = [GOAL * s for s in seconds(ring_all_reduce(n), node)]
    named = [*((s.name, s) for s in built_in), ("YOURS", mine)]
    rows = sorted(((name, seconds(s, node), len(s.steps)) for name, s in named), key=lambda row: prod(row[1]))
    wide = max(len(name) for name, *_ in rows)
    lines = [f"  {'':<{wide}}" + "".join(f"{size(nbytes):>12}  " for nbytes in SIZES) + "  steps"]
    for name, times, steps in rows:
        figures = "".join(f"{duration(t):>12}" + (" !" if t > goal else "  ") for t, goal in zip(times, goals))
        lines.append(f"  {name:<{wide}}{figures}{steps:>7}")
    lines.append(f"  {'half of the ring':<{wide}}" + "".join(f"{duration(goal):>12}  " for goal in goals))
    return "\n".join(line.rstrip() for line in lines)


# --- what was returned --------------------------------------------------------------------


def schedule_of(result: Any, n: int) -> Schedule:
    """What was returned, as a schedule.  Raises ValueError for what is none, or not of an all_reduce of n ranks.

    A scorer gets a Schedule as numbers (grader/inside/sandboxed_rank.py), and everything in them may be a lie.
    """
    match result:
        case Schedule(collective=collective, world_size=world_size, chunks=chunks, steps=steps):
            count, messages = len(steps), sum(map(len, steps))
        case (str(collective), int(world_size), int(chunks), int(count), torch.Tensor() as rows) if _are_rows(rows):
            messages = len(rows)
        case _:
            raise ValueError(f"it must return a Schedule, not {kind(result)}.")
    if (collective, world_size) != ("all_reduce", n):
        raise ValueError(f"its schedule is of {collective} for {world_size} ranks; expected is all_reduce for {n}.")
    if chunks < 1 or count < 0 or max(n * chunks, messages) * (count + 1) > MAX_WORK:
        raise ValueError(f"{count} steps of {chunks} chunks are too many; the ring has {2 * (n - 1)} of {n}.")
    return result if isinstance(result, Schedule) else _unpacked(n, chunks, count, rows)


def _are_rows(rows: torch.Tensor) -> bool:
    return rows.dtype == torch.int64 and rows.dim() == 2 and rows.shape[1] == 6


def _unpacked(n: int, chunks: int, count: int, rows: torch.Tensor) -> Schedule:
    """From (step, number of the message in it, source, target, adds, chunk), a row for each chunk of a message."""
    carried: dict[tuple[int, ...], list[int]] = {}
    for *message, chunk in rows.tolist():
        carried.setdefault(tuple(message), []).append(chunk)
    steps: list[list[Message]] = [[] for _ in range(count)]
    for (step, _, source, target, adds), those in carried.items():
        if not 0 <= step < count:
            raise ValueError(f"there is no step {step}.")
        steps[step].append(Message(source, target, tuple(those), bool(adds)))
    return Schedule("all_reduce", n, steps, chunks, name=NAME)


# --- whether it is right, and fast ----------------------------------------------------------


def verdict(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    n, node = arguments
    wrong = f"{NAME} is wrong with {situation(n, node)}"
    try:
        s = schedule_of(result, n)
    except ValueError as what:
        thought = THOUGHTS["nothing"] if result is None else THOUGHTS["shape"]
        return Finding("values", words=f"{wrong}: {what}", thought=thought)
    try:
        s.prove()
    except WrongSchedule as what:
        wanted = f"after the last step every rank has the parts of all {n} ranks in every chunk, each part once"
        words = f"{wrong}.\n  expected   {wanted}\n  got        {what}"
        return Finding("values", words=words, thought=thought_about(str(what)), shows=s)
    return too_slow(s, node) if budget and case.kind == RACE else None


def thought_about(what: str) -> str:
    return next((THOUGHTS[words] for words in THOUGHTS if words in what), THOUGHTS["without the part"])


def too_slow(s: Schedule, node: int) -> Finding | None:
    ring = ring_all_reduce(s.world_size)
    cluster = gpu_nodes(s.world_size, node)
    over = {nbytes: cost(s, nbytes, cluster).seconds / cost(ring, nbytes, cluster).seconds / GOAL for nbytes in SIZES}
    worst = max(over, key=over.__getitem__)
    if over[worst] <= 1:
        return None
    mine = cost(s, worst, cluster)
    headline = (
        f"{NAME} is right, but not fast enough with {RACE}: {size(worst)} takes {duration(mine.seconds)}; "
        f"the limit is {duration(mine.seconds / over[worst])}."
    )
    spent = (
        f"Of these {duration(mine.seconds)}, {duration(mine.latency)} are latency of {mine.steps} steps and "
        f"{duration(mine.transfer)} are bytes in flight."
    )
    slow = "latency" if mine.latency > mine.transfer else max(mine.limits, key=mine.limits.__getitem__)
    return Finding("budget", words=f"{headline}\n{board(s, node)}\n{spent}", thought=THOUGHTS[slow], shows=s)


def praise(case: Case, arguments: tuple, result: Any) -> str:
    n, node = arguments
    s = schedule_of(result, n)
    ratios = [mine / ring for mine, ring in zip(seconds(s, node), seconds(ring_all_reduce(n), node))]
    shares = ", ".join(f"{ratio:.0%}" for ratio in ratios)
    return f"With {case.kind} it takes {shares} of the ring's time.\n{board(s, node)}"


THOUGHTS = {
    "nothing": "the function returns nothing. Drawing or printing a schedule does not return it.",
    "shape": 'the last line is return Schedule("all_reduce", n, steps, chunks=...), with n as it was passed.',
    "in the sum twice": "a part may be added only where it isn't yet. Whose parts are in what is sent here, and whose "
    "are there already? If what is sent is the whole sum, should it be added, or copied into place?",
    "overwrites chunk": "all messages of a step are in flight together. Which of the two has to come first?",
    "all write chunk": "all messages of a step are in flight together. Which of the two has to come first?",
    "was that meant to be": "a copy puts an end to what was there. Is what arrives the whole sum? If not, it has to be added.",
    "without the part": "follow one chunk in the picture: who adds whose parts to it, where is it complete, and how does "
    "it get from there to this rank? Does the same happen in every node, and between any number of nodes?",
    "latency": "every step costs its latency once, however many messages leave in it, and a step through the network "
    "costs most. Which of your steps could be one?",
    "network card": (
        "how much of the buffer leaves a node through each card? If the ranks of a node first divide their sum among "
        "them, each sends only its own piece to other nodes, and all cards work."
    ),
    "NVLink": "does each message carry only the piece that its target continues with, or more?",
}  # fmt: skip

TASK = Puzzle(
    NAME,
    tuple(Case(1, kind) for kind in (*list(CLUSTERS)[:2], *DRAWN, *list(CLUSTERS)[2:])),
    draw,
    verdict,
    praise,
)
