"""reduce_scatter_by_hand(chunks): rank r gets the sum of everybody's chunk r, from messages."""

import torch

from helpers.exercise import LARGE, Budget, Case, Suspect, Task

CASES = (
    Case(2),
    Case(2, "negative numbers", 2, uneven=True),
    Case(7, size=2),
    Case(3, "fractions", 3, uneven=True, late=0),
    Case(4, size=2, dtype=torch.int64),
    Case(4, size=4, uneven=True),
    Case(6, size=2, dtype=torch.bfloat16),
    Case(5, "up to 10,000 and down to -10,000", 4, uneven=True, late=4),
    Case(8, size=2),
    Case(8, "ties", 4, torch.int32, uneven=True),
    Case(1),
)


def draw(d):
    return ([d.numbers(d.case.length(k)) for k in range(d.world_size)],)


def combined(args, ranks_of):
    """Per rank r, the sum of chunk r over the ranks that ranks_of(r) names."""
    dtype, nothing = args[0][0][0].dtype, torch.zeros((), dtype=torch.double)
    return [sum((args[i][0][r].double() for i in ranks_of(r)), nothing).to(dtype) for r in range(len(args))]


def reference(args):
    return combined(args, lambda r: range(len(args)))


def budget(case, args):
    n = case.world_size
    parts = [chunk.nbytes for chunk in args[0][0]]
    return Budget(
        "N-1 messages per rank, in N-1 steps; a rank sends no more bytes than its chunks for the other ranks hold",
        sent=[sum(parts) - own for own in parts],
        messages=[n - 1] * n,
        steps=n - 1,
        least=sum(parts) - min(parts),
    )


def needs(case, args):
    """The sum of the others' chunks."""
    return [chunk.nbytes for chunk in args[0][0]]


TASK = Task(
    "reduce_scatter_by_hand",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    new=True,
    large=Case(4, "fractions", LARGE // 2),
    allowed=frozenset({"send", "recv"}),
    suspects=(
        Suspect(
            lambda args: combined(args, lambda r: [i for i in range(len(args)) if i != r]),
            "the rank's own contribution is missing. Where does the sum start?",
        ),
        Suspect(lambda args: combined(args, lambda r: [r]), "this is the rank's own chunk, with nothing added to it."),
        Suspect(
            lambda args: combined(args, lambda r: sorted({r, (r - 1) % len(args)})),
            "only the left neighbor's numbers are added. How do the others' get there?",
        ),
        Suspect(
            lambda args: [args[r][0][r] * len(args) for r in range(len(args))],
            "this is the rank's own chunk, N times. Do the buffers hold what was received when they are added?",
        ),
    ),
    thoughts={
        "values": "which ranks have a part of chunk r, and does each part reach rank r exactly once?",
        "calls": "build it from send and recv (isend, irecv, batch_isend_irecv): that is what reduce_scatter does inside.",
        "sent": "a chunk that rank r doesn't keep doesn't have to travel to rank r. No rank has to see everything.",
        "messages": "one message per step, and one step for each other rank.",
        "steps": "all ranks can send in the same step. Which of your calls waits for another rank's turn? See batch_isend_irecv.",
        "Stuck": "does each rank receive from the one that sends to it? In step s you send to rank + s: who sends to you? And if "
        "every rank waits in a send, none receives: start both, then wait for both.",
        "Mismatch": "is the buffer as long as what arrives? The chunks are not all equally long.",
        "RankFailed": "does it work for any number of ranks, not only for 2, 4 and 8?",
    },
)
