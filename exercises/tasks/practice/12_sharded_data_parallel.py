"""The short tasks of chapter 12: shards of gradients and weights, and what hides their collectives.

mean_shard(gradient): a rank's shard of the mean gradient, padded.  sharded_linear(x, shard): a layer whose weight is gathered.
owned_means(gradients, owners): the means of whole matrices, for the rank that owns them.  first_shard(weights): a rank's shard
of rank 0's weights.
tokens_to_hide(flops, bandwidth): the tokens from which both passes hide what they send.
"""

from math import isclose
from typing import Any

import torch

from collectives.format import kind
from helpers.exercise import Budget, Case, Finding, Puzzle, Suspect, Task

# --- mean_shard ---------------------------------------------------------------------------

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
    return Budget("(N-1)/N of the padded gradient per rank, which is half an all_reduce", sent=limit, received=limit)


def needs(case, args):
    """The sum of the others' numbers of its shard; what is padding needs nothing."""
    n, shard = case.world_size, each(case.size, case.world_size)
    return [max(0, min(shard, case.size - rank * shard)) * case.dtype.itemsize for rank in range(n)]


MEAN_SHARD = Task(
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
        "Mismatch": "all shards have one length, even those that are all zeros. Pad the gradient first.",
    },
)


EVEN = tuple(Case(n, size=2, late=n - 1 if n == 4 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1)) + (
    Case(3, "fractions", 1, torch.float64),
    Case(2, "negative numbers", 3),
)

# --- sharded_linear -----------------------------------------------------------------------

ROWS, INPUTS = 2, 2


def products(args):
    weight = torch.cat([shard for _, shard in args]).view(-1, INPUTS)
    return [x @ weight.T for x, _ in args]


SHARDED_LINEAR = Task(
    "sharded_linear",
    EVEN,
    lambda d: (d.numbers(ROWS, INPUTS), d.numbers(INPUTS * d.case.size)),
    products,
    lambda case, args: Budget(
        "one all_gather of the weight",
        sent=[(case.world_size - 1) * INPUTS * case.size * case.dtype.itemsize] * case.world_size,
        received=[(case.world_size - 1) * INPUTS * case.size * case.dtype.itemsize] * case.world_size,
    ),
    needs=lambda case, args: [(case.world_size - 1) * INPUTS * case.size * case.dtype.itemsize] * case.world_size,
    parameters=("x", "shard"),
    suspects=(
        Suspect(
            lambda args: [x @ shard.view(-1, INPUTS).T for x, shard in args],
            "this is a product with the rank's own shard alone. It has 1/N of the outputs.",
        ),
        Suspect(
            lambda args: [products([(x, shard) for _, shard in args])[0] for x, _ in [args[0]] * len(args)],
            "this is rank 0's product. Each rank has its own x, and needs its own result.",
        ),
    ),
    thoughts={
        "values": "the shards in rank order, end to end, are the whole weight, flattened. How many inputs are in a row?",
        "traffic": "the result is right, but more travels than the weight. x stays where it is.",
        "RankFailed": "N shards end to end are the weight. It has as many inputs as x has columns.",
    },
)

# --- owned_means --------------------------------------------------------------------------


def gradients_and_owners(d):
    """Five gradients of different shapes, and the rank that owns each: a rank may own none."""
    size = d.case.size
    shapes = (size, 2), (3,), (2 * size, 3), (1, size), (2, 2)
    return [d.numbers(*shape) for shape in shapes], [d.integer(0, d.world_size, common=True) for _ in shapes]


def owners_of(args):
    return args[0][1]


def over_all(args, divisor):
    """Each gradient's sum over the ranks, divided."""
    lists = [gradients for gradients, _ in args]
    return [(sum(g.double() for g in same) / divisor).to(same[0].dtype) for same in zip(*lists)]


def of_owners(args, tensors):
    """For each rank, the tensors that it owns."""
    return [[t for t, owner in zip(tensors, owners_of(args)) if owner == rank] for rank in range(len(args))]


def bytes_owned(args):
    return [sum(t.nbytes for t in row) for row in of_owners(args, args[0][0])]


def one_reduce_scatter(case, args):
    n = case.world_size
    limit = [(n - 1) * max(bytes_owned(args))] * n
    return Budget(
        "one collective, and N-1 times the bytes of the rank that owns most", sent=limit, received=limit, calls=[1] * n
    )


OWNED_MEANS = Task(
    "owned_means",
    EVEN,
    gradients_and_owners,
    lambda args: of_owners(args, over_all(args, len(args))),
    one_reduce_scatter,
    needs=lambda case, args: bytes_owned(args) if case.world_size > 1 else [0],
    parameters=("gradients", "owners"),
    suspects=(
        Suspect(
            lambda args: of_owners(args, over_all(args, 1)),
            "these are the sums over the ranks. How many ranks are there?",
        ),
        Suspect(
            lambda args: [of_owners(args, gradients)[rank] for rank, (gradients, _) in enumerate(args)],
            "these are the rank's own gradients. The other ranks' are missing.",
        ),
        Suspect(
            lambda args: [over_all(args, len(args))] * len(args),
            "these are the means of all gradients. Which of them does this rank own?",
        ),
    ),
    thoughts={
        "values": "put the gradients of each owner end to end, fill up with zeros to one length, and stack these rows in rank order. "
        "Which collective adds, and leaves each rank its row?",
        "calls": "the result is right, but there is more than one call. How can all gradients travel in one tensor?",
        "traffic": "the result is right, but ranks receive means of gradients that they don't own.",
        "RankFailed": "reduce_scatter_single wants an input N times as long as its output, and torch.cat at least one tensor: a rank "
        "may own nothing.",
        "Mismatch": "all ranks pass rows of one length, even a rank that owns less, or nothing.",
    },
)

# --- first_shard --------------------------------------------------------------------------


def sent_by_rank_0(case):
    n, shard = case.world_size, case.size * case.dtype.itemsize
    return Budget(
        "each rank its own shard, from rank 0",
        sent=[(n - 1) * shard] + [0] * (n - 1),
        received=[0] + [shard] * (n - 1),
    )


FIRST_SHARD = Task(
    "first_shard",
    EVEN,
    lambda d: (d.numbers(d.world_size * d.case.size),),
    lambda args: list(args[0][0].chunk(len(args))),
    lambda case, args: sent_by_rank_0(case),
    needs=lambda case, args: [0] + [case.size * case.dtype.itemsize] * (case.world_size - 1),
    parameters=("weights",),
    suspects=(
        Suspect(
            lambda args: [weights.chunk(len(args))[rank] for rank, (weights,) in enumerate(args)],
            "this is a shard of the rank's own weights. Together they are a patchwork of N models.",
        ),
        Suspect(
            lambda args: [args[0][0]] * len(args), "these are all of rank 0's weights. Which shard is this rank's?"
        ),
    ),
    thoughts={
        "values": "rank r returns shard r of rank 0's weights. Which collective deals out a list?",
        "traffic": "the result is right, but ranks get shards that they throw away. Which collective gives each rank only its own?",
        "RankFailed": "scatter takes a list of tensors on the source, and None on all others.",
        "Mismatch": "all shards have one length.",
    },
)

# --- tokens_to_hide -----------------------------------------------------------------------

THRESHOLD = "tokens_to_hide"
MACHINES = {
    "8 ranks, fast links": (495e12, 225e9),
    "8 ranks, slow links": (495e12, 25e9),
    "8 ranks, slow GPUs and links": (60e12, 25e9),
}


def threshold(flops: float, bandwidth: float) -> float:
    """Backward's: 4PT / flops seconds of computation for a gather and a float32 sum, 6P bytes."""
    return 6 / 4 * flops / bandwidth


def judged(case: Case, arguments: tuple, result: Any, budget: bool) -> Finding | None:
    expected = threshold(*arguments)
    try:
        got = float(result)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        words = f"{THRESHOLD} must return a number, not {kind(result)}."
        return Finding("values", words=words, thought="it returns tokens per GPU and step.")
    if isclose(got, expected, rel_tol=1e-3, abs_tol=1):  # rounded to whole tokens is fine
        return None
    words = f"{THRESHOLD} is wrong with {case.kind}.\n  expected {expected:,.0f} tokens\n  got      {got:,.0f} tokens"
    known = (
        (
            expected * 8 / 9,
            "that is both passes together. But backward's collectives can't hide behind forward's computation. Set up a "
            "formula for each pass.",
        ),
        (expected * 2 / 3, "that hides forward's gather. Backward sends more per operation: which pass decides?"),
        (expected / 3, "that has backward's gather only. Its reduce_scatter sends 4 more bytes per parameter."),
        (expected * 4, "that has one operation per parameter and token. Backward takes 4."),
        (expected * 2, "that has forward's operations and backward's bytes. Backward takes twice as many operations."),
        (1 / expected, "that is one over it: which of the two grows with the tokens?"),
    )
    thought = next((thought for mistaken, thought in known if isclose(got, mistaken, rel_tol=1e-3)), "")
    return Finding(
        "values",
        words=words,
        thought=thought
        or "for each pass, set both times equal and solve for the tokens. The larger number hides both.",
    )


def praised(case: Case, arguments: tuple, result: Any) -> str:
    return f"With {case.kind}: {float(result):,.0f} tokens per GPU."


TOKENS_TO_HIDE = Puzzle(
    THRESHOLD,
    tuple(Case(1, words) for words in MACHINES),
    lambda d: MACHINES[d.case.kind],
    judged,
    praised,
)

TASKS = (MEAN_SHARD, SHARDED_LINEAR, OWNED_MEANS, FIRST_SHARD, TOKENS_TO_HIDE)
