"""mean_loss(loss): on rank 0 the mean of all ranks' losses."""

from helpers.exercise import Budget, Case, Suspect, Task

CASES = (Case(2), Case(3), Case(4, late=0), Case(5), Case(6), Case(7, late=3), Case(8), Case(1))


def draw(d):
    return (d.numbers(1),)


def mean(args):
    return sum(loss.item() for (loss,) in args) / len(args)


def on_zero(value, args):
    return [value] + [None] * (len(args) - 1)


TASK = Task(
    "mean_loss",
    CASES,
    draw,
    lambda args: on_zero(mean(args), args),
    lambda case, args: Budget("two calls per rank", calls=[2] * case.world_size),
    after=None,
    needs=lambda case, args: [4 * (rank == 0) for rank in range(case.world_size)],
    parameters=("loss",),
    suspects=(
        Suspect(
            lambda args: on_zero(mean(args) * len(args), args),
            "this is the sum of the losses. What turns it into their mean?",
        ),
        Suspect(
            lambda args: on_zero(mean(args) * len(args) / 4, args),
            "the sum is divided by 4. How many ranks are there in this case? `dist.get_world_size()` knows.",
        ),
        Suspect(
            lambda args: on_zero(args[0][0].item(), args),
            "this is rank 0's own loss. Which line asks the other ranks for theirs?",
        ),
        Suspect(
            lambda args: [mean(args)] * len(args),
            "the mean is right, but only rank 0 should return it. The `if` belongs around the `return`.",
            where_wrong=True,
        ),
    ),
    thoughts={
        "values": "is it one number, and on rank 0 alone? `.item()` turns a tensor with one element into a number.",
        "calls": "one call is enough: each rank has one number to give.",
        "Stuck": "does every rank make the call, or only rank 0?",
    },
)
