"""The short tasks of chapter 13: layers, an embedding and a norm whose parts are on several ranks.

input_gradient(dh, w): backward through a column-parallel layer.  look_up(tokens, table): an embedding cut by rows.
cut_fused(qkv): a rank's rows of q, k and v in one matrix.  scatter_positions(z): the sum of partial sums, cut by positions.
row_parallel(x, w, b, dy): a linear layer with a bias, cut by rows, and the bias's gradient.  clip_factor(sharded, replicated, limit): for one norm.
"""

from math import prod

import torch

from helpers.exercise import Budget, Case, Suspect, Task

INNER, COLUMNS = 2, 3  # of a rank's part of a matrix
CASES = (
    Case(2, size=1),
    Case(2, "negative numbers", 2),
    Case(3, size=2),
    Case(3, size=1, late=2),
    Case(4, size=3),
    Case(5, size=1),
    Case(6, size=2),
    Case(7, size=1),
    Case(8, size=2, late=0),
    Case(1, size=2),
)


def all_reduce(numbers, case, words):
    """The budget of one all_reduce of so many numbers."""
    n = case.world_size
    limit = [2 * (n - 1) / n * numbers * case.dtype.itemsize] * n
    return Budget(words, sent=limit, received=limit)


# --- input_gradient -----------------------------------------------------------------------


def products(args):
    return [dh @ w.T for dh, w in args]


INPUT_GRADIENT = Task(
    "input_gradient",
    CASES,
    lambda d: (d.numbers(d.case.size, INNER), d.numbers(COLUMNS, INNER)),
    lambda args: [sum(products(args))] * len(args),
    lambda case, args: all_reduce(case.size * COLUMNS, case, "one all_reduce of the input's gradient"),
    needs=lambda case, args: [case.size * COLUMNS * case.dtype.itemsize] * case.world_size,
    parameters=("dh", "w"),
    suspects=(
        Suspect(products, "this is the rank's own partial sum of dx. x went into every rank's columns of w."),
        Suspect(
            lambda args: [torch.cat(products(args), 1)] * len(args),
            "these are all ranks' partial sums side by side. Each is as large as x: how do they become one?",
        ),
        Suspect(
            lambda args: [sum(products(args)) / len(args)] * len(args),
            "this is the mean of the partial sums. A sum is made of its parts by adding.",
        ),
    ),
    thoughts={
        "values": "dx = dh0 w0.T + dh1 w1.T + ..., and a rank knows one of these products. Which collective adds them up?",
        "traffic": "the result is right, but more travels than one all_reduce of dx. dh and w stay where they are.",
        "RankFailed": "dh has a row for each token, w a row for each column of x. Which of the two must be transposed?",
    },
)


# --- look_up ------------------------------------------------------------------------------

TOKENS, VECTOR = 4, 2  # tokens looked up, numbers in a row


def tokens_and_table(d):
    tokens = torch.randint(d.case.size * d.world_size, (TOKENS,), generator=d.common)
    return tokens, d.numbers(d.case.size, VECTOR)


def partial_rows(args, masked=True):
    """What each rank has of the tokens' rows: zeros for those of others, or unmasked, its nearest row."""
    parts = []
    for rank, (tokens, table) in enumerate(args):
        here = tokens - rank * len(table)
        mine = (here >= 0) & (here < len(table))
        rows = table[here.clamp(0, len(table) - 1)]
        parts.append(rows * mine[:, None] if masked else rows)
    return parts


def one_row_too_many(args):
    rows = sum(partial_rows(args))
    for rank, (tokens, table) in enumerate(args):
        rows = rows + table[-1] * (tokens - rank * len(table) == len(table))[:, None]
    return [rows] * len(args)


def rows_of_others(case, args):
    """Bytes of the rows that a rank lacks, each once."""
    size = case.size
    absent = [{t for t in tokens.tolist() if t // size != rank} for rank, (tokens, _) in enumerate(args)]
    return [len(tokens) * VECTOR * case.dtype.itemsize for tokens in absent]


LOOK_UP = Task(
    "look_up",
    CASES,
    tokens_and_table,
    lambda args: [sum(partial_rows(args))] * len(args),
    lambda case, args: all_reduce(TOKENS * VECTOR, case, "one all_reduce of the result"),
    needs=rows_of_others,
    parameters=("tokens", "table"),
    suspects=(
        Suspect(partial_rows, "these are the rank's own rows, with zeros for the others: a partial sum of the result."),
        Suspect(
            lambda args: [sum(partial_rows(args, masked=False))] * len(args),
            "rows of tokens that a rank does not have are in the sum too. What should be there in their place?",
        ),
        Suspect(
            lambda args: [sum(table[tokens % len(table)] for tokens, table in args)] * len(args),
            "each rank looked up a row of its own for every token. Which tokens' rows does a rank have?",
        ),
        Suspect(
            one_row_too_many,
            "a rank added its last row for a token that isn't its own. Its rows have the numbers 0 to len(table) - 1.",
        ),
    ),
    thoughts={
        "values": "rank r's table begins with row r * len(table) of the whole one. Zeros for all others, then which collective?",
        "traffic": "the result is right, but more travels than one all_reduce of the rows. The table stays where it is.",
        "RankFailed": "a rank has len(table) rows, and token t is row t - rank * len(table) of them. Is that within 0 and "
        "len(table) - 1 for each token?",
        "Mismatch": "every rank looks up all the tokens, even those whose rows it doesn't have, so all results are of one shape.",
    },
)


# --- cut_fused ----------------------------------------------------------------------------


def parts_of_each(args):
    return [torch.cat([part.chunk(len(args))[rank] for part in qkv.chunk(3)]) for rank, (qkv,) in enumerate(args)]


def chunk_of_the_whole(args):
    return [qkv.chunk(len(args))[rank] for rank, (qkv,) in enumerate(args)]


CUT_FUSED = Task(
    "cut_fused",
    CASES,
    lambda d: (d.numbers(3 * d.world_size * d.case.size, INNER, common=True),),
    parts_of_each,
    lambda case, args: Budget("nothing", sent=[0] * case.world_size, received=[0] * case.world_size),
    needs=lambda case, args: [0] * case.world_size,
    parameters=("qkv",),
    suspects=(
        Suspect(chunk_of_the_whole, "this is a chunk of the whole. The first ranks get rows of q and none of k or v."),
        Suspect(
            lambda args: [qkv[rank :: len(args)] for rank, (qkv,) in enumerate(args)],
            "these are every N-th row. A head's rows stay together: which block of q's rows is this rank's?",
        ),
    ),
    thoughts={
        "values": "cut q, k and v one by one, take this rank's block of each, and put the three on top of each other.",
        "traffic": "the result is right, but every rank has the whole matrix already. Nothing needs to travel.",
    },
)


# --- scatter_positions --------------------------------------------------------------------

ALONE = "no rows"  # [positions, width]


def rows_of(case):
    return () if case.kind == ALONE else (2,)


def moved(case):
    """Bytes of a rank's positions."""
    return prod(rows_of(case)) * case.size * COLUMNS * case.dtype.itemsize


def summed(args):
    return sum(z.double() for (z,) in args).to(args[0][0].dtype)


def positions(whole, n):
    return [part.contiguous() for part in whole.chunk(n, -2)]


SCATTER_POSITIONS = Task(
    "scatter_positions",
    (*CASES, Case(3, ALONE, 2), Case(4, ALONE, 1)),
    lambda d: (d.numbers(*rows_of(d.case), d.world_size * d.case.size, COLUMNS),),
    lambda args: positions(summed(args), len(args)),
    lambda case, args: Budget(
        "half of what an all_reduce of z sends",
        sent=[(case.world_size - 1) * moved(case)] * case.world_size,
        received=[(case.world_size - 1) * moved(case)] * case.world_size,
    ),
    needs=lambda case, args: [moved(case)] * case.world_size,
    parameters=("z",),
    suspects=(
        Suspect(
            lambda args: list(summed(args).flatten().view(len(args), *args[0][0].shape[:-2], -1, COLUMNS)),
            "these are equal blocks of z's memory. In memory, all positions of row 0 come before row 1. Put the positions "
            "of one rank next to each other first.",
        ),
        Suspect(
            lambda args: [positions(z, len(args))[rank] for rank, (z,) in enumerate(args)],
            "these are the right positions of the rank's own z. The other ranks' partial sums are missing.",
        ),
        Suspect(lambda args: [summed(args)] * len(args), "this is the whole sum. Which positions are this rank's?"),
    ),
    thoughts={
        "values": "which collective adds up and leaves each rank one part? And which dimension of z counts positions?",
        "traffic": "the result is right, but an all_reduce gives each rank positions that it throws away.",
        "Mismatch": "all ranks make the same call, with parts of one size.",
        "RankFailed": "reduce_scatter_single cuts dimension 0 of its input into N equal parts, and positions are the last dimension but one. How can "
        "each rank's positions come to lie next to each other?",
    },
)


# --- row_parallel -------------------------------------------------------------------------


def layer(args, biases=1.0, summed=1.0):
    """Each rank's (output, gradient of b), with so many times the bias, and so many times its gradient."""
    product = sum(x @ w for x, w, *_ in args)
    return [(product + biases * b, summed * dy.sum(0)) for _, _, b, dy in args]


def on_rank_0(args):
    return [(y, db * (rank == 0)) for rank, (y, db) in enumerate(layer(args))]


ROW_PARALLEL = Task(
    "row_parallel",
    CASES,
    lambda d: (
        d.numbers(d.case.size, INNER),
        d.numbers(INNER, COLUMNS),
        d.numbers(COLUMNS, common=True),
        d.numbers(d.case.size, COLUMNS, common=True),
    ),
    layer,
    lambda case, args: all_reduce(case.size * COLUMNS, case, "one all_reduce of the layer's output"),
    needs=lambda case, args: [case.size * COLUMNS * case.dtype.itemsize] * case.world_size,
    parameters=("x", "w", "b", "dy"),
    suspects=(
        Suspect(
            lambda args: layer(args, len(args)),
            "the bias is in it N times. Every rank has the whole b: what must be summed, and what must not?",
        ),
        Suspect(lambda args: layer(args, 0), "the bias is missing."),
        Suspect(
            lambda args: [(x @ w + b, dy.sum(0)) for x, w, b, dy in args],
            "each rank has only its own partial sum of x @ w. What turns P into R?",
        ),
        Suspect(
            lambda args: layer(args, summed=1 / len(args)),
            "y is right, but b's gradient is 1/N of one process's. That's what b / N inside the sum does.",
        ),
        Suspect(
            on_rank_0,
            "y is right, but only rank 0 has b's gradient. Each rank updates its own b, and they must stay equal.",
        ),
        Suspect(
            lambda args: layer(args, summed=len(args)),
            "b's gradient is N times too large. dy is R, and each rank uses it in the same way: is its sum P?",
        ),
    ),
    thoughts={
        "values": "x @ w is P, and b and dy are R. When does b go in, and does its gradient need a collective?",
        "traffic": "the result is right, but more travels than one all_reduce of the output. w and x stay where they are.",
    },
)


# --- clip_factor --------------------------------------------------------------------------

LIMIT = {"within the limit": 1000.0}  # of any other kind of case: 2
CLIPPED = tuple(Case(n, size=3, late=n - 1 if n == 3 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1))


def factors(args, replicas=1, all_shards=True, at_most=1.0):
    """Each rank's factor, from a norm that has the replicated gradients so many times."""
    total, found = sum(sharded.square().sum() for sharded, _, _ in args), []
    for sharded, replicated, limit in args:
        squares = (total if all_shards else sharded.square().sum()) + replicas * replicated.square().sum()
        found.append(min(at_most, float(limit / squares.sqrt())))
    return found


CLIP_FACTOR = Task(
    "clip_factor",
    (*CLIPPED, Case(3, "within the limit"), Case(4, "within the limit", 5)),
    lambda d: (d.numbers(d.case.size), d.numbers(2, common=True) + 10, LIMIT.get(d.case.kind, 2.0)),
    factors,
    lambda case, args: Budget(
        "one number per all_reduce, and one all_reduce",
        sent=[2 * (case.world_size - 1) / case.world_size * 8] * case.world_size,
        received=[2 * (case.world_size - 1) / case.world_size * 8] * case.world_size,
    ),
    scale=lambda args: 1.0,
    needs=lambda case, args: [4] * case.world_size,
    parameters=("sharded", "replicated", "limit"),
    suspects=(
        Suspect(
            lambda args: factors(args, replicas=len(args)),
            "the replicated gradients are in this norm N times. Every rank has them: what must be summed, and what must not?",
        ),
        Suspect(
            lambda args: factors(args, all_shards=False),
            "this norm has the rank's own shards only, and each rank gets a different factor. Whose squares are missing?",
        ),
        Suspect(lambda args: factors(args, replicas=0), "the replicated gradients are missing from this norm."),
        Suspect(
            lambda args: factors(args, at_most=torch.inf),
            "a factor above 1 enlarges a gradient that is within the limit already.",
            where_wrong=True,
        ),
    ),
    thoughts={
        "values": "the norm's square is the sum of the squares of all shards, plus the replicated ones once. And a factor is "
        "at most 1.",
        "traffic": "the result is right, but a rank needs to send one number only: the sum of its shards' squares.",
    },
)

TASKS = (INPUT_GRADIENT, LOOK_UP, CUT_FUSED, SCATTER_POSITIONS, ROW_PARALLEL, CLIP_FACTOR)
