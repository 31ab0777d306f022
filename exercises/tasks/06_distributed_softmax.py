"""distributed_softmax(x): softmax over rows that are cut into column blocks."""

import torch

from helpers.exercise import Budget, Case, Suspect, Task

APART = "rows far apart: the second 1,000 below the first"
CASES = (
    Case(2, size=3),
    Case(2, "fractions", 2, uneven=True),
    Case(3, "up to 10,000 and down to -10,000", 3),
    Case(3, "negative numbers", 2, uneven=True),
    Case(3, "around -10,000", 2, uneven=True),
    Case(3, APART, 2),
    Case(4, "masked: rank 1 has only -inf in its first row", 3),
    Case(4, "fractions", 12, torch.bfloat16),
    Case(5, "up to 10,000 and down to -10,000", 4, uneven=True),
    Case(6, "fractions", 3, torch.float16),
    Case(7, "fractions", 4, uneven=True, late=6),
    Case(8, "small numbers", 16),
    Case(1, "up to 10,000 and down to -10,000", 4),
)


def rows_of(case):
    return {6: 3, 7: 1}.get(case.world_size, 2)


def draw(d):
    x = d.numbers(rows_of(d.case), d.case.length(d.rank))
    if d.case.kind.startswith("masked") and d.rank == 1:
        x[0] = -torch.inf
    if d.case.kind == APART:
        x[1] -= 1000
    return (x,)


def split_like(whole, args):
    """The whole rows' columns back on their ranks."""
    parts = whole.split([x.shape[1] for (x,) in args], dim=1)
    return [part.to(x.dtype) for part, (x,) in zip(parts, args)]


def rows(args):
    return torch.cat([x.double() for (x,) in args], dim=1)


def reference(args):
    return split_like(rows(args).softmax(1), args)


def local(args):
    return [x.softmax(1) for (x,) in args]


def own_maximum(args):
    """Each rank subtracts its own maximum, and all divide by the sum of what that gives."""
    raised = [(x.double() - (x.double().amax(1, keepdim=True) if x.shape[1] else 0)).exp() for (x,) in args]
    total = sum(e.sum(1, keepdim=True) for e in raised)
    return [(e / total).to(x.dtype) for e, (x,) in zip(raised, args)]


def nothing_brings_zero(args):
    """A rank without columns brings 0 as its maximum."""
    largest = rows(args).amax(1, keepdim=True)
    if any(not x.shape[1] for (x,) in args):
        largest = largest.clamp(min=0)
    raised = (rows(args) - largest).float().exp()
    return split_like(raised / raised.sum(1, keepdim=True), args)


def one_maximum(args):
    """All rows subtract the largest number of all rows."""
    raised = (rows(args) - rows(args).max()).float().exp()
    return split_like(raised / raised.sum(1, keepdim=True), args)


def without_maximum(args):
    raised = rows(args).float().exp()
    return split_like(raised / raised.sum(1, keepdim=True), args)


def budget(case, args):
    limit = [8 * rows_of(case) * (case.world_size - 1)] * case.world_size
    return Budget("8(N-1) bytes per row sent and received by a rank, however many columns there are", limit, limit)


def needs(case, args):
    """A number for each row, on every rank with columns: the denominator depends on the other ranks' columns."""
    return [x.shape[0] * case.dtype.itemsize * bool(x.shape[1]) for (x,) in args]


TASK = Task(
    "distributed_softmax",
    CASES,
    draw,
    reference,
    budget,
    needs=needs,
    scale=lambda args: 1.0,
    suspects=(
        Suspect(
            local,
            "each rank's block adds up to 1 by itself; the whole row should. Whose exponentials must the sum count?",
        ),
        Suspect(
            nothing_brings_zero,
            "a rank without columns has no maximum. What it passes must never win, not even where all logits are far below 0.",
        ),
        Suspect(
            one_maximum,
            "one maximum is subtracted from all rows. In a row far below it every exp is 0, and 0 / 0 is nan: each row "
            "needs its own.",
        ),
        Suspect(
            without_maximum,
            "exp(1000) is inf, and inf / inf is nan. What may be subtracted from a row without changing its softmax?",
        ),
        Suspect(
            own_maximum,
            "each rank subtracts a different maximum, so their exponentials can't be added. All must subtract the same one.",
        ),
        Suspect(
            lambda args: [rows(args).softmax(1).to(x.dtype) for (x,) in args],
            "these are the whole rows. Each rank returns its own columns only.",
        ),
    ),
    thoughts={
        "values": "softmax needs two numbers per row: the largest logit, and the sum of exponentials. Does every rank use the same two?",
        "traffic": "the logits don't have to travel. Which numbers per row do all ranks have to agree on?",
        "RankFailed": "what is the maximum of a block without columns? Which number leaves every other maximum as it is?",
        "Stuck": "does a rank without columns make all the calls that the others make?",
        "Mismatch": "what travels must have the same shape and dtype on all ranks: one number per row, even if there are no columns.",
    },
)
