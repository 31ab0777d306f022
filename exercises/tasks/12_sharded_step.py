"""sharded_step(weights, gradients, momenta): an optimizer step of which each rank does an N-th."""

import torch

from helpers.exercise import ANY_VALUE, LARGE, Budget, Case, Suspect, Task

RATE, MOMENTUM = 0.5, 0.9

CASES = (
    Case(2, size=5),
    Case(2, "negative numbers", 4),
    Case(3, size=6),
    Case(3, "fractions", 7, late=1),
    Case(4, size=10),
    Case(6, size=2, dtype=torch.float64),
    Case(5, size=9, late=4),
    Case(5, "up to 10,000 and down to -10,000", 3),
    Case(7, size=12),
    Case(8, "fractions", 20, torch.float64, late=0),
    Case(1, size=4),
)


def lengths(case):
    """At most three layers; the last has fewer numbers than there are ranks, or as many as the world is small."""
    return [case.size, 2 * case.size + 3, 1][{6: 2, 7: 1}.get(case.world_size, 0) :]


def shard_length(n, length):
    """Numbers of a rank's shard, padding included."""
    return -(-length // n)


def draw(d):
    n, sizes = d.world_size, lengths(d.case)
    weights = [d.numbers(k, common=True) for k in sizes]
    momenta = [shards(d.numbers(k, common=True), n)[d.rank].clone() for k in sizes]
    return weights, [d.numbers(k) for k in sizes], momenta


def shards(whole, n):
    """A layer in N equal shards, after zeros at its end."""
    size = shard_length(n, len(whole))
    return torch.cat([whole, whole.new_zeros(size * n - len(whole))]).view(n, size)


def stepped(args, gradient_of, update=lambda w, m, g: (w - RATE * (MOMENTUM * m + g), MOMENTUM * m + g)):
    """Per rank, weights and its shards of the momenta after a step.  gradient_of: rank, layer -> the gradient it uses."""
    n, dtype = len(args), args[0][0][0].dtype
    out = [([], []) for _ in args]
    for layer, whole in enumerate(args[0][0]):
        momentum = torch.cat([mine[2][layer] for mine in args])[: len(whole)].double()
        for rank in range(n):
            weights, momenta = update(whole.double(), momentum, gradient_of(rank, layer))
            out[rank][0].append(weights.to(dtype))
            out[rank][1].append(shards(momenta.to(dtype), n)[rank])
    return out


def total(args, layer):
    return sum(mine[1][layer].double() for mine in args)


def mean(args):
    return lambda rank, layer: total(args, layer) / len(args)


def after(args):
    return [(weights, ANY_VALUE, momenta) for weights, momenta in stepped(args, mean(args))]


def budget(case, args):
    n = case.world_size
    padded = [shard_length(n, k) * n * case.dtype.itemsize for k in lengths(case)]
    each = [2 * (n - 1) / n * sum(padded)] * n
    return Budget(
        "2(N-1)/N of all layers' bytes, in 2 steps per layer, and no call with more than one layer in its buffer",
        each,
        each,
        largest=[max(padded)] * n,
        steps=2 * len(padded),
        least=2 * (n - 1) / n * sum(lengths(case)) * case.dtype.itemsize,
    )


def own_shards_only(args):
    """As if nobody had gathered: the rank's own shard of the weights is new, the rest is old."""
    n, found = len(args), []
    for rank, (weights, _) in enumerate(stepped(args, mean(args))):
        mixed = []
        for old, new in zip(args[rank][0], weights):
            size = shard_length(n, len(old))
            mine = torch.arange(len(old)) // size == rank
            mixed.append(torch.where(mine, new, old))
        found.append(mixed)
    return found


def rounded_down(args):
    """As if shards had len // N numbers: what is left over at a layer's end stays as it was."""
    n, dtype, found = len(args), args[0][0][0].dtype, []
    for layer, old in enumerate(args[0][0]):
        size, new, gradient = len(old) // n, old.double(), mean(args)(0, layer)
        for rank, mine in enumerate(args):
            at = slice(rank * size, (rank + 1) * size)
            new[at] -= RATE * (MOMENTUM * mine[2][layer][:size].double() + gradient[at])
        found.append(new.to(dtype))
    return [found] * n


def weights_of(results):
    return [weights for weights, _ in results]


def momenta_of(results):
    return [momenta for _, momenta in results]


def from_own_gradients(args):
    """As if each rank had updated its shard with its own gradient, and all had gathered that."""
    n, dtype = len(args), args[0][0][0].dtype
    owners = [[torch.arange(len(w)) // shard_length(n, len(w)) for w in args[0][0]]] * n

    def own(rank, layer):
        stacked = torch.stack([mine[1][layer].double() for mine in args])
        return stacked.gather(0, owners[rank][layer][None])[0]

    return [([w.to(dtype) for w in weights], momenta) for weights, momenta in stepped(args, own)]


SUM = "this is the step of the gradients' sum. It should be the mean: is anything divided by N, or reduced with AVG?"
OWN = "rank r's shard is updated with rank r's own gradients. The other ranks have gradients for this shard too."
OLD = "the updated weights hold no momentum: the step is `w -= 0.5 * m`, with the *new* m = 0.9 * m + g."


def needs(case, args):
    """Of each layer, the sum of the others' gradients for the rank's own shard, and the new weights of the other shards."""
    return [sum(w.nbytes for w in weights) for weights, *_ in args]


TASK = Task(
    "sharded_step",
    CASES,
    draw,
    lambda args: [None for _ in args],
    budget,
    needs=needs,
    large=Case(4, "fractions", LARGE // 4),
    after=after,
    parameters=("weights", "gradients", "momenta"),
    suspects=(
        Suspect(lambda args: weights_of(stepped(args, lambda r, k: total(args, k))), SUM),
        Suspect(lambda args: momenta_of(stepped(args, lambda r, k: total(args, k))), SUM),
        Suspect(lambda args: weights_of(from_own_gradients(args)), OWN),
        Suspect(lambda args: momenta_of(from_own_gradients(args)), OWN),
        Suspect(
            own_shards_only,
            "each rank has new numbers in its own shard only. Who tells it the others' new weights?",
        ),
        Suspect(rounded_down, "the last numbers of a layer are left out. What if its length does not divide by N?"),
        Suspect(
            lambda args: weights_of(stepped(args, mean(args), lambda w, m, g: (w - RATE * g, MOMENTUM * m + g))),
            OLD,
        ),
        Suspect(
            lambda args: weights_of(stepped(args, mean(args), lambda w, m, g: (w - RATE * m, MOMENTUM * m + g))),
            "the weights are updated with the old momentum. Update m first, then the weights with it.",
        ),
    ),
    thoughts={
        "values": "follow one shard: which ranks have gradients for it, who has its momentum, who updates it, who needs it then?",
        "traffic": "an all_reduce gives every rank the whole mean gradient. How much of it does a rank use?",
        "largest": "all layers in one tensor are a second copy of the model, made to save memory. Go layer by layer.",
        "steps": "two collectives per layer are enough: one that gives rank r the sum of shard r, and one that gives all ranks all shards.",
        "Stuck": "does every rank make the same calls for every layer, even one whose shard is nothing but padding?",
        "Mismatch": "is every rank's buffer N times as long as a shard, padding included?",
        "RankFailed": "are weights and gradients padded where N does not divide their length? len(momenta[k]) is the length of a shard.",
    },
)
