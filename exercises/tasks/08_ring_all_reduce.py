"""ring_all_reduce(x): the sum over ranks in place, from messages between neighbours."""

import torch

from collectives.outcome.errors import RunError
from helpers.exercise import LARGE, Budget, Case, Suspect, Task

CASES = (
    Case(2, size=4),
    Case(2, "negative numbers", 3),
    Case(3, size=3),
    Case(3, "fractions", 7),
    Case(3, size=2),
    Case(4, size=8, dtype=torch.int64),
    Case(4, size=6, late=1),
    Case(4, size=0),
    Case(6, size=12, dtype=torch.bfloat16),
    Case(5, "up to 10,000 and down to -10,000", 11),
    Case(8, size=8, late=7),
    Case(8, size=13, dtype=torch.int32),
    Case(7, "ties", 5),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.case.size),)


def total(args):
    return sum(x.double() for (x,) in args).to(args[0][0].dtype)


def nothing(args):
    return [None for _ in args]


def after(args):
    return [(total(args),) for _ in args]


def budget(case, args):
    n = case.world_size
    chunk = -(-case.size // n) * case.dtype.itemsize
    limit = [2 * (n - 1) * chunk] * n
    neighbours = {(r, (r + way) % n) for r in range(n) for way in (1, -1)}
    return Budget(
        "2(N-1) messages per rank, each with at most ceil(length/N) elements, in 2(N-1) steps, to neighbors only",
        limit,
        limit,
        [2 * (n - 1)] * n,
        2 * (n - 1),
        neighbours,
        least=2 * (n - 1) / n * case.size * case.dtype.itemsize,
        largest=[chunk] * n,
    )


def prefix(args, upto):
    """What each rank would have if it stopped adding after so many of the ranks to its left."""
    n = len(args)
    return [sum(args[(r - k) % n][0].double() for k in range(upto + 1)).to(args[r][0].dtype) for r in range(n)]


def first_half(args):
    """After the reduce-scatter: chunk r + 1 is complete on rank r, the others are on their way."""
    n = len(args)
    parts = [x.tensor_split(n) for (x,) in args]
    came = []
    for r in range(n):
        chunks = []
        for c in range(n):
            hops = (r - c) % n  # chunk c started on rank c
            chunks.append(sum(parts[(r - k) % n][c].double() for k in range(hops + 1)))
        came.append(torch.cat(chunks).to(args[r][0].dtype))
    return came


def without_tail(args):
    """As if the length had been rounded down to a multiple of N."""
    whole = len(args[0][0]) // len(args) * len(args)
    return [torch.cat([total(args)[:whole], x[whole:]]) for (x,) in args]


def follow(answer, n):
    """The answer's run on n ranks as a schedule, and the first chunk that does not end as it should."""
    from collectives.algorithms import WrongSchedule, recorded

    try:
        schedule = recorded(answer, "all_reduce", world_size=n)
    except (RunError, ValueError):
        return None
    try:
        schedule.prove()
    except WrongSchedule as wrong:
        return f"Chunk by chunk, with {n} ranks: {wrong}", schedule
    return None


def needs(case, args):
    """The sum of the others' numbers."""
    return [case.size * case.dtype.itemsize] * case.world_size


TASK = Task(
    "ring_all_reduce",
    CASES,
    draw,
    nothing,
    budget,
    needs=needs,
    large=Case(4, "fractions", LARGE),
    after=after,
    allowed=frozenset({"send", "recv"}),
    follow=follow,
    suspects=(
        Suspect(
            lambda args: [total(args)] * len(args),
            "the sum is right, and it's returned. The task wants it in x itself: `x.copy_(...)` writes it there.",
        ),
        Suspect(
            first_half,
            "this is how things stand after the first half: every chunk is complete on one rank only. "
            "The finished chunks still have to go around.",
        ),
        Suspect(
            lambda args: [(total(args).double() / len(args)).to(args[0][0].dtype)] * len(args),
            "this is the mean; it should be the sum.",
        ),
        Suspect(
            lambda args: prefix(args, 1),
            "each rank has added only its left neighbor's numbers. How do the others' get there?",
        ),
        Suspect(without_tail, "the last numbers are left out. What if the length does not divide by N?"),
    ),
    thoughts={
        "values": "follow one chunk: on which rank does it start, who adds to it, where is it complete, and how does it get to all?",
        "calls": "build it from send and recv (isend, irecv, batch_isend_irecv): that is what all_reduce does inside.",
        "traffic": "does each message carry one chunk, or the whole tensor?",
        "largest": "does each message carry one chunk, or the whole tensor? And if the length doesn't divide by N, how many chunks "
        "share the elements that are left?",
        "messages": "N-1 messages make every chunk complete on one rank, and N-1 more give it to all.",
        "steps": "all ranks can send in the same step. Which of your calls waits for another rank's turn? See batch_isend_irecv.",
        "links": "in a ring, rank r sends to (r + 1) % N and receives from (r - 1) % N.",
        "Stuck": "who receives first? If every rank sends first, none receives; taking turns breaks for odd N.",
        "Mismatch": "which chunk does your left neighbor send in this step, and how long is it? Not all are equally long.",
        "RankFailed": "how long is each chunk, and does every rank have as many chunks as there are ranks?",
    },
)
