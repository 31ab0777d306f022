"""The short tasks of chapter 06: shapes, views, calls in flight, gradients, and many tensors in one call.

share_of_sum(x): what a rank has of the sum.  broadcast_any(x): rank 0's tensor, of a shape that only rank 0 knows.  summed(x): the sum of a view.
sum_each(tensors): the sums of several tensors, started together.  gathered_gradient(dy): backward through an all_gather.
collect_uneven(mine): pieces of different lengths, on rank 0.  sum_all(tensors): the sums of several tensors, by one call.
"""

import torch

from helpers.exercise import Budget, Case, OnError, Suspect, Task

# --- share_of_sum -------------------------------------------------------------------------

SHARE_OF_SUM = Task(
    "share_of_sum",
    tuple(
        Case(n, size=size, late=late)
        for n, size, late in ((2, 3, None), (3, 2, None), (4, 1, 1), (5, 3, None), (6, 2, None), (7, 1, 0), (8, 4, None), (1, 3, None))
    ),  # fmt: skip
    lambda d: (d.integers(1, 10, d.case.size),),
    lambda args: [x / sum(y for (y,) in args) for (x,) in args],
    lambda case, args: Budget("one call", calls=[1] * case.world_size),
    needs=lambda case, args: [4 * case.size * (case.world_size > 1)] * case.world_size,
    suspects=(
        Suspect(
            lambda args: [torch.ones_like(x) for (x,) in args],
            "a sum divided by itself: all_reduce has written the sum over the rank's own numbers. Keep a copy of them.",
        ),
        Suspect(
            lambda args: [x // sum(y for (y,) in args) for (x,) in args],
            "these are the right numbers without their fractions. Does a `//` drop them?",
        ),
        Suspect(lambda args: [sum(x for (x,) in args)] * len(args), "this is the sum. Which part of it is this rank's?"),
        Suspect(lambda args: [x / x.sum() for (x,) in args], "this divides by the sum of the rank's own numbers."),
        Suspect(
            lambda args: [x / sum(y.sum() for (y,) in args) for (x,) in args],
            "this divides by the sum of all numbers. Each number has a sum of its own, over the ranks.",
        ),
        Suspect(
            lambda args: [x * len(args) / sum(y for (y,) in args) for (x,) in args],
            "this divides by the mean over the ranks, not by their sum.",
        ),
        Suspect(
            lambda args: [x / (sum(y for (y,) in args) - x) for (x,) in args],
            "this divides by the sum of the *other* ranks. The rank's own number is a part of the sum, too.",
        ),
        Suspect(
            lambda args: [sum(y for (y,) in args) / x for (x,) in args], "this is the sum by the rank's number, not the other way around."
        ),
    ),
    thoughts={
        "values": "you need two things: the rank's own numbers, and the sums over all ranks. The call leaves one tensor.",
        "calls": "one call sums all numbers of the tensor at once.",
        "Stuck": "does every rank make the call?",
    },
)


# --- broadcast_any ------------------------------------------------------------------------

SHAPES = {"2 dimensions": (2, 3), "1 dimension": (5,), "3 dimensions": (2, 1, 3), "a scalar": (), "no element": (0, 4)}


def known_to_rank_0(d):
    return (d.numbers(*SHAPES[d.case.kind]) if d.rank == 0 else None,)


def to_the_others(args):
    return [args[0][0]] * len(args)


def numbers_of_rank_0(case, args):
    return [0] + [args[0][0].nbytes] * (case.world_size - 1)


BROADCAST_ANY = Task(
    "broadcast_any",
    tuple(
        Case(n, kind, late=late)
        for n, kind, late in (
            (2, "2 dimensions", None),
            (2, "1 dimension", None),
            (3, "3 dimensions", None),
            (3, "2 dimensions", 0),
            (4, "a scalar", None),
            (5, "no element", None),
            (6, "3 dimensions", None),
            (7, "1 dimension", 3),
            (8, "2 dimensions", None),
            (1, "3 dimensions", None),
        )
    ),
    known_to_rank_0,
    to_the_others,
    lambda case, args: Budget(
        "the numbers once, and what it takes to know their shape",
        received=[0] + [args[0][0].nbytes + 128] * (case.world_size - 1),
    ),
    needs=numbers_of_rank_0,
    suspects=(
        Suspect(
            lambda args: [args[0][0].flatten()] * len(args),
            "the numbers are right and the shape is gone. Who knows it, and how do the others learn it?",
        ),
        Suspect(
            lambda args: [x if x is None else x.clone() for (x,) in args],
            "the other ranks still have nothing. What must they make before they can receive?",
            where_wrong=True,
        ),
    ),
    thoughts={
        "values": "first the number of dimensions, then the shape, then the numbers.",
        "inputs": "on rank 0, too, return a new tensor, and leave `x` as it is.",
        "traffic": "the shape is a few integers, and the numbers travel once.",
        "Stuck": "does every rank make each of the calls?",
        "Mismatch": "the ranks disagree about a shape or a dtype. How many dimensions are there, and who knows? "
        "(torch.tensor of an empty shape is float32, unless you say otherwise.)",
        "RankFailed": "`x` is None on every rank but 0. What do the others do before they know the shape?",
    },
)


# --- summed -------------------------------------------------------------------------------

COLUMN, TRANSPOSED = "a column", "a transposed matrix on rank 0"


def viewed(d):
    """A view with gaps; or a transposed matrix on rank 0 alone, so that the ranks' memory orders differ."""
    k = d.case.size
    if d.case.kind == COLUMN:
        return (d.numbers(k, 3)[:, 1],)
    return (d.numbers(k + 1, k).t() if d.case.kind == TRANSPOSED and d.rank == 0 else d.numbers(k, k + 1),)


def sum_of_views(args):
    return sum((x for (x,) in args[1:]), args[0][0]).contiguous()


SUMMED = Task(
    "summed",
    (
        Case(2, TRANSPOSED, 3),
        Case(2, COLUMN, 3),
        Case(3, size=2),
        Case(3, TRANSPOSED, 2, late=1),
        Case(4, COLUMN, 4),
        Case(5, size=3),
        Case(6, TRANSPOSED, 2),
        Case(7, COLUMN, 2),
        Case(8, TRANSPOSED, 3),
        Case(1, COLUMN, 3),
    ),
    viewed,
    lambda args: [sum_of_views(args)] * len(args),
    lambda case, args: Budget("one call", calls=[1] * case.world_size),
    needs=lambda case, args: [args[0][0].nbytes] * case.world_size,
    suspects=(
        Suspect(
            lambda args: [x for (x,) in args],
            "these are the rank's own numbers. Was a copy summed, and then forgotten?",
        ),
    ),
    thoughts={
        "values": "copy the view into a contiguous tensor, sum that, and return it.",
        "inputs": "contiguous() makes a copy of a view only. A tensor that is contiguous comes back as it is, and all_reduce "
        "overwrites it.",
        "calls": "one call is enough: a copy is contiguous, if you ask for it.",
        "Mismatch": "sum a contiguous copy. clone() alone keeps the memory order of a transposed matrix: ask it for "
        "memory_format=torch.contiguous_format.",
        "RankFailed": OnError(r"view", "view() refuses a tensor that is not contiguous."),
    },
)


# --- sum_each -----------------------------------------------------------------------------

COUNT = 3  # tensors


def several(d):
    return ([d.numbers(d.case.size + k) for k in range(COUNT)],)


def sums(args):
    return [sum(ts[1:], ts[0]) for ts in zip(*(tensors for (tensors,) in args))]


SUM_EACH = Task(
    "sum_each",
    tuple(
        Case(n, size=size, late=late)
        for n, size, late in (
            (2, 2, None),
            (3, 1, None),
            (3, 3, 1),
            (4, 2, None),
            (5, 2, 0),
            (6, 1, None),
            (7, 2, None),
            (8, 3, None),
            (1, 2, None),
        )
    ),  # fmt: skip
    several,
    lambda args: [sums(args)] * len(args),
    lambda case, args: Budget(
        "a call for each tensor, all started before the first wait", calls=[COUNT] * case.world_size, together=True
    ),
    needs=lambda case, args: [sum(t.nbytes for t in args[0][0])] * case.world_size,
    parameters=("tensors",),
    suspects=(
        Suspect(lambda args: [tensors for (tensors,) in args], "these are the rank's own tensors, not their sums."),
    ),
    thoughts={
        "values": "a list of sums, in the order of the tensors.",
        "inputs": "all_reduce overwrites what it gets. Sum copies.",
        "together": "start all calls first, and keep what they return. Then wait for each.",
        "RankFailed": OnError(r"'wait'", "without async_op=True, a call ends before it returns, and returns None, not a Work."),
        "calls": "one all_reduce for each tensor.",
        "waits": "async_op=True returns a Work. Until its wait() returns, the sum may not be there.",
        "Stuck": "start the calls in the same order on every rank.",
    },
)


# --- gathered_gradient --------------------------------------------------------------------


def chunks_of_the_sum(args):
    return list(sum(dy for (dy,) in args).chunk(len(args)))


def other_chunks(case):
    return [(case.world_size - 1) * case.size * case.dtype.itemsize] * case.world_size


GATHERED_GRADIENT = Task(
    "gathered_gradient",
    tuple(
        Case(n, size=size, late=late)
        for n, size, late in (
            (2, 2, None),
            (2, 1, None),
            (3, 2, 1),
            (4, 3, None),
            (5, 1, None),
            (6, 2, None),
            (7, 1, 4),
            (8, 2, None),
            (1, 3, None),
        )
    ),  # fmt: skip
    lambda d: (d.numbers(d.world_size * d.case.size),),
    chunks_of_the_sum,
    lambda case, args: Budget(
        "(N-1)/N of dy, half of an all_reduce", sent=other_chunks(case), received=other_chunks(case)
    ),
    needs=lambda case, args: [case.size * case.dtype.itemsize * (case.world_size > 1)] * case.world_size,
    parameters=("dy",),
    suspects=(
        Suspect(
            lambda args: [dy.chunk(len(args))[rank] for rank, (dy,) in enumerate(args)],
            "this is what the rank's own loss says. Its tensor went into every other rank's loss, too.",
        ),
        Suspect(
            lambda args: [sum(dy for (dy,) in args)] * len(args),
            "this is the gradient of all of y. Which part of y was this rank's tensor?",
        ),
        Suspect(
            lambda args: [chunk / len(args) for chunk in chunks_of_the_sum(args)],
            "this is a mean. The losses are added, so their gradients are added, too.",
        ),
    ),
    thoughts={
        "values": "forward, the tensor was copied to all ranks. Backward, what is summed, and who needs which part?",
        "traffic": "the result is right, but a rank needs only its own part of the sum. Which collective leaves just that?",
        "inputs": "write the result into a new tensor, as long as this rank's part.",
    },
)


# --- collect_uneven -----------------------------------------------------------------------


def end_to_end(args):
    return torch.cat([mine for (mine,) in args])


def on_rank_0(value, args):
    return [value] + [None] * (len(args) - 1)


def padded(args):
    """All pieces end to end, each with zeros up to the longest."""
    longest = max(len(mine) for (mine,) in args)
    return torch.cat([torch.cat([mine, mine.new_zeros(longest - len(mine))]) for (mine,) in args])


COLLECT_UNEVEN = Task(
    "collect_uneven",
    tuple(
        Case(n, size=size, dtype=dtype, uneven=True, late=late)
        for n, size, dtype, late in (
            (2, 3, torch.float32, None),
            (3, 4, torch.float32, None),
            (3, 2, torch.int64, 1),
            (4, 40, torch.float32, None),
            (5, 2, torch.float64, None),
            (6, 7, torch.float32, 0),
            (7, 4, torch.int64, None),
            (8, 50, torch.float32, None),
            (1, 3, torch.float32, None),
        )
    ),
    lambda d: (d.numbers(d.case.length(d.rank)),),
    lambda args: on_rank_0(end_to_end(args), args),
    lambda case, args: Budget(
        "the sizes, and each element once",
        sent=[16 * case.world_size + (mine.nbytes if rank else 0) for rank, (mine,) in enumerate(args)],
    ),
    needs=lambda case, args: [sum(mine.nbytes for (mine,) in args[1:])] + [0] * (case.world_size - 1),
    parameters=("mine",),
    suspects=(
        Suspect(lambda args: [end_to_end(args)] * len(args), "right on rank 0. The others return None."),
        Suspect(
            lambda args: on_rank_0(padded(args), args),
            "some of these numbers were sent by no rank: they are padding. How many did each rank have?",
        ),
    ),
    thoughts={
        "values": "one tensor on rank 0, with every rank's elements in rank order.",
        "traffic": "a rank sends its own elements once, to rank 0: not to all ranks, and without padding.",
        "inputs": "leave `mine` as it is.",
        "Mismatch": "the pieces differ in size, and only rank 0 wants them. Which call takes a size for each pair of ranks, and what "
        "does each rank expect from each?",
        "Stuck": "does every rank make each of the calls, even one without elements?",
    },
)


# --- sum_all ------------------------------------------------------------------------------

CASES = (
    Case(2, size=2),
    Case(2, "negative numbers", 3, torch.int64),
    Case(3, size=3),
    Case(4, "fractions", 2),
    Case(4, "negative numbers", 4),
    Case(5, size=3, dtype=torch.float64, late=2),
    Case(8, "up to 10,000 and down to -10,000", 2),
    Case(6, size=2),
    Case(7, size=3, dtype=torch.int32),
    Case(8, size=5, dtype=torch.int32),
    Case(1, size=3),
)


def draw(d):
    """A matrix, a scalar, a column of a matrix, a transposed matrix, and nothing."""
    k = d.case.size
    tensors = [d.numbers(k, 2), d.numbers(), d.numbers(k, 3)[:, 1], d.numbers(3, k).t(), d.numbers(0)]
    return (tensors,)


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


def totals(args):
    return [sum(ts[1:], ts[0]).contiguous() for ts in zip(*(tensors for (tensors,) in args))]


def reference(args):
    return [totals(args)] * len(args)


def by_memory(args):
    """As if the transposed matrix had been sent as it lies in memory, and given back in its shape."""
    right = totals(args)
    return [[*right[:3], right[3].t().flatten().view(right[3].shape), right[4]]] * len(args)


def budget(case, args):
    n, nbytes = case.world_size, flat(args[0][0]).numel() * case.dtype.itemsize
    limit = [2 * (n - 1) / n * nbytes] * n
    return Budget("one call, with each number in it once", sent=limit, received=limit, calls=[1] * n)


def needs(case, args):
    return [flat(args[0][0]).nbytes] * case.world_size


SUM_ALL = Task(
    "sum_all",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("tensors",),
    suspects=(
        Suspect(
            lambda args: [[t.flatten() for t in totals(args)]] * len(args),
            "the numbers are right and the shapes are gone. Give each sum the shape of its tensor.",
        ),
        Suspect(
            lambda args: [flat(totals(args))] * len(args),
            "this is one long tensor. Return a list, with a sum for each tensor.",
        ),
        Suspect(by_memory, "the transposed matrix was taken as it lies in memory, not as it is read, row by row."),
        Suspect(
            lambda args: [tensors for (tensors,) in args], "these are the rank's own tensors. Where did the sums go?"
        ),
    ),
    thoughts={
        "values": "put all numbers into one contiguous tensor, sum that, and cut it into pieces of the right sizes and shapes.",
        "calls": "the number of calls must not grow with the number of tensors. What if all numbers are in one tensor?",
        "traffic": "each number needs to be in the call once.",
        "Mismatch": "a view with gaps isn't one block of memory. What does torch.cat make of views?",
        "RankFailed": OnError(
            r"view", "view() refuses a tensor that is not contiguous; reshape() and flatten() copy where they must."
        ),
    },
)

TASKS = (SHARE_OF_SUM, BROADCAST_ANY, SUMMED, SUM_EACH, GATHERED_GRADIENT, COLLECT_UNEVEN, SUM_ALL)
