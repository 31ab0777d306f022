"""clip_shard(gradient, max_norm): a shard of a gradient, clipped by the norm of the whole."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

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


TASK = Task(
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
