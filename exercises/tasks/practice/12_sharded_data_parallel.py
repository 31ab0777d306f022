"""mean_shard(gradient): this rank's shard of the mean gradient, whose length need not divide by the number of ranks."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2, "negative numbers", 5),
    Case(2, size=4),
    Case(3, size=7),
    Case(3, "fractions", 6, torch.float64, late=1),
    Case(4, size=9),
    Case(4, "fewer numbers than ranks", 2),
    Case(5, "fractions", 12),
    Case(6, size=8),
    Case(7, size=15),
    Case(8, size=17, late=6),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.case.size),)


def each(length, n):
    """Numbers in a shard."""
    return -(-length // n)


def shards(whole, n):
    padded = torch.zeros(n * each(len(whole), n), dtype=whole.dtype)
    padded[: len(whole)] = whole
    return list(padded.view(n, -1))


def total(args):
    return sum(gradient.double() for (gradient,) in args)


def mean(args):
    return (total(args) / len(args)).to(args[0][0].dtype)


def reference(args):
    return shards(mean(args), len(args))


def budget(case, args):
    n = case.world_size
    limit = [(n - 1) * each(case.size, n) * case.dtype.itemsize] * n
    return Budget("(N-1)/N of the padded gradient a rank, which is half an all_reduce", sent=limit, received=limit)


def needs(case, args):
    """The sum of the others' numbers of its shard; what is padding needs nothing."""
    n, shard = case.world_size, each(case.size, case.world_size)
    return [max(0, min(shard, case.size - rank * shard)) * case.dtype.itemsize for rank in range(n)]


TASK = Task(
    "mean_shard",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("gradient",),
    suspects=(
        Suspect(
            lambda args: shards(total(args).to(args[0][0].dtype), len(args)),
            "this is a shard of the sum. How many gradients are in it?",
        ),
        Suspect(
            lambda args: [shards(gradient, len(args))[rank] for rank, (gradient,) in enumerate(args)],
            "this is a shard of the rank's own gradient. The other ranks' are missing.",
        ),
        Suspect(
            lambda args: list(mean(args).tensor_split(len(args))),
            "these shards differ in length. All have ceil(length / N) numbers, and zeros fill the end.",
        ),
        Suspect(
            lambda args: [mean(args)] * len(args),
            "this is the whole mean. Rank r updates its own shard only, and needs no other.",
        ),
    ),
    thoughts={
        "values": "pad the gradient with zeros to N equal shards first. Which collective adds, and leaves each rank one shard?",
        "sent": "the result is right, but an all_reduce gives every rank shards that it throws away.",
        "received": "the result is right, but some rank receives shards that it throws away.",
        "RankFailed": "reduce_scatter_single wants an input N times as long as its output. Pad the gradient first.",
        "Mismatch": "all shards have one length, also those that are all zeros. Pad the gradient first.",
    },
)
