"""how_many(): the number of ranks, by a call; my_share(items): this rank's slice of what all ranks hold;
sum_of_mine(items): the sum of what the ranks own, one each, and some nothing.
"""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2, size=6),
    Case(2, size=5),
    Case(3, size=5),
    Case(3, size=6),
    Case(4, size=5),
    Case(4, size=0),
    Case(5, size=13),
    Case(6, size=13),
    Case(7, size=3),
    Case(8, size=3),
    Case(8, size=20),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.case.size, common=True),)


def reference(args):
    return list(args[0][0].tensor_split(len(args)))


def without_the_rest(args):
    n = len(args)
    each = len(args[0][0]) // n
    return [args[0][0][rank * each : (rank + 1) * each] for rank in range(n)]


def rest_to_the_last(args):
    shares = without_the_rest(args)
    return [*shares[:-1], args[0][0][sum(map(len, shares[:-1])) :]]


def larger_anywhere(args):
    (items,), n = args[0], len(args)
    return [items[rank * len(items) // n : (rank + 1) * len(items) // n] for rank in range(n)]


MY_SHARE = Task(
    "my_share",
    CASES,
    draw,
    reference,
    lambda case, args: Budget("no call at all", calls=[0] * case.world_size),
    needs=lambda case, args: [0] * case.world_size,
    allowed=frozenset(),
    parameters=("items",),
    suspects=(
        Suspect(
            lambda args: [args[0][0][rank :: len(args)] for rank in range(len(args))],
            "this deals the items out like cards. A share is a contiguous slice: where does it begin, and where does it end?",
        ),
        Suspect(without_the_rest, "some items belong to nobody. What happens to the remainder of the division?"),
        Suspect(rest_to_the_last, "the last rank gets the whole remainder. Shares may differ by at most one."),
        Suspect(
            larger_anywhere,
            "the sizes are right, but not their order: the larger shares come first. How many ranks get one item more?",
        ),
    ),
    thoughts={
        "values": "how long is each share when the items do not divide evenly, and where does yours begin?",
        "calls": "every rank has all the items. Its rank and the world size tell it which are its own.",
        "RankFailed": "chunk makes fewer pieces than asked for when the items do not divide evenly. Which function does not?",
    },
)


FEW = tuple(Case(n) for n in (2, 3, 4, 5, 6, 7, 8, 1))


def one_call(case, args):
    return Budget("one call per rank", calls=[1] * case.world_size)


HOW_MANY = Task(
    "how_many",
    FEW,
    lambda d: (),
    lambda args: [len(args)] * len(args),
    one_call,
    needs=lambda case, args: [1] * case.world_size,
    parameters=(),
    suspects=(
        Suspect(
            lambda args: [*range(len(args))],
            "this is the rank's own number. What could every rank add, so the sum counts the ranks?",
        ),
        Suspect(
            lambda args: [sum(range(len(args)))] * len(args),
            "this is the sum of the ranks' numbers. What must each contribute instead, to count as one?",
        ),
        Suspect(
            lambda args: [len(args) - 1] * len(args),
            "this is one too few. Ranks count from 0: is it the last one's number, or did rank 0 add nothing?",
        ),
        Suspect(
            lambda args: [torch.tensor(float(len(args)))] * len(args),
            "the count is right, in a tensor. `int(...)` or `.item()` takes it out.",
        ),
        Suspect(
            lambda args: [torch.tensor([float(len(args))])] * len(args),
            "the count is right, in a tensor. `int(...)` or `.item()` takes it out.",
        ),
    ),
    thoughts={
        "values": "what does each rank add, so the sum is the number of ranks? Return an int.",
        "calls": "one call is enough.",
        "Stuck": "does every rank make the call?",
    },
)

SUM_OF_MINE = Task(
    "sum_of_mine",
    tuple(
        Case(n, size=size)
        for n, size in ((2, 1), (2, 2), (3, 2), (4, 3), (4, 1), (5, 5), (6, 2), (7, 6), (8, 3), (1, 1))
    ),
    lambda d: (d.numbers(d.case.size, common=True),),
    lambda args: [args[0][0].sum()] * len(args),
    one_call,
    needs=lambda case, args: [1] * case.world_size,
    parameters=("items",),
    suspects=(
        Suspect(
            lambda args: [args[0][0].sum() * len(args)] * len(args),
            "every rank added all the items. Which one is this rank's own?",
        ),
        Suspect(
            lambda args: [
                args[0][0][rank] if rank < len(args[0][0]) else args[0][0].new_zeros(()) for rank in range(len(args))
            ],
            "this is the rank's own item. Which call adds up what the ranks own?",
        ),
        Suspect(
            lambda args: [sum((k + 1) * item for k, item in enumerate(args[0][0]))] * len(args),
            "some items are in it several times: rank r owns `items[r]`, and none of those after it.",
        ),
    ),
    thoughts={
        "values": "what does a rank without an item add, so that it changes nothing?",
        "inputs": "a slice of `items` is a view of it: `all_reduce` writes through. Clone it first.",
        "Stuck": "a rank without an item returned early. The others are waiting for its call: what can it contribute?",
        "Mismatch": "do all ranks pass in one element, of one shape and dtype, even those without an item?",
        "RankFailed": "does this rank have an item? The last ones may have none.",
    },
)

TASKS = (HOW_MANY, MY_SHARE, SUM_OF_MINE)
