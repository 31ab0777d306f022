"""settle(strip): a rod that evens out its temperature, in strips; to be mended by the learner."""

import torch

from ..cases import Case
from ..judge import Budget, Suspect, Task

ENOUGH = 0.5  # degrees: the rod has settled when nothing changes by more in a step
CASES = (
    Case(2, size=3),
    Case(2, "negative numbers", 3, uneven=True),
    Case(3, size=4),
    Case(3, "fractions", 3, uneven=True, late=1),
    Case(4, size=3, late=3),
    Case(5, size=3, uneven=True),
    Case(8, size=2),
    Case(8, "all equal", 2),
    Case(1, size=4),
)


def draw(d):
    return (10 * d.numbers(d.case.length(d.rank)),)


def step(rod):
    padded = torch.cat([rod[:1], rod, rod[-1:]])
    return (padded[:-2] + 2 * rod + padded[2:]) / 4


def settled(args):
    """The rod at rest, and after how many steps."""
    rod, steps = torch.cat([x for (x,) in args]), 0
    while True:
        after = step(rod)
        change, rod, steps = (after - rod).abs().max(), after, steps + 1
        if change <= ENOUGH:
            return rod, steps


def reference(args):
    rod, steps = settled(args)
    return [(part, steps, float(rod.max())) for part in rod.split([len(x) for (x,) in args])]


def own_maximum(args):
    return [(part, steps, float(part.max())) for part, steps, _ in reference(args)]


def budget(case, args):
    n, steps = case.world_size, settled(args)[1]
    sent = [(8 + 16) * steps + 16] * n if n > 1 else [0]
    return Budget(
        "in each step, a number to each neighbour and one all_reduce of a number; then one more",
        sent,
        sent,
        [2 * steps] * n,
        links={(r, r + way) for r in range(n) for way in (1, -1) if 0 <= r + way < n},
    )


TASKS = (
    Task(
        "settle",
        CASES,
        draw,
        reference,
        budget,
        suspects=(
            Suspect(
                own_maximum,
                "each rank returns the hottest place of its own strip. The calls must match, but the result must also reach all ranks.",
            ),
        ),
        thoughts={
            "values": "compare with one process: the whole rod takes every step together, and stops together.",
            "Stuck": "look at the line where each rank waits. Who should be in the matching call, and why is it not there?",
            "Mismatch": "ranks that do different things at the same time have taken different ways before. Where do they part?",
            "sent": "only the ends of a strip concern the neighbours, and whether to stop is one number.",
            "received": "only the ends of a strip concern the neighbours, and whether to stop is one number.",
            "links": "a strip touches two others at most.",
            "messages": "one number to each neighbour in each step.",
        },
    ),
)
