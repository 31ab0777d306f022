"""settle(strip): a rod that evens out its temperature, in strips; to be mended by the learner."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

ENOUGH = 0.5  # degrees: the rod has settled when nothing changes by more in a step
HOT = "a rod with one hot end"
HOTTEST = 512.0
MOST_IN_A_STEP = 5  # messages and calls that wait for each other: four if even ranks give first, and the all_reduce
EXACT = "a rod in which the largest change is exactly 0.5"
CASES = (
    Case(2, size=3),
    Case(2, HOT, 9),
    Case(3, size=4),
    Case(3, "fractions", 3, uneven=True, late=1),
    Case(4, EXACT, 3),
    Case(4, size=3, late=3),
    Case(5, size=3, uneven=True),
    Case(6, size=3, uneven=True),
    Case(7, size=2),
    Case(8, size=2),
    Case(8, "all equal", 2),
    Case(1, size=4),
)


def draw(d):
    if d.case.kind == EXACT:  # all places alike, but one: 1 more, of which it keeps a half
        strip = torch.full((d.case.size,), float(d.integer(-9, 10, common=True)))
        where = d.integer(1, d.world_size * d.case.size - 1, common=True) - d.rank * d.case.size
        if 0 <= where < d.case.size:
            strip[where] += 1
        return (strip,)
    if d.case.kind == HOT:  # many steps; no change comes so close to 0.5 that rounding could decide
        strip = torch.zeros(d.case.size)
        strip[0] = HOTTEST * (d.rank == 0)
        return (strip,)
    return (10 * d.numbers(d.case.length(d.rank)),)


def step(rod):
    padded = torch.cat([rod[:1], rod, rod[-1:]])
    return (padded[:-2] + 2 * rod + padded[2:]) / 4


def settled(args, enough=lambda change: change <= ENOUGH):
    """The rod at rest, and after how many steps."""
    rod, steps = torch.cat([x for (x,) in args]), 0
    while True:
        after = step(rod)
        change, rod, steps = (after - rod).abs().max(), after, steps + 1
        if enough(change):
            return rod, steps


def reference(args):
    return parts(*settled(args), args)


def below(args):
    return parts(*settled(args, lambda change: change < ENOUGH), args)


def parts(rod, steps, args):
    return [(part, steps, float(rod.max())) for part in rod.split([len(x) for (x,) in args])]


def own_maximum(args):
    return [(part, steps, float(part.max())) for part, steps, _ in reference(args)]


def budget(case, args):
    n, steps = case.world_size, settled(args)[1]
    sent = [(8 + 16) * steps + 16] * n if n > 1 else [0]
    return Budget(
        "in each step, one number to each neighbor and one all_reduce of one number; at the end, one more; "
        "and a step doesn't take longer with more ranks",
        sent,
        sent,
        [2 * steps] * n,
        steps=MOST_IN_A_STEP * steps + 1 if n > 1 else None,
        calls=[(2 * (r > 0) + 2 * (r < n - 1) + 1) * steps + 1 for r in range(n)],
        links={(r, r + way) for r in range(n) for way in (1, -1) if 0 <= r + way < n},
    )


def needs(case, args):
    """The hottest temperature, a float32."""
    return [4] * case.world_size


TASK = Task(
    "settle",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    suspects=(
        Suspect(
            below,
            "the rod has settled when no point has changed by *more* than 0.5. Does the loop continue when the change is exactly 0.5?",
        ),
        Suspect(
            own_maximum,
            "each rank returns the hottest point of its own strip. The calls must match, but the result must also reach all ranks.",
        ),
    ),
    thoughts={
        "values": "compare with one process: the whole rod takes every step together, and stops together.",
        "Stuck": "look at the line where each rank waits. Who should be in the matching call, and why is it not there?",
        "Mismatch": "ranks that do different things at the same time took different branches earlier. Where did they part?",
        "traffic": "only the ends of a strip concern its neighbors, and whether to stop is one number.",
        "calls": "each step takes a send and a recv per neighbor, and one all_reduce. What else is called, and is it needed "
        "before the rod has settled?",
        "links": "a strip touches two others at most.",
        "messages": "one number to each neighbor in each step.",
        "steps": "one pair of ranks waits for the other. How can all ends travel at once? See batch_isend_irecv.",
    },
)
