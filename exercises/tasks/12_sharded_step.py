"""sharded_step(weights, gradients, momenta): an optimizer step of which each rank does an N-th.
train_sharded(shapes, shards, x, t): layers that are complete only while they are used, each gathered one layer ahead.
"""

import torch

from helpers.exercise import ANY_VALUE, LARGE, Budget, Case, Measure, Suspect, Task

# --- an optimizer's step --------------------------------------------------------------------

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


STEP = Task(
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

# --- layers ---------------------------------------------------------------------------------

WIDTHS = {  # Case.size -> of a model. On up to 8 ranks, no two layers have shards of one length, by which a gather is known
    1: [6, 4],
    2: [4, 6, 2],
    4: [8, 2, 12, 6, 20],
    5: [3, 10, 9, 2, 20, 8],
}
ROWS = 2


def draw_model(d):
    widths = WIDTHS[d.case.size]
    shapes = list(zip(widths, widths[1:]))
    weights = [d.numbers(rows * columns, common=True) / 9 for rows, columns in shapes]
    x, t = (d.numbers(ROWS, width) / 9 for width in (widths[0], widths[-1]))
    return shapes, [shards(w, d.world_size)[d.rank].clone() for w in weights], x, t


def weights_of_all(args):
    shapes = args[0][0]
    flats = (torch.cat([mine[1][k] for mine in args]) for k in range(len(shapes)))
    return [flat[: rows * columns].view(rows, columns) for flat, (rows, columns) in zip(flats, shapes)]


def shards_of_gradients(args, scale=1.0, of_rank=None):
    """Per rank, its shards of the mean gradients.  of_rank: from a rank, whose gradients instead of all; None: of all."""
    n, leaves, every = len(args), [w.double().requires_grad_() for w in weights_of_all(args)], []
    for *_, x, t in args:
        a = x.double()
        for w in leaves:
            a = torch.tanh(a @ w)
        every.append(torch.autograd.grad((a - t.double()).square().mean(), leaves))
    found = []
    for rank in range(n):
        used = every if of_rank is None else [every[of_rank(rank)]]
        means = [scale * sum(layer) / len(used) for layer in zip(*used)]
        found.append([shards(g.flatten().to(args[0][2].dtype), n)[rank] for g in means])
    return found


def is_mark(e):
    return e.op == "all_reduce" and len(e.group) == 1


def not_one_ahead(sizes):
    """A count, per rank, of layers whose gather starts too late or too early: not in the layer before.

    sizes: bytes of each layer's shard.  Marks come in the order of the layers, and then backward.
    """
    n = len(sizes)

    def count(mine):
        started, marks, wrong = [0] * n, 0, set()
        for e in mine:
            if e.op.startswith("all_gather") and e.nbytes in sizes:
                started[sizes.index(e.nbytes)] += 1
            elif is_mark(e):
                forward, k = marks < n, marks if marks < n else 2 * n - 1 - marks
                way, times = (1, 1) if forward else (-1, 2)
                due, early = k + way, k + 2 * way
                wrong |= {due} if 0 <= due < n and started[due] < times else set()
                wrong |= {early} if 0 <= early < n and started[early] >= times else set()
                marks += 1
        return len(wrong)

    return lambda events: list(map(count, events))


def summed_late(layers):
    """A count, per rank, of gradients whose reduce_scatter doesn't start before the next layer's backward pass."""

    def count(mine):
        marks = late = summed = 0
        for e in mine:
            if e.op.startswith("reduce_scatter"):
                summed += 1
            elif is_mark(e):
                late = max(late, marks - layers - summed)
                marks += 1
        return late

    return lambda events: list(map(count, events))


def most_complete(events):
    """Per rank, the most bytes of complete layers at a mark, which carries this number."""
    return [max((float(e.before) for e in mine if is_mark(e)), default=0.0) for mine in events]


def marks(events):
    return [sum(map(is_mark, mine)) for mine in events]


AHEAD = "layers whose gather doesn't start while the layer before is used"
COMPLETE = "bytes of complete layers at a time"
AT_ONCE = "gradients that aren't on their way when the next layer's backward pass begins"
MARKS = "marks of layers"


def budget_of_layers(case, args):
    n, (shapes, own, *_) = case.world_size, args[0]
    sizes = [shard.nbytes for shard in own]
    padded = [n * size for size in sizes]
    limit = 3 * (n - 1) / n * sum(padded)
    pairs = [sum(padded[k : k + 2]) for k in range(len(padded))]
    return Budget(
        "each layer is gathered once forward and once backward, while its neighbor is used, and its gradients are summed once, before the "
        "next layer's backward pass; at most two layers that follow each other are complete, or on their way, at a time",
        sent=[limit] * n,
        received=[limit] * n,
        largest=[max(padded)] * n,
        measures=(
            Measure(MARKS, marks, [2 * len(shapes)] * n, [2 * len(shapes)] * n),
            Measure(COMPLETE, most_complete, [max(pairs)] * n),
            Measure(AHEAD, not_one_ahead(sizes), [0] * n),
            Measure(AT_ONCE, summed_late(len(shapes)), [0] * n),
        )
        if n > 1  # a single rank's own calls look like marks
        else (),
    )


LAYERS = Task(
    "train_sharded",
    (
        Case(2, size=4),
        Case(2, size=1),
        Case(2, size=2),
        Case(3, "fractions", 4, torch.float64),
        Case(3, size=5, late=1),
        Case(4, "negative numbers", 5),
        Case(5, size=4, late=4),
        Case(6, size=2),
        Case(8, "fractions", 5, late=2),
        Case(7, size=4),
        Case(1, size=4),
    ),
    draw_model,
    shards_of_gradients,
    budget_of_layers,
    needs=lambda case, args: [sum(shard.nbytes for shard in own) for _, own, *_ in args],
    after=None,
    scale=lambda args: 1.0,
    parameters=("shapes", "shards", "x", "t"),
    suspects=(
        Suspect(
            lambda args: shards_of_gradients(args, scale=len(args)),
            "this is the sum over ranks; it should be the mean.",
        ),
        Suspect(
            lambda args: shards_of_gradients(args, scale=1 / len(args)),
            "this is the mean divided by N once more. Who divides here, and who else?",
        ),
        Suspect(
            lambda args: shards_of_gradients(args, of_rank=lambda rank: rank),
            "rank r has the shard of its own gradients. The other ranks have gradients for this shard too.",
        ),
    ),
    thoughts={
        "values": "follow one layer: who has its shards, when is it complete, is it the layer that is used, and which part of whose "
        "gradients ends up on this rank?",
        "traffic": "a layer is gathered twice, and a reduce_scatter gives each rank the part of the gradients that it keeps. What do "
        "your calls send that no rank needs?",
        "largest": "a layer at a time.",
        COMPLETE: "`flat.untyped_storage().resize_(0)` frees a layer, and its views stay. After its forward nobody needs it for a while; "
        "after its backward, no longer.",
        AHEAD: "a gather with async_op=True starts at once and is waited for when its layer is used. Before layer k computes, start the "
        "gather of the next one: k + 1 forward, k - 1 backward. Not those after it: they need room, too.",
        AT_ONCE: "`p.register_post_accumulate_grad_hook(f)` calls f as soon as p.grad is complete, while the backward pass goes on. The "
        "call starts there, and `wait` waits for it.",
        MARKS: "each layer makes a mark forward and one backward. Leave Layer and train_sharded as they are.",
        "Stuck": "does each rank make the same calls in the same order, whatever its shards are?",
        "Mismatch": "between the call and its wait() a tensor belongs to the call: the layer that is being gathered, and the gradients that "
        "are being summed.",
        "RankFailed": "is the layer complete when it's used? In the backward pass `output.register_hook(f)` is called before a layer's own "
        "backward. And a shard is padded: a layer's numbers are the first rows x columns of the flat tensor.",
    },
)
TASKS = (STEP, LAYERS)
