"""tree_broadcast(x, src): a broadcast by a binomial tree, from messages."""

import torch

from helpers.exercise import LARGE, Budget, Case, Suspect, Task

CASES = (
    Case(2),
    Case(2, "negative numbers", 1),
    Case(3, late=2),
    Case(3, dtype=torch.int64),
    Case(4, size=4),
    Case(4, "fractions", 2, late=0),
    Case(6, size=3),
    Case(5, "ties", 4, torch.bfloat16),
    Case(7, size=2),
    Case(8, "fractions", 6, late=4),
    Case(8, size=1, dtype=torch.int32),
    Case(1),
)


def draw(d):
    return d.numbers(d.case.size), d.integer(0, d.world_size, common=True)


def after(args):
    return [(args[src][0], src) for _, src in args]


def rounds(n):
    """ceil(log2 n): how many times the ranks that have it must double until all n do."""
    return (n - 1).bit_length()


def budget(case, args):
    n, whole = case.world_size, case.size * case.dtype.itemsize
    src = args[0][1]
    return Budget(
        "ceil(log2 N) steps, at most ceil(log2 N) messages sent by a rank, and one received by every rank but src",
        [rounds(n) * whole] * n,
        [0 if rank == src else whole for rank in range(n)],
        [rounds(n)] * n,
        rounds(n),
    )


def needs(case, args):
    """The whole of x, on every rank but src."""
    return [case.size * case.dtype.itemsize * (rank != src) for rank, (_, src) in enumerate(args)]


TASK = Task(
    "tree_broadcast",
    CASES,
    draw,
    lambda args: [None for _ in args],
    budget,
    needs=needs,
    large=Case(4, "fractions", LARGE),
    after=after,
    parameters=("x", "src"),
    allowed=frozenset({"send", "recv"}),
    suspects=(
        Suspect(lambda args: [args[0][0] for _ in args], "these are rank 0's numbers. They should be those of src."),
    ),
    thoughts={
        "values": "number the ranks from src: (rank - src) % N. Who has the data after the first step, who after the second?",
        "calls": "build it from send and recv: that is what broadcast does inside.",
        "steps": "in each step, every rank that has the data can pass it on. How many have it after k steps?",
        "messages": "a rank that has had it for k steps has sent k messages. Does one rank do all the work?",
        "sent": "does one rank do all the work? The ranks that have the data can help.",
        "received": "each rank needs the data once, and src has it already.",
        "Stuck": "write down for N = 3 who sends to whom in which step. Does every send have its recv? "
        "What if the partner's number is N or more?",
        "Mismatch": "send and recv must carry the same number of elements and the same dtype.",
        "RankFailed": "is the partner a rank that exists, for any N and src? Count from src, and come back modulo N.",
    },
)
