"""from_the_last(x): on rank 0 the last rank's tensor; swap_in_turn(x): ranks 0 and 1 have each other's tensor;
hand_over(x): the left neighbor's tensor, one's own emptied;
pass_left(x, hops): the tensor of the rank so many places to the right; running_total(x): the sum over the ranks up to this one;
swap_pairs(x): the tensor of this rank's partner, ranks 0 and 1, 2 and 3, ... being partners.
"""

import torch

from helpers.exercise import Budget, Case, OnError, Suspect, Task

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


SWAP_PAIRS = Task(
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
        "Stuck": OnError(
            r"A send completes only",
            "a send waits for its recv. Which of the two partners receives first? Or start both before you wait.",
        ),
        "RankFailed": OnError(
            r"\d*[13579] ranks: .*no rank", "with an odd number of ranks the last one has no partner."
        ),
    },
)


MESSAGES = frozenset({"send", "recv"})
FEW = tuple(Case(n, size=2, late=1 if n == 4 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1))


def size(case):
    return case.size * case.dtype.itemsize


def lefts(args):
    return [args[rank - 1][0] for rank in range(len(args))]


def one_message(words, messages, steps):
    """A budget of so many messages for each rank and so many steps in all, both of the world size."""
    return lambda case, args: Budget(words, messages=messages(case.world_size), steps=steps(case.world_size))


def from_others(case, args):
    return [size(case) * (case.world_size > 1)] * case.world_size


FROM_THE_LAST = Task(
    "from_the_last",
    FEW,
    draw,
    lambda args: [args[-1][0]] + [None] * (len(args) - 1),
    one_message("one message, from the last rank", lambda n: [0] * (n - 1) + [int(n > 1)], lambda n: int(n > 1)),
    needs=lambda case, args: [size(case) * (case.world_size > 1)] + [0] * (case.world_size - 1),
    allowed=MESSAGES,
    suspects=(
        Suspect(
            lambda args: [len(args) - 1] + [None] * (len(args) - 1),
            "recv returns the number of the sender. What it sent is in the buffer.",
        ),
        Suspect(
            lambda args: [torch.zeros_like(args[0][0])] + [None] * (len(args) - 1),
            "this is the empty buffer. Has the recv ended before it's returned?",
        ),
    ),
    thoughts={
        "values": "rank 0 returns what it received, and every other rank nothing.",
        "calls": "send on one rank and recv on another is all it takes.",
        "Stuck": "every send needs a recv. Which ranks send here, and which one receives, from whom?",
        "RankFailed": OnError(r"^1 rank: ", "a rank that's alone is the last one too, and can't send to itself."),
        "inputs": "what arrives needs its own buffer.",
    },
)


def swapped(args):
    own = [x for (x,) in args]
    return [*reversed(own[:2]), *own[2:]]


SWAP_IN_TURN = Task(
    "swap_in_turn",
    FEW,
    draw,
    swapped,
    lambda case, args: Budget(
        "one message from rank 0 and one from rank 1",
        messages=[int(case.world_size > 1 > rank - 1) for rank in range(case.world_size)],
        steps=2,
    ),
    needs=lambda case, args: [size(case) * (case.world_size > 1 > rank - 1) for rank in range(case.world_size)],
    allowed=MESSAGES,
    suspects=(
        Suspect(
            lambda args: [x for (x,) in args],
            "each rank still has its own numbers. Into which buffer did the other's come?",
        ),
        Suspect(
            lambda args: swapped(args)[:2] + [None] * (len(args) - 2),
            "ranks 0 and 1 are right. What do the other ranks return?",
            where_wrong=True,
        ),
        Suspect(
            lambda args: [torch.zeros_like(x) if rank < 2 else x for rank, (x,) in enumerate(args)],
            "this is the empty buffer. Does a `recv` write into the one that's returned?",
        ),
    ),
    thoughts={
        "values": "rank 0 returns what rank 1 had, and rank 1 what rank 0 had. The others return their own.",
        "calls": "one send and one recv on each of the two is all it takes.",
        "Stuck": OnError(
            r"A send completes only", "if both send first, neither receives. Let one of them receive first, and then send."
        ),
        "RankFailed": OnError(r"no rank|^1 rank: ", "the other one of ranks 0 and 1 is 1 - rank. Does it exist?"),
        "inputs": "what arrives needs its own buffer.",
    },
)

HAND_OVER = Task(
    "hand_over",
    FEW,
    draw,
    lefts,
    one_message("one message per rank, all in one step", lambda n: [int(n > 1)] * n, lambda n: int(n > 1)),
    after=lambda args: [(torch.zeros_like(x),) for (x,) in args],
    needs=from_others,
    allowed=MESSAGES,
    suspects=(
        Suspect(
            lambda args: [torch.zeros_like(x) for (x,) in args],
            "these are zeros. Was x emptied before it had been sent, or is it x that's returned?",
        ),
        Suspect(
            lambda args: lefts(args) if len(args) > 1 else [torch.zeros_like(args[0][0])],
            "alone, a rank returns its own numbers. `y = x` is a second name for the same tensor, which x.zero_() then empties. "
            "What makes a copy?",
        ),
    ),
    thoughts={
        "values": "rank r returns what rank r - 1 had, and leaves zeros in x.",
        "inputs": "x must hold zeros at the end. When is it safe to write into it?",
        "steps": "one message waits for another. Start the send without waiting for it.",
        "Stuck": OnError(
            r"A send completes only", "if every rank sends first, no rank receives. Start the send, then receive."
        ),
        "RankFailed": OnError(
            r"^1 rank: ", "a rank that's alone can't send to itself: it has its own numbers already."
        ),
    },
)


def moved(places):
    """The results if each rank's numbers end up so many places to the left.  places: by the number of hops."""
    return lambda args: [args[(rank + places(args[0][1])) % len(args)][0] for rank in range(len(args))]


def one_message_per_hop(case, args):
    n, hops = case.world_size, args[0][1] * (case.world_size > 1)
    links = {(rank, (rank - 1) % n) for rank in range(n)}
    return Budget("one message per rank and hop, to the left; a step per hop", messages=[hops] * n, steps=hops, links=links)


PASS_LEFT = Task(
    "pass_left",
    FEW,
    lambda d: (d.numbers(d.case.size), d.integer(1, 4, common=True)),
    moved(lambda hops: hops),
    one_message_per_hop,
    needs=lambda case, args: [size(case) * (args[0][1] % case.world_size > 0)] * case.world_size,
    allowed=MESSAGES,
    parameters=("x", "hops"),
    suspects=(
        Suspect(
            moved(lambda hops: -hops),
            "these numbers came from the left. Who sends to rank r if everyone sends to the left?",
        ),
        Suspect(
            moved(lambda hops: 1),
            "these numbers have moved by one rank, whatever `hops` is. What should a rank send in the second step?",
        ),
        Suspect(moved(lambda hops: hops - 1), "these numbers are one hop short."),
        Suspect(moved(lambda hops: hops + 1), "these numbers have gone one hop too far."),
    ),
    thoughts={
        "values": "in each hop, rank r sends what it has to rank r - 1. Who sends to rank r?",
        "inputs": "what arrives needs its own buffer.",
        "steps": "the messages wait for each other. How can all of a hop be in flight at once?",
        "links": "a rank sends to its left neighbor only, once per hop.",
        "Stuck": "who sends to rank r, and does it receive from there? Does it start both before it waits?",
        "RankFailed": OnError(
            r"^1 rank: |not connected",
            "a rank can't send to itself. Alone, it returns its own x, and with others, each message goes to the left neighbor.",
        ),
    },
)


def sums(args):
    return [sum(x for (x,) in args[: rank + 1]) for rank in range(len(args))]


RUNNING_TOTAL = Task(
    "running_total",
    FEW,
    draw,
    sums,
    one_message("one message per rank, except the last; N - 1 steps", lambda n: [1] * (n - 1) + [0], lambda n: n - 1),
    needs=lambda case, args: [0] + [size(case)] * (case.world_size - 1),
    allowed=MESSAGES,
    suspects=(
        Suspect(
            lambda args: [x if not rank else args[rank - 1][0] + x for rank, (x,) in enumerate(args)],
            "each rank has its own numbers and its neighbor's. Which tensor should a rank pass on?",
        ),
        Suspect(
            lambda args: [args[0][0]] * len(args),
            "rank 0's numbers were passed along. Where does a rank add its own?",
        ),
        Suspect(
            lambda args: [total - x for total, (x,) in zip(sums(args), args)],
            "this is the total of the ranks before. The rank's own numbers belong to it.",
        ),
        Suspect(
            lambda args: [sum(x for (x,) in args[rank:]) for rank in range(len(args))],
            "these sums begin at the last rank. Which end of the chain starts?",
        ),
    ),
    thoughts={
        "values": "receive the total so far, add your own, pass it on.",
        "inputs": "the total is a new tensor. Which line writes into x?",
        "Stuck": "the first rank receives from nobody and sends its own numbers. The last one sends to nobody.",
        "RankFailed": OnError(
            r"no rank", "the first rank has nobody to receive from, and the last one nobody to send to."
        ),
    },
)

TASKS = (SWAP_PAIRS, FROM_THE_LAST, SWAP_IN_TURN, HAND_OVER, PASS_LEFT, RUNNING_TOTAL)
