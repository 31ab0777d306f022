"""swap_pairs(x): the tensor of this rank's partner, ranks 0 and 1, 2 and 3, ... being partners."""

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2),
    Case(2, "negative numbers", 1),
    Case(3, size=2),
    Case(3, size=4, late=1),
    Case(4, "fractions", 5),
    Case(4, size=2, late=2),
    Case(5, size=3),
    Case(6, size=2),
    Case(7, size=3),
    Case(8, size=2),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.case.size),)


def partner(rank, n):
    return rank ^ 1 if rank ^ 1 < n else rank


def reference(args):
    return [args[partner(rank, len(args))][0] for rank in range(len(args))]


def budget(case, args):
    n, nbytes = case.world_size, case.size * case.dtype.itemsize
    has_one = [partner(rank, n) != rank for rank in range(n)]
    return Budget(
        "one message per rank, to its partner, and all in one step",
        sent=[nbytes * one for one in has_one],
        received=[nbytes * one for one in has_one],
        messages=[int(one) for one in has_one],
        steps=int(any(has_one)),
    )


def needs(case, args):
    n = case.world_size
    return [case.size * case.dtype.itemsize * (partner(rank, n) != rank) for rank in range(n)]


TASK = Task(
    "swap_pairs",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    allowed=frozenset({"send", "recv"}),
    suspects=(
        Suspect(
            lambda args: [x for (x,) in args],
            "this is what the rank had before. Into which buffer did the partner's numbers come?",
        ),
        Suspect(
            lambda args: [args[rank - 1][0] for rank in range(len(args))],
            "this is a shift around the ring. Partners swap: rank 1 sends back to rank 0.",
        ),
    ),
    thoughts={
        "values": "rank ^ 1, or rank + 1 for an even rank and rank - 1 for an odd one, is the partner. Does it exist?",
        "calls": "messages are enough: send, recv, isend, irecv, batch_isend_irecv.",
        "steps": "one message waits for the other. How can both be in flight at once?",
        "Stuck": "a send waits for its recv. Which of the two partners receives first? Or start both before you wait.",
        "RankFailed": "with an odd number of ranks the last one has no partner.",
    },
)
