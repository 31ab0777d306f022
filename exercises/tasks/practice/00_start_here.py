"""train_together(): a training loop whose ranks average their gradients.  mean_loss(loss): on rank 0 the mean of all
ranks' losses.
"""

import torch

from helpers.exercise import Budget, Case, OnError, Suspect, Task

CASES = (Case(2), Case(3), Case(4, late=0), Case(5), Case(6), Case(7, late=3), Case(8), Case(1))


# --- train_together ---------------------------------------------------------------------------

STEPS = 8
KM, MINUTES = torch.tensor([1.0, 3.0] * 4), torch.tensor([3.5, 10.5, 4.5, 13.5, 5.5, 16.5, 6.5, 19.5])


def trained(n, combined):
    """Each rank's result.  combined: the ranks' gradients -> the gradient of each rank's step."""
    shares = list(zip(KM.tensor_split(n), MINUTES.tensor_split(n)))
    ws = [torch.zeros(1) for _ in range(n)]
    for _ in range(STEPS):
        gradients = combined([(2 * x * (w * x - y)).mean() for w, (x, y) in zip(ws, shares)])
        ws = [w - 0.05 * gradient for w, gradient in zip(ws, gradients)]
    return [round(w.item(), 2) for w in ws]


def averaged(gradients):
    return [sum(gradients) / len(gradients)] * len(gradients)


TRAIN = Task(
    "train_together",
    tuple(Case(n) for n in (2, 3, 4, 5, 6, 7, 8, 1)),
    lambda d: (),
    lambda args: trained(len(args), averaged),
    lambda case, args: Budget("one call in each step", calls=[STEPS] * case.world_size),
    needs=lambda case, args: [4 * STEPS * (case.world_size > 1)] * case.world_size,
    parameters=(),
    scale=lambda args: 1e3,  # results are rounded to two digits
    drawn=0,
    suspects=(
        Suspect(
            lambda args: trained(len(args), lambda gradients: gradients),
            "each process still learns from its own trips alone. Does your line change `w.grad`, after `backward` and before "
            "the step?",
        ),
        Suspect(
            lambda args: trained(len(args), lambda gradients: [sum(gradients)] * len(gradients)),
            "these steps are too long: they follow the sum of the gradients. Which `op` makes it the average?",
        ),
        Suspect(
            lambda args: trained(len(args), lambda gradients: [sum(gradients) / 4] * len(gradients)),
            "the sum is divided by 4. How many processes are there in this case? `dist.get_world_size()` knows.",
        ),
        Suspect(
            lambda args: trained(len(args), lambda gradients: [gradients[0]] * len(gradients)),
            "all processes follow process 0's gradient, which is also the greatest. What averages everyone's?",
        ),
    ),
    thoughts={
        "values": "each step should follow the mean of all processes' gradients. What is in `w.grad` when the step is made?",
        "calls": "one call in each step is enough: there is one gradient to average.",
        "Stuck": "does every process make the call, in every step?",
        "RankFailed": OnError(
            r"^(?!.*unsupported operand)",
            "which tensor does the call get, and which `op`? The gradient is in `w.grad` once `backward` has run (before, it's "
            "None), and operations are members of `dist.ReduceOp`.",
        ),
    },
)

# --- mean_loss --------------------------------------------------------------------------------


def draw(d):
    return (d.numbers(1),)


def mean(args):
    return sum(loss.item() for (loss,) in args) / len(args)


def on_zero(value, args):
    return [value] + [None] * (len(args) - 1)


MEAN_LOSS = Task(
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
        "values": "is it the mean over all ranks, as one number, and on rank 0 alone? `.item()` turns a tensor with one element into a number.",
        "calls": "one call is enough: each rank has one number to give.",
        "Stuck": "does every rank make the call, or only rank 0?",
    },
)

TASKS = (TRAIN, MEAN_LOSS)
