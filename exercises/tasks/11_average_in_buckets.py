"""average_in_buckets(grads, cap): the mean of gradients over ranks in place, in few calls that are under way together.
train_averaged(weights, x, t, cap): the same by a module, while its backward pass goes on.
"""

import torch

from helpers.exercise import Budget, Case, Measure, Suspect, Task

# --- a list of gradients --------------------------------------------------------------------

LAYOUTS = {  # Case.size -> shapes of the gradients, cap in bytes
    0: ([], 64),
    1: ([(6,)], 64),
    3: ([(8,), (4, 2), (16,)], 64),  # float32: two buckets that are full to the byte, and nothing left
    4: ([(3,), (), (2, 5), (1,)], 1),  # each is a bucket
    5: ([(3,), (4,), (2, 2), (), (5,)], 10**9),  # one bucket
    7: ([(3,), (4, 3), (5,), (2, 2), (40,), (1,), (7,)], 64),
    8: ([(3,), (4, 3), (5,), (2, 2), (40,), (1,), (7,)], 64),
    9: ([(2,), (4,), (2, 3), (), (5,)], 10**9),
}
BY_COLUMNS = (9,)  # matrices are stored so, as the gradient of a transposed weight is
MIXED = (8, 9)  # every other gradient is of a second dtype
SECOND = {torch.float32: torch.float64, torch.float64: torch.float32, torch.bfloat16: torch.float32}
CASES = (
    Case(2, size=7),
    Case(2, "negative numbers", 3),
    Case(2, "fractions", 4),
    Case(3, "fractions", 7, torch.float64),
    Case(3, size=3, late=0),
    Case(3, size=0),
    Case(3, size=8),
    Case(4, "fractions", 8, torch.bfloat16),
    Case(5, "fractions", 9, torch.float64),
    Case(4, size=7, late=3),
    Case(4, "fractions", 7, torch.bfloat16),
    Case(4, size=5),
    Case(5, "up to 10,000 and down to -10,000", 7),
    Case(6, size=1, late=4),
    Case(8, "fractions", 7, late=2),
    Case(8, size=3, dtype=torch.float64),
    Case(7, size=4),
    Case(1, size=7),
)


def draw(d):
    shapes, cap = LAYOUTS[d.case.size]
    dtypes = (d.case.dtype, SECOND[d.case.dtype] if d.case.size in MIXED else d.case.dtype)
    grads = [d.numbers(*shape).to(dtypes[k % 2]) for k, shape in enumerate(shapes)]
    return [g.t().contiguous().t() if d.case.size in BY_COLUMNS and g.dim() == 2 else g for g in grads], cap


def filled(grads, cap):
    """The gradients' numbers in the list, bucket by bucket.

    Each dtype has a bucket; it is closed as soon as it holds at least cap bytes, and what is left follows.
    """
    buckets, filling = [], {}
    for k, g in enumerate(grads):
        bucket = filling.setdefault(g.dtype, [])
        bucket.append(k)
        if sum(grads[j].nbytes for j in bucket) >= cap:
            buckets.append(filling.pop(g.dtype))
    return buckets + list(filling.values())


def means(args):
    n = len(args)
    return [(sum(same.double() for same in of) / n).to(of[0].dtype) for of in zip(*(grads for grads, _ in args))]


def nothing(args):
    return [None for _ in args]


def after(args):
    return [(means(args), cap) for _, cap in args]


def budget(case, args):
    n, (grads, cap) = case.world_size, args[0]
    sizes = [sum(grads[k].nbytes for k in bucket) for bucket in filled(grads, cap)]
    least = 2 * (n - 1) / n * sum(sizes)
    return Budget(
        "no more calls than there are buckets, none larger than the largest bucket, 2(N-1)/N of the gradients' bytes, "
        "and every call starts before the first is waited for",
        sent=[least] * n,
        received=[least] * n,
        calls=[len(sizes)] * n,
        largest=[max(sizes, default=0)] * n,
        together=True,
        least=least,
    )


def times(factor):
    """Per rank, the means, so many times as large."""
    return lambda args: [[(m.double() * factor(len(args))).to(m.dtype) for m in means(args)]] * len(args)


def in_half_precision(args):
    halves = [sum(g.half() for g in same) / len(args) for same in zip(*(grads for grads, _ in args))]
    return [[half.to(g.dtype) for half, g in zip(halves, args[0][0])]] * len(args)


def only_full(args):
    """As if the buckets that never got full had not been sent."""
    grads, cap = args[0]
    full = {k for bucket in filled(grads, cap) if sum(grads[j].nbytes for j in bucket) >= cap for k in bucket}
    return [[mean if k in full else mine[k] for k, mean in enumerate(means(args))] for mine, _ in args]


def one_left(args):
    """As if of the buckets that never got full only the last had been sent."""
    grads, cap = args[0]
    left = [bucket for bucket in filled(grads, cap) if sum(grads[j].nbytes for j in bucket) < cap]
    forgotten = {k for bucket in left[:-1] for k in bucket}
    return [[mine[k] if k in forgotten else mean for k, mean in enumerate(means(args))] for mine, _ in args]


def contiguous_only(args):
    """As if what is written into a copy of the others had reached them."""
    return [[mean if g.is_contiguous() else g for g, mean in zip(mine, means(args))] for mine, _ in args]


def needs(case, args):
    """The sum of the others' gradients."""
    return [sum(g.nbytes for g in grads) for grads, _ in args]


AVERAGE = Task(
    "average_in_buckets",
    CASES,
    draw,
    nothing,
    budget,
    needs=needs,
    after=after,
    parameters=("grads", "cap"),
    suspects=(
        Suspect(
            contiguous_only,
            "the gradient that is stored column by column hasn't changed. `flatten` and `reshape` make a copy of such a "
            "tensor, so what you write into that is lost; `g.copy_(part.view_as(g))` writes into any.",
        ),
        Suspect(times(lambda n: n), "this is the sum over ranks; it should be the mean."),
        Suspect(times(lambda n: 1 / n), "this is the mean divided by N once more. Who divides here, and who else?"),
        Suspect(in_half_precision, "these numbers went through half precision. The gradients' dtype is good enough."),
        Suspect(
            only_full,
            "the bucket that never got full was never sent. What sends it when the gradients end?",
        ),
        Suspect(
            one_left,
            "of the buckets that never got full, only one was sent. When the gradients end, each dtype may have one.",
        ),
    ),
    thoughts={
        "values": "follow one gradient: into which bucket is it copied, when is the sum in that bucket complete, and which line "
        "copies it back?",
        "sent": "all_reduce sends as little as a sum can. What do your calls send that no rank needs, or twice, or in a wider dtype?",
        "received": "all_reduce moves as little as a sum can. What do your calls move that no rank needs, or twice, or in a wider dtype?",
        "calls": "a bucket is closed as soon as it holds at least `cap` bytes, and makes one call. Count bytes by the tensor's "
        "own element size. Each dtype has its own bucket. And what about a bucket without gradients?",
        "largest": "a bucket is closed as soon as it holds at least `cap` bytes, and the next gradient of its dtype begins a new "
        "one. Count bytes by the tensor's own element size: torch.cat of two dtypes has the wider one's. And a call that "
        "gathers holds the numbers of all ranks.",
        "together": "with async_op=True a call returns at once, with a work. Keep the works, and wait for them in a second loop.",
        "Mismatch": (
            "between the call and its wait() a bucket belongs to the call: neither read it nor write to it. And each "
            "bucket has its own work."
        ),
        "Stuck": "do all ranks close their buckets at the same gradients?",
        "RankFailed": "if you kept the bucket's list for later, was it emptied since? A copy, list(bucket), stays. And what if there are no gradients at all, the last bucket is empty, or a gradient is a single number, "
        "of shape []?",
    },
)

# --- a module -------------------------------------------------------------------------------

MODELS = {  # Case.size -> widths, cap in bytes (of float32), microbatches
    1: ([3, 2], 64, 1),
    2: ([4, 3, 5, 2], 10**9, 2),  # one bucket
    3: ([4, 3, 5, 2], 1, 3),  # each layer is one
    4: ([4, 8, 2, 6, 3, 4], 100, 2),
    5: ([2, 2, 2, 2, 2, 2, 2], 32, 4),  # buckets that are full to the byte, and nothing left
}
ROWS = 2  # of a microbatch


def draw_model(d):
    widths, cap, microbatches = MODELS[d.case.size]
    weights = [d.numbers(*shape, common=True) / 9 for shape in zip(widths, widths[1:])]
    x, t = (d.numbers(microbatches, ROWS, width) / 9 for width in (widths[0], widths[-1]))
    return weights, x, t, cap


def own_gradients(mine, first=0):
    """A rank's gradients, added up over its microbatches.  first: the one to begin with."""
    weights, x, t, _ = mine
    leaves = [w.double().requires_grad_() for w in weights]
    for inputs, targets in list(zip(x.double(), t.double()))[first:]:
        a = inputs
        for w in leaves:
            a = torch.tanh(a @ w)
        ((a - targets).square().mean() / len(x)).backward()
    return [w.grad for w in leaves]


def averaged(args, scale=1.0, of=own_gradients):
    """Every rank's result.  of: from a rank's arguments its gradients."""
    dtype = args[0][0][0].dtype
    summed = [sum(layer) for layer in zip(*map(of, args))]
    return [[(scale * total / len(args)).to(dtype) for total in summed] for _ in args]


def closing_layers(weights, cap):
    """For each bucket the layer whose gradient is its last, and its bytes. Backward begins with the last layer."""
    found, nbytes = [], 0
    for k in reversed(range(len(weights))):
        nbytes += weights[k].nbytes
        if nbytes >= cap or k == 0:
            found.append((k, nbytes))
            nbytes = 0
    return found


def lateness(weights, microbatches, cap):
    """A count, per rank: layers whose backward began between a bucket's last gradient and its call, the most of all buckets.

    A layer marks its backward by a call in a group of one rank.
    """
    layers = len(weights)
    expected = [(microbatches - 1) * layers + layers - k for k, _ in closing_layers(weights, cap)]

    def late(mine):
        marks, before = 0, []
        for e in mine:
            if len(e.group) == 1:
                marks += 1
            else:
                before.append(marks)
        return max((marks - wanted for marks, wanted in zip(before, expected)), default=0)

    return lambda events: list(map(late, events))


def marks(events):
    """Per rank, the marks of layers."""
    return [sum(len(e.group) == 1 for e in mine) for mine in events]


LATE, MARKS = "layers between a full bucket and its call", "marks of layers in the backward passes"


def budget_of_model(case, args):
    n, (weights, x, _, cap) = case.world_size, args[0]
    sizes = [nbytes for _, nbytes in closing_layers(weights, cap)]
    least, made = 2 * (n - 1) / n * sum(sizes), [len(x) * len(weights)] * n
    return Budget(
        "a call per bucket in the last microbatch's backward pass, each as soon as its last gradient is complete, and 2(N-1)/N of "
        "the gradients' bytes; no call is waited for before all have started",
        sent=[least] * n,
        received=[least] * n,
        calls=[len(sizes)] * n,
        largest=[max(sizes)] * n,
        together=True,
        measures=(
            Measure(MARKS, marks, made, made),
            Measure(LATE, lateness(weights, len(x), cap), [0] * n),
        )
        if n > 1  # a single rank's own calls look like marks
        else (),
        least=least,
    )


MODULE = Task(
    "train_averaged",
    (
        Case(2, size=1),
        Case(2, size=3),
        Case(2, size=4),
        Case(3, "fractions", 2, torch.float64),
        Case(3, size=5, late=1),
        Case(4, "negative numbers", 4),
        Case(5, size=3, late=4),
        Case(6, size=5),
        Case(8, "fractions", 4, late=2),
        Case(8, size=2),
        Case(7, size=3),
        Case(1, size=4),
    ),
    draw_model,
    averaged,
    budget_of_model,
    needs=lambda case, args: [sum(w.nbytes for w in weights) for weights, *_ in args],
    after=None,
    scale=lambda args: 1.0,
    parameters=("weights", "x", "t", "cap"),
    suspects=(
        Suspect(lambda args: averaged(args, scale=len(args)), "this is the sum over ranks; it should be the mean."),
        Suspect(
            lambda args: averaged(args, scale=1 / len(args)),
            "this is the mean divided by N once more. Who divides here, and who else?",
        ),
        Suspect(
            lambda args: [[g.to(mine[0][0].dtype) for g in own_gradients(mine)] for mine in args],
            "each rank still has its own gradients. Does `wait` copy the means back, into the tensors that are `.grad`?",
        ),
        Suspect(
            lambda args: averaged(args, of=lambda mine: own_gradients(mine, len(mine[1]) - 1)),
            "these are the last microbatch's gradients alone. What did the backward passes in `no_sync` leave in `.grad`?",
        ),
    ),
    thoughts={
        "values": "follow one weight: when is its gradient complete, in which bucket is it, when is that full, and which line copies "
        "the mean back into `.grad`?",
        "calls": "in `no_sync` the gradients only accumulate; each bucket makes one call, in the last microbatch's backward pass.",
        "largest": "a bucket is closed as soon as it holds at least `cap` bytes, counted from the last layer, and the next gradient "
        "begins a new one.",
        "traffic": "one all_reduce per bucket moves as little as a mean can. In which backward passes do you call?",
        "together": "the works belong into a list. Only `wait` waits for them.",
        LATE: "`p.register_post_accumulate_grad_hook(f)` calls f as soon as p.grad is complete, while the backward pass goes on. Which "
        "of your lines starts the call, and what does it wait for?",
        MARKS: "each layer marks its backward pass once per microbatch. Leave Layer and train_averaged as they are.",
        "Stuck": "does each rank close its buckets at the same gradients, by bytes alone?",
        "Mismatch": "between the call and its wait() a bucket belongs to the call: neither read it nor write to it.",
        "RankFailed": "after `no_sync` do your hooks still count right? They are called in every backward pass. And the last bucket may "
        "not be full: its call starts when its last gradient is there.",
    },
)
TASKS = (AVERAGE, MODULE)
