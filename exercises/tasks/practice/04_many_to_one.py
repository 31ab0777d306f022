"""accuracy(correct): on rank 0 the fraction of all samples that were answered rightly."""

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (
    Case(2, size=4),
    Case(2, size=6, uneven=True),
    Case(3, size=3, uneven=True),
    Case(3, size=5),
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


def mean_of_means(args):
    return sum(float(x.float().mean()) for (x,) in args) / len(args)


def on_zero(value, args):
    return [value] + [None] * (len(args) - 1)


def needs(case, args):
    return [1] + [0] * (case.world_size - 1)


TASK = Task(
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
            "only rank 0 is to return a number. After reduce, what may the others read?",
            where_wrong=True,
        ),
        Suspect(
            lambda args: on_zero(float(args[0][0].float().mean()), args),
            "this is the accuracy of rank 0's own samples.",
        ),
    ),
    thoughts={
        "values": "how many were right, and how many were there, over all ranks? Divide last.",
        "largest": "two numbers say all that rank 0 needs to know of a rank.",
        "calls": "two numbers fit into one tensor, and one tensor into one call.",
        "Stuck": "does every rank call reduce, and not only the one that wants the result?",
        "Mismatch": "the ranks have different numbers of samples. What about them has the same shape everywhere?",
        "RankFailed": "reduce returns None: where does the result stand?",
    },
)
