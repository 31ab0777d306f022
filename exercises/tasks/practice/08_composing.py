"""The short tasks of chapter 08: summarize, merge, finish.

weighted_mean(values, weights): over all ranks.  stable_variance(x): in two calls.  best_rank(loss): whose is the smallest.
top_places(scores, k): where the best are.  majority(content): whether more than half of the ranks say yes.
clip_shard(gradient, max_norm): a shard of a gradient, clipped by the norm of the whole.
"""

import math

import torch

from helpers.exercise import Budget, Case, Suspect, Task

# --- weighted_mean ------------------------------------------------------------------------

UNEVEN = (
    Case(2, size=3, uneven=True),
    Case(2, "negative numbers", 4),
    Case(3, size=4, uneven=True, late=1),
    Case(4, "fractions", 3, torch.float64),
    Case(5, size=2, uneven=True),
    Case(6, size=2),
    Case(7, size=4, uneven=True),
    Case(8, "fractions", 3, torch.float64, late=6),
    Case(1, size=3),
)


def weighted(d):
    """The first rank has the largest weights, and all are positive."""
    length = d.case.length(d.rank)
    return d.numbers(length), d.integers(1, 5, length) + 10 * (d.rank == 0)


def mean_by(args, weight=lambda weights: weights):
    """The mean of all values with these weights."""
    values, weights = (torch.cat([arguments[k].double() for arguments in args]) for k in (0, 1))
    return (weight(weights) * values).sum() / weight(weights).sum()


def of_each(args):
    """Each rank's weighted mean of its own values; NaN without any."""
    return [(weights.double() * values.double()).sum() / weights.double().sum() for values, weights in args]


def on_all(value, args):
    return [value.to(args[0][0].dtype)] * len(args)


def calls_of(count, number_bytes, words):
    """A budget of so many calls, each of a buffer of so many bytes at most."""
    return lambda case, args: Budget(words, calls=[count] * case.world_size, largest=[number_bytes] * case.world_size)


WEIGHTED_MEAN = Task(
    "weighted_mean",
    UNEVEN,
    weighted,
    lambda args: on_all(mean_by(args), args),
    calls_of(1, 16, "one call, with two numbers"),
    needs=lambda case, args: [4] * case.world_size,
    parameters=("values", "weights"),
    suspects=(
        Suspect(
            lambda args: on_all(torch.stack(of_each(args)).mean(), args),
            "this is the mean of the ranks' means. A rank of small weights counts as much there as one of large ones.",
        ),
        Suspect(
            lambda args: on_all(sum((v * w).sum() for v, w in args) / sum(len(v) for v, _ in args), args),
            "this divides by the number of values. By what does a weighted mean divide?",
        ),
        Suspect(
            lambda args: on_all(sum(v.sum() for v, _ in args) / sum(w.sum() for _, w in args), args),
            "these values are added up without their weights.",
        ),
        Suspect(
            lambda args: on_all(mean_by(args, torch.ones_like), args),
            "this is the mean of the values, without their weights.",
        ),
        Suspect(
            lambda args: [mean.to(values.dtype) for mean, (values, _) in zip(of_each(args), args)],
            "this is the rank's own mean. What do the others have to know of it?",
        ),
    ),
    thoughts={
        "values": "which two sums can be merged, and which division comes last?",
        "calls": "two numbers fit into one tensor, and one tensor into one call.",
        "largest": "two numbers say all that the others have to know of a rank.",
        "Stuck": "does every rank make the call, even one without values?",
        "Mismatch": "what has the same shape and dtype on every rank?",
    },
)


# --- stable_variance ----------------------------------------------------------------------


def samples(args):
    return torch.cat([x.double() for (x,) in args])


def by_squares(args):
    """In float32, as one would compute it: the mean of the squares minus the square of the mean."""
    x = torch.cat([x for (x,) in args])
    return (x * x).sum() / len(x) - (x.sum() / len(x)) ** 2


STABLE_VARIANCE = Task(
    "stable_variance",
    (
        Case(2, "negative numbers", 3),
        Case(2, "around -10,000", 4, uneven=True),
        Case(3, "around -10,000", 5),
        Case(4, size=3, uneven=True, late=2),
        Case(5, "around -10,000", 2, uneven=True),
        Case(6, size=4),
        Case(7, "negative numbers", 4, uneven=True),
        Case(8, "around -10,000", 3),
        Case(1, "around -10,000", 4),
    ),
    lambda d: (d.numbers(d.case.length(d.rank)),),
    lambda args: on_all(samples(args).var(unbiased=False), args),
    calls_of(2, 16, "two calls, of two numbers each"),
    scale=lambda args: 1000.0,
    needs=lambda case, args: [8] * case.world_size,
    suspects=(
        Suspect(
            lambda args: on_all(by_squares(args), args),
            "the squares are larger than the variance by far, and float32 keeps 24 bits. Subtract the mean before you square.",
        ),
        Suspect(
            lambda args: on_all(
                sum(((x.double() - x.double().mean()) ** 2).sum() for (x,) in args if len(x)) / len(samples(args)), args
            ),
            "these are distances from each rank's own mean. Which mean is the variance about?",
        ),
        Suspect(
            lambda args: on_all(samples(args).var(unbiased=False).sqrt(), args),
            "this is the standard deviation. The variance is its square.",
        ),
        Suspect(
            lambda args: on_all(samples(args).var(), args),
            "this divides by the count minus 1. Here the variance is the mean of the squared distances.",
        ),
    ),
    thoughts={
        "values": "first the mean of all samples, then the mean of the squared distances from it. Near 10,000, a square needs more "
        "bits than float32 has: subtract the mean before you square.",
        "calls": "one call for the mean, one for the squared distances.",
        "largest": "a sum and a count are two numbers.",
        "Stuck": "does every rank make both calls, even one without samples?",
        "Mismatch": "what has the same shape and dtype on every rank?",
    },
)


# --- best_rank ----------------------------------------------------------------------------

LOSSES = {
    "all differ": lambda rank, n: float((rank + 1) % n),  # the last rank has the smallest
    "ranks from 1 onward tie": lambda rank, n: float(rank == 0),
    "all tie": lambda rank, n: 2.0,
    "rank 0 has a NaN": lambda rank, n: math.nan if rank == 0 else float(rank),
    "the last rank has a NaN": lambda rank, n: math.nan if rank == n - 1 else float(rank),
}


def owner(losses, ties=min):
    """The rank with the smallest loss, NaN left out, and if several have it, the one that `ties` takes."""
    known = [loss for loss in losses if not math.isnan(loss)]
    return ties((rank for rank, loss in enumerate(losses) if loss == min(known)), default=-1) if known else -1


def losses_of(args):
    return [loss.item() for (loss,) in args]


BEST_RANK = Task(
    "best_rank",
    tuple(
        Case(n, kind, late=late)
        for n, kind, late in (
            (2, "all differ", None),
            (2, "all tie", None),
            (3, "all tie", None),
            (2, "rank 0 has a NaN", None),
            (3, "ranks from 1 onward tie", None),
            (3, "the last rank has a NaN", 0),
            (4, "all differ", None),
            (4, "the last rank has a NaN", None),
            (5, "ranks from 1 onward tie", 4),
            (6, "rank 0 has a NaN", None),
            (7, "all differ", None),
            (8, "ranks from 1 onward tie", None),
            (8, "the last rank has a NaN", None),
            (1, "all tie", None),
            (1, "rank 0 has a NaN", None),
        )
    ),
    lambda d: (torch.tensor(LOSSES[d.case.kind](d.rank, d.world_size)),),
    lambda args: [-1 if any(map(math.isnan, losses_of(args))) else owner(losses_of(args))] * len(args),
    calls_of(3, 8, "three calls, with one number each"),
    needs=lambda case, args: [1] * case.world_size,
    parameters=("loss",),
    suspects=(
        Suspect(
            lambda args: [owner(losses_of(args))] * len(args),
            "one of the losses is a NaN. How do all ranks learn of it?",
        ),
        Suspect(
            lambda args: [owner(losses_of(args), max)] * len(args),
            "of the ranks that tie, this is the largest. Which reduce operation finds the smallest?",
        ),
        Suspect(
            lambda args: [sum(k for k, loss in enumerate(losses_of(args)) if loss == min(losses_of(args)))] * len(args),
            "these are the numbers of all ranks that tie, added up. Only the smallest of them counts.",
        ),
        Suspect(
            lambda args: [owner([-loss for loss in losses_of(args)])] * len(args),
            "this rank has the largest loss.",
        ),
    ),
    thoughts={
        "values": "the smallest loss by one call, the smallest rank that has it by another, and a flag for NaN.",
        "inputs": "all_reduce writes into `loss`. Reduce a copy.",
        "calls": "a flag, the smallest loss, and a rank: three calls.",
        "largest": "each call needs a single number.",
        "Stuck": "do all ranks make the same calls, whatever their own loss is? Only a flag that all share may end the function.",
        "Mismatch": "what has the same dtype on every rank? A loss is float32, a rank int64.",
    },
)


# --- top_places ---------------------------------------------------------------------------

# The size is k.
PLACES = tuple(
    Case(n, size=size, late=late)
    for n, size, late in ((2, 2, None), (3, 3, None), (4, 1, None), (4, 3, 0), (5, 2, None), (6, 1, None), (7, 3, None), (8, 2, 5), (1, 2, None))
)  # fmt: skip


def dealt(d):
    """Scores without a tie: a shuffled row of integers, of which each rank has a part; rank 0 has the best two."""
    each = d.case.size + 3
    order = torch.randperm(d.world_size * each, generator=d.common)
    places = (order >= d.world_size * each - 2).nonzero().flatten()
    for target, place in enumerate(places.tolist()):
        order[[target, place]] = order[[place, target]]
    return order[d.rank * each : (d.rank + 1) * each].float(), d.case.size


def best_places(args, of=lambda scores: scores):
    scores, k = torch.cat([of(scores) for scores, _ in args]), args[0][1]
    return scores.topk(k).indices


def offers(case, args):
    return [(case.world_size - 1) * case.size * 12] * case.world_size


TOP_PLACES = Task(
    "top_places",
    PLACES,
    dealt,
    lambda args: [best_places(args)] * len(args),
    lambda case, args: Budget("k scores and k places of each of the others", received=offers(case, args)),
    needs=lambda case, args: [4 * case.size * (case.world_size > 1)] * case.world_size,
    parameters=("scores", "k"),
    suspects=(
        Suspect(
            lambda args: [best_places(args) % len(args[0][0])] * len(args),
            "these are places within a rank's own scores. On which rank is each of them?",
        ),
        Suspect(
            lambda args: [
                torch.cat([scores.topk(k).values for scores, k in args]).topk(args[0][1]).indices for _ in args
            ],
            "these are places among the offers. Which place of all scores does each offer come from?",
        ),
        Suspect(
            lambda args: [best_places(args) % len(args[0][0]) + best_places(args) // len(args[0][0]) * args[0][1]] * len(args),
            "a rank's places begin at its number times the number of *scores* on a rank, not times k.",
        ),
        Suspect(
            lambda args: [torch.cat([scores for scores, _ in args]).topk(args[0][1]).values for _ in args],
            "these are the best scores. Where are they?",
        ),
        Suspect(
            lambda args: [scores.topk(k).indices + rank * len(scores) for rank, (scores, k) in enumerate(args)],
            "these are the rank's own best. The best of all may be elsewhere.",
        ),
        Suspect(
            lambda args: [best_places(args).sort().values] * len(args),
            "the right places, but not in the order of the scores, best first.",
        ),
    ),
    thoughts={
        "values": "gather each offer's place next to its score, and choose both by the same indices.",
        "received": "k scores and k places per rank are enough, however many scores there are.",
        "Mismatch": "scores are float32 and places are int64. A call takes one dtype.",
        "RankFailed": "topk returns two tensors, values and indices.",
    },
)


# --- majority -----------------------------------------------------------------------------

OPINIONS = {
    "all say yes": lambda rank, n: True,
    "none says yes": lambda rank, n: False,
    "only one says yes": lambda rank, n: rank == (0 if n == 3 else n - 1),
    "half of them say yes": lambda rank, n: rank < n // 2,
    "one more than half says yes": lambda rank, n: rank >= n - n // 2 - 1,
    "all but rank 0 say yes": lambda rank, n: rank > 0,
}


def yes(args):
    return sum(content for (content,) in args)


MAJORITY = Task(
    "majority",
    (
        Case(2, "none says yes"),
        Case(2, "all say yes"),
        Case(3, "only one says yes"),
        Case(3, "all but rank 0 say yes"),
        Case(4, "half of them say yes"),
        Case(4, "one more than half says yes", late=3),
        Case(5, "only one says yes"),
        Case(6, "half of them say yes"),
        Case(7, "one more than half says yes"),
        Case(8, "half of them say yes"),
        Case(8, "one more than half says yes", late=0),
        Case(1, "none says yes"),
    ),
    lambda d: (OPINIONS[d.case.kind](d.rank, d.world_size),),
    lambda args: [2 * yes(args) > len(args)] * len(args),
    calls_of(1, 8, "one call, with one number"),
    needs=lambda case, args: [1] * case.world_size,
    parameters=("content",),
    suspects=(
        Suspect(
            lambda args: [2 * yes(args) >= len(args)] * len(args),
            "this counts a draw as a majority. More than half is asked for.",
        ),
        Suspect(
            lambda args: [args[0][0]] * len(args), "this is rank 0's opinion, on every rank. How do the others' count?"
        ),
        Suspect(
            lambda args: [yes(args) > 0] * len(args),
            "this is True as soon as one rank says so. How many have to say it?",
        ),
        Suspect(
            lambda args: [yes(args) == len(args)] * len(args),
            "this is True only if all ranks say so. Half and one are enough.",
        ),
        Suspect(
            lambda args: [content for (content,) in args], "this is the rank's own opinion, so the ranks disagree."
        ),
    ),
    thoughts={
        "values": "sum the opinions, as 0 and 1, and compare with half of the ranks. Return a bool.",
        "calls": "one sum says how many agree.",
        "largest": "an opinion is one number.",
        "Stuck": "does every rank make the call, even one that says no?",
        "RankFailed": "an all_reduce sums integers or floats. int(content) is one.",
    },
)


# --- clip_shard ---------------------------------------------------------------------------

CASES = (
    Case(2, "too long", 2),
    Case(2, "short enough", 3),
    Case(3, "too long", 4, uneven=True),
    Case(3, "each shard is short enough", 3),
    Case(4, "too long", 5),
    Case(4, "short enough", 2, torch.float64),
    Case(5, "each shard is short enough", 4, torch.float64),
    Case(8, "too long", 4, uneven=True, late=5),
    Case(6, "too long", 3),
    Case(7, "too long", 2, uneven=True),
    Case(8, "all zeros", 2),
    Case(1, "too long", 3),
)


def draw(d):
    length = d.case.length(d.rank)
    shard = torch.zeros(length, dtype=d.case.dtype) if d.case.kind == "all zeros" else d.numbers(length)
    if d.case.kind == "each shard is short enough":
        shard = torch.full((length,), 3.0 / length**0.5, dtype=d.case.dtype)  # its norm is 3
    return shard, {"short enough": 1000.0, "each shard is short enough": 4.0}.get(d.case.kind, 2.0)


def squares(args):
    return [shard.double().square().sum() for shard, _ in args]


def scaled(args, norms, factor=lambda longest, norm: min(1.0, longest / norm) if norm else 1.0):
    """Each rank's shard times a factor.  norms: what each rank takes for the norm."""
    return [(shard.double() * factor(longest, float(norm))).to(shard) for (shard, longest), norm in zip(args, norms)]


def everywhere(value, args):
    return [value] * len(args)


def reference(args):
    return scaled(args, everywhere(sum(squares(args)).sqrt(), args))


def budget(case, args):
    n = case.world_size
    limit = [2 * (n - 1) / n * 8] * n
    return Budget("one all_reduce of one number", sent=limit, received=limit, calls=[1] * n)


def needs(case, args):
    return [int(len(shard) > 0) for shard, _ in args]


CLIP_SHARD = Task(
    "clip_shard",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    parameters=("gradient", "max_norm"),
    suspects=(
        Suspect(
            lambda args: scaled(args, [square.sqrt() for square in squares(args)]),
            "each rank clips by the norm of its own shard, so the shards no longer fit together. Whose norm is max_norm about?",
        ),
        Suspect(
            lambda args: scaled(args, everywhere(sum(square.sqrt() for square in squares(args)), args)),
            "the shards' norms are added up. What does add up, before the root is taken?",
        ),
        Suspect(
            lambda args: scaled(args, everywhere(sum(squares(args)), args)),
            "this divides by the sum of squares. The norm is its root.",
        ),
        Suspect(
            lambda args: scaled(
                args, everywhere(sum(squares(args)).sqrt(), args), lambda longest, norm: longest / norm if norm else 1.0
            ),
            "a gradient that is short enough is made longer. Clipping leaves it alone.",
        ),
    ),
    thoughts={
        "values": "what is the norm of the whole gradient, made of the shards' sums of squares?",
        "traffic": "the gradient stays where it is. Which single number of each shard do the others need?",
        "calls": "one collective is enough.",
        "Stuck": "does a rank with an empty shard, or a short one, make the call too?",
    },
)

TASKS = (WEIGHTED_MEAN, STABLE_VARIANCE, BEST_RANK, TOP_PLACES, MAJORITY, CLIP_SHARD)
