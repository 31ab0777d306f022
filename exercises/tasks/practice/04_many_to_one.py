"""largest(x): on the last rank the maximum of each element; as_matrix(x): on rank 0 everyone's numbers, a row for each rank;
add_bytes(x): on rank 0 a sum that fits; nan_ranks(loss): on rank 0 the ranks with a NaN;
accuracy(correct): on rank 0 the fraction of all samples that were answered rightly.
"""

from dataclasses import replace

import torch

from helpers.exercise import Budget, Case, OnError, Suspect, Task

CASES = (
    Case(2, size=4),
    Case(2, size=6, uneven=True),
    Case(3, size=3, uneven=True),
    Case(3, size=5),
    Case(2, size=600),  # more than a byte can count
    Case(4, size=300, uneven=True),
    Case(5, size=4, uneven=True),
    Case(6, size=2),
    Case(7, size=4, uneven=True),
    Case(8, size=5, uneven=True, late=3),
    Case(1, size=3),
)


def draw(d):
    return (d.numbers(d.case.length(d.rank)) > 0,)


def fraction(args):
    return sum(int(x.sum()) for (x,) in args) / sum(len(x) for (x,) in args)


def in_a_byte(some, total):
    return (some % 256) / (total % 256) if total % 256 else float("inf")


def mean_of_means(args):
    return sum(float(x.float().mean()) for (x,) in args) / len(args)


def on_zero(value, args):
    return [value] + [None] * (len(args) - 1)


def needs(case, args):
    return [1] + [0] * (case.world_size - 1)


ACCURACY = Task(
    "accuracy",
    CASES,
    draw,
    lambda args: on_zero(fraction(args), args),
    lambda case, args: Budget(
        "one call per rank, of two numbers", calls=[1] * case.world_size, largest=[16] * case.world_size
    ),
    needs=needs,
    parameters=("correct",),
    suspects=(
        Suspect(
            lambda args: on_zero(mean_of_means(args), args),
            "this is the mean of the ranks' accuracies. A rank with few samples counts as much there as one with many.",
        ),
        Suspect(
            lambda args: [fraction(args)] * len(args),
            "only rank 0 returns a number. After reduce, what may the others read?",
            where_wrong=True,
        ),
        Suspect(
            lambda args: on_zero(float(args[0][0].float().mean()), args),
            "this is the accuracy of rank 0's own samples.",
        ),
        Suspect(
            lambda args: on_zero(fraction(args) * sum(len(x) for (x,) in args) / max(len(args[0][0]), 1), args),
            "all the right ones are divided by rank 0's own count. How many images are there on all ranks?",
        ),
        Suspect(
            lambda args: on_zero(in_a_byte(sum(int(x.sum()) for (x,) in args), sum(len(x) for (x,) in args)), args),
            "a byte counts to 255 and begins again at 0. Which dtype has room for all the images?",
        ),
        Suspect(lambda args: on_zero(100 * fraction(args), args), "these are percent. A fraction is between 0 and 1."),
        Suspect(
            lambda args: on_zero(int(fraction(args)), args),
            "`//` throws away what comes after the point. Which division keeps it?",
        ),
        Suspect(
            lambda args: on_zero(1 / fraction(args) if fraction(args) else float("inf"), args),
            "this is all of them divided by the right ones. Turn it around.",
        ),
    ),
    thoughts={
        "values": "how many were right, and how many were there, over all ranks? Divide last.",
        "largest": "two numbers per rank are all that rank 0 needs.",
        "calls": "two numbers fit into one tensor, and one tensor into one call.",
        "Stuck": "does every rank call reduce, and not only the one that wants the result?",
        "Mismatch": "the ranks have different numbers of samples. What about them has the same shape everywhere?",
        "RankFailed": OnError(r"NoneType", "reduce returns None: where is the result?"),
    },
)


FEW = tuple(Case(n, size=max(n, 3), late=2 if n == 5 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1))
BYTES = tuple(replace(case, kind="bytes", dtype=torch.uint8) for case in FEW)


def one_call(case, args):
    return Budget("one call per rank", calls=[1] * case.world_size)


def no_need(case, args):
    return [0] * case.world_size


def stacked(args):
    return torch.stack([x for (x,) in args])


def on_last(value, args):
    return [None] * (len(args) - 1) + [value]


LARGEST = Task(
    "largest",
    FEW,
    lambda d: (d.numbers(d.case.size),),
    lambda args: on_last(stacked(args).amax(0), args),
    one_call,
    needs=no_need,
    allowed=frozenset({"reduce"}),
    suspects=(
        Suspect(
            lambda args: on_last(stacked(args).sum(0), args), "this is the sum. Which reduce op keeps the largest?"
        ),
        Suspect(lambda args: on_zero(stacked(args).amax(0), args), "rank 0 has it. The last rank wants it."),
        Suspect(
            lambda args: [None] * len(args),
            "no rank returns anything. reduce returns None: the result is in its tensor.",
        ),
    ),
    thoughts={
        "values": "only the last rank returns something: the largest of each element.",
        "inputs": "reduce works in place. Give it a copy of x.",
        "calls": "one reduce is enough.",
        "Stuck": "every rank makes the call, even one that wants nothing back.",
        "Mismatch": OnError(r"disagree on the dst", "all ranks must name the same dst: the number of the last one."),
        "RankFailed": OnError(
            r"root rank|no rank|Global rank", "ranks count from 0. What's the number of the last one?"
        ),
    },
)

AS_MATRIX = Task(
    "as_matrix",
    FEW,
    lambda d: (d.numbers(d.case.size),),
    lambda args: on_zero(stacked(args), args),
    one_call,
    needs=no_need,
    suspects=(
        Suspect(
            lambda args: on_zero(stacked(args).flatten(), args),
            "these are the right numbers in one row. Which function makes a matrix of a list of rows?",
        ),
        Suspect(
            lambda args: on_zero([x for (x,) in args], args),
            "this is the list that gather filled. Make one matrix of it.",
        ),
        Suspect(
            lambda args: on_zero(stacked(args).T, args), "rank r's numbers are in column r. They should be in row r."
        ),
    ),
    thoughts={
        "values": "rank 0 returns a matrix with a row for each rank, in rank order, and the others None.",
        "calls": "one gather is enough.",
        "Stuck": "every rank makes the call.",
        "RankFailed": OnError(r"_list`` must", "rank 0 passes a list of N buffers, and every other rank None."),
        "Mismatch": "rank 0 needs N buffers, each with its own memory, and with the shape and the dtype of x.",
    },
)


def wrapped(args):
    return stacked(args).sum(0, dtype=torch.int64)


ADD_BYTES = Task(
    "add_bytes",
    BYTES,
    lambda d: (torch.randint(100, 256, (d.case.size,), generator=d.own).to(torch.uint8),),
    lambda args: on_zero(wrapped(args), args),
    one_call,
    needs=no_need,
    suspects=(
        Suspect(
            lambda args: on_zero(wrapped(args) % 256, args),
            "these sums wrapped around at 256 before they became int64. Convert first, then reduce.",
        ),
        Suspect(
            lambda args: on_zero((wrapped(args) % 256).to(torch.uint8), args), "a uint8 has no room for these sums."
        ),
        Suspect(
            lambda args: on_zero(wrapped(args).sum(), args),
            "this is one number. reduce adds across ranks, element by element: no sum() is needed.",
        ),
        Suspect(
            lambda args: on_zero(args[0][0], args),
            "these are rank 0's own bytes. The sums went into the tensor that the call got.",
        ),
        Suspect(
            lambda args: on_zero(args[0][0].long(), args),
            "these are rank 0's own numbers. Did the call get this tensor, or another conversion of x?",
        ),
    ),
    thoughts={
        "values": "convert to torch.int64 before the call, and return the sums on rank 0 alone.",
        "inputs": "x stays as it was, a tensor of bytes.",
        "calls": "one reduce is enough.",
        "Stuck": "every rank makes the call.",
        "Mismatch": "all ranks must reduce the same dtype.",
    },
)


def nan_or_number(d):
    loss = d.numbers(1)
    return (torch.full_like(loss, float("nan")) if d.integer(0, 2) else loss,)


def with_nan(args):
    return [rank for rank, (loss,) in enumerate(args) if loss.isnan()]


NAN_RANKS = Task(
    "nan_ranks",
    FEW,
    nan_or_number,
    lambda args: on_zero(with_nan(args), args),
    one_call,
    needs=no_need,
    parameters=("loss",),
    suspects=(
        Suspect(lambda args: on_zero(len(with_nan(args)), args), "this says how many they are. Which ones?"),
        Suspect(lambda args: [with_nan(args)] * len(args), "only rank 0 should return the list.", where_wrong=True),
        Suspect(
            lambda args: on_zero([rank for rank in range(len(args)) if rank not in with_nan(args)], args),
            "these are the healthy ranks.",
        ),
        Suspect(
            lambda args: on_zero([[rank] for rank in with_nan(args)], args),
            "each rank is in a list of its own: nonzero() has a row for each. flatten() makes one row of them.",
        ),
        Suspect(
            lambda args: on_zero(torch.tensor(with_nan(args), dtype=torch.int64), args),
            "these are the right ranks, in a tensor. tolist() makes a list of it.",
        ),
        Suspect(
            lambda args: on_zero([], args),
            "no rank is found. A NaN isn't equal to anything, not even to itself: which method of a tensor recognizes one?",
        ),
    ),
    thoughts={
        "values": "rank 0 should return a list of integers, in rank order. Does it, and are these the ranks whose loss is a NaN?",
        "calls": "one call is enough, with a tensor that has an element for each rank.",
        "Stuck": "every rank makes the call, whether its loss is a NaN or not.",
        "Mismatch": "every rank passes a tensor of the same shape: one element for each rank.",
        "RankFailed": OnError(
            r"_list`` must", "every rank passes a tensor; rank 0 alone passes a list, if it gathers."
        ),
    },
)

TASKS = (ACCURACY, LARGEST, AS_MATRIX, ADD_BYTES, NAN_RANKS)
