"""distributed_argmax(x): where the largest number of a sharded vector is."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

FAR = "ties, and one larger number at the very end"
CLOSE = {"close together, above 2**30": 2**30, "close together, above 2**60": 2**60}  # what a case says -> from where
CASES = (
    Case(2, size=4),
    Case(2, "negative numbers", 2, uneven=True),
    Case(3, "ties", 3),
    Case(3, "negative numbers", 2, uneven=True),
    Case(3, "around -10,000", 2, uneven=True),
    Case(4, "ties", 4, uneven=True),
    Case(4, FAR, 300),
    Case(4, "close together, above 2**30", 40, torch.float64),
    Case(4, "close together, above 2**60", 3, torch.int64),
    Case(6, "all equal", 2, torch.bfloat16),
    Case(5, "negative numbers", 4, torch.int64, uneven=True),
    Case(7, "ties", 4, late=3, uneven=True),
    Case(8, "fractions", 20),
    Case(1, "ties", 5),
)


def draw(d):
    if d.case.kind == FAR:
        x = d.integers(0, 2, d.case.size)
        x[-1] += 2 * (d.rank == d.world_size - 1)
        return (x,)
    if d.case.kind in CLOSE:  # who sees ties takes another: neither rank 0 nor a shard's first has it
        x = d.integers(0, 30, d.case.size)
        owner, place = d.integer(1, d.world_size, common=True), d.integer(1, d.case.size, common=True)
        x[place] += 30 * (d.rank == owner)
        return (CLOSE[d.case.kind] + x,)
    return (d.numbers(d.case.length(d.rank)),)


def whole(args):
    return torch.cat([x for (x,) in args])


def everywhere(index, args):
    return [int(index) for _ in args]


def reference(args):
    return everywhere(whole(args).argmax(), args)  # torch promises the first of several


def owners(args):
    """The ranks that hold the maximum."""
    top = whole(args).max()
    return [rank for rank, (x,) in enumerate(args) if len(x) and x.max() == top]


def from_owner(owner, args, start):
    return everywhere(start + args[owner][0].argmax(), args)


def offset(rank, args):
    return sum(len(x) for (x,) in args[:rank])


def last(args):
    numbers = whole(args)
    return everywhere(len(numbers) - 1 - numbers.flip(0).argmax(), args)


def budget(case, args):
    limit = [24 * (case.world_size - 1)] * case.world_size
    return Budget("24(N-1) bytes sent and received by a rank, however long the vector is", limit, limit)


def needs(case, args):
    """Anything: where the maximum is depends on numbers of other ranks."""
    return [1] * case.world_size


TASK = Task(
    "distributed_argmax",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    suspects=(
        Suspect(
            lambda args: everywhere(whole(args).float().argmax(), args),
            "two numbers that differ have become equal. float32 tells integers apart only up to 2**24, float64 up to 2**53.",
        ),
        Suspect(
            lambda args: from_owner(owners(args)[0], args, 0),
            "this is the index within the owner's own shard. How many numbers are on the ranks before it?",
        ),
        Suspect(
            lambda args: from_owner(owners(args)[0], args, owners(args)[0] * len(args[owners(args)[0]][0])),
            "the offset is the rank times one shard's length. Are all shards equally long?",
        ),
        Suspect(
            lambda args: from_owner(owners(args)[-1], args, offset(owners(args)[-1], args)),
            "several ranks hold the maximum, and this is the last of them. It should be the first: which reduce op picks it?",
        ),
        Suspect(last, "the maximum occurs several times, and this is its last index. It should be the first."),
        Suspect(
            lambda args: [int(x.argmax()) if len(x) else 0 for (x,) in args],
            "each rank looks at its own shard only. Who holds the largest number of all?",
        ),
        Suspect(
            lambda args: [offset(r, args) + int(x.argmax()) if len(x) else 0 for r, (x,) in enumerate(args)],
            "each rank names the index of its own largest number. Who holds the largest number of all?",
        ),
    ),
    thoughts={
        "values": "which ranks hold the maximum, where in the whole vector does each of them see it first, and which of these indices should win?",
        "traffic": "the vector itself doesn't have to travel. What does a rank have to tell the others about its shard?",
        "RankFailed": "what does a rank with an empty shard do? It has no maximum, but it must take part. "
        "And does the number it passes exist in x's dtype? No integer is -inf; torch.iinfo and torch.finfo name the smallest number.",
        "Stuck": "does a rank with an empty shard make all the calls that the others make?",
        "Mismatch": "does every rank know who owns the maximum before the call (with a tie, two think that they do)? And do all "
        "pass the same dtype and shape, even one with an empty shard?",
    },
)
