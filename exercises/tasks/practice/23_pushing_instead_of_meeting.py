"""The short tasks of chapter 23: the fastest all_reduce, attention over shares, boxes that overlap, and samples' ages.

fastest(n, nbytes, alpha, beta): the all_reduce that takes least.  merge_shares(y, total, top): attention over all ranks' shares.
overlap_box(a, b): the box that two have in common.  usable(samples, newest, most): samples that aren't too old.
"""

import torch

from helpers.exercise import Budget, Case, Suspect, Task, valued

# --- fastest ------------------------------------------------------------------------------


def seconds(n, nbytes, alpha, beta):
    return {
        "one-shot": alpha + (n - 1) * nbytes * beta,
        "two-shot": 2 * alpha + 2 * (n - 1) / n * nbytes * beta,
        "ring": 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes * beta,
    }


def least(times):
    return min(times, key=times.get)


FASTEST = valued(
    "fastest",
    {
        "8 ranks, 16 KB": (8, 2**14, 2e-6, 1 / 370e9),
        "8 ranks, 16 MB": (8, 2**24, 2e-6, 1 / 370e9),
        "2 ranks, 16 MB": (2, 2**24, 2e-6, 1 / 370e9),
        "4 ranks, where bytes don't matter": (4, 8, 1e-5, 1e-11),
        "4 ranks, 4 MB": (4, 2**22, 1e-6, 1e-11),
        "2 ranks, where steps cost nothing": (2, 2**20, 0.0, 1e-9),
        "4 ranks, where steps cost nothing": (4, 2**20, 0.0, 1e-9),
    },
    lambda *about: least(seconds(*about)),
    suspects={
        lambda *about: least(dict(reversed(seconds(*about).items()))): "two of them take the same here. Return the one with fewer steps.",
        lambda *about: "ring": "the ring is optimal in bytes. Two-shot sends as few, in 2 steps instead of 2(N-1).",
        lambda *about: "one-shot": "one-shot sends N-1 whole buffers. With a large one, these take longer than a second step.",
        lambda *about: "two-shot": "two-shot has two steps. With a small buffer, one step with more bytes is faster.",
    },
    thought="one-shot: 1 step and (N-1) S. Two-shot: 2 steps and 2(N-1)/N S. The ring: 2(N-1) steps and 2(N-1)/N S.",
    praise="Where steps cost nothing, four ranks take {}.",
)

# --- merge_shares -------------------------------------------------------------------------

HEADS, SIZE = 2, 3
SHARES = tuple(Case(n, size=2, late=n - 1 if n == 3 else None) for n in (2, 3, 4, 5, 6, 7, 8, 1)) + (
    Case(2, "an empty share", 2),
    Case(4, "an empty share", 3),
    Case(3, "scores that are far apart", 2),
)


def share_of(d):
    scores = d.numbers(HEADS * d.case.size).float().view(HEADS, 1, d.case.size) / 4
    values = d.numbers(HEADS * d.case.size * SIZE).float().view(HEADS, d.case.size, SIZE)
    if d.case.kind == "scores that are far apart":
        scores = scores + 60.0 * d.rank
    if d.case.kind == "an empty share" and d.rank == 1:
        return torch.zeros(HEADS, 1, SIZE), torch.zeros(HEADS, 1, 1), torch.full((HEADS, 1, 1), -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    return weights @ values, weights.sum(-1, keepdim=True), top


def merged(args, scaled=True, divided=True):
    most = torch.stack([top.double() for *_, top in args]).amax(0)
    factors = [(top.double() - most).exp() if scaled else torch.ones_like(most) for *_, top in args]
    y = sum(y.double() * f for (y, *_), f in zip(args, factors))
    total = sum(total.double() * f for (_, total, _), f in zip(args, factors))
    return (y / total if divided else y).float()


def alone(args):
    return [(y / total).nan_to_num() for y, total, _ in args]


def of_both(case):
    n = case.world_size
    return 2 * (n - 1) / n * 4 * HEADS * (1 + SIZE + 1)


MERGE_SHARES = Task(
    "merge_shares",
    SHARES,
    share_of,
    lambda args: [merged(args)] * len(args),
    lambda case, args: Budget(
        "two all_reduces: of the tops, and of sums with their totals",
        sent=[of_both(case)] * case.world_size,
        received=[of_both(case)] * case.world_size,
        calls=[2] * case.world_size,
    ),
    needs=lambda case, args: [4 * HEADS * SIZE * (case.world_size > 1)] * case.world_size,
    parameters=("y", "total", "top"),
    suspects=(
        Suspect(
            lambda args: [merged(args, scaled=False)] * len(args),
            "shares were added up as they are, and each is relative to its own top. Scale them to the top of all first.",
        ),
        Suspect(
            lambda args: [merged(args, divided=False)] * len(args),
            "this is the sum of exp times v. Divide it by the total of all ranks.",
        ),
        Suspect(alone, "this is attention over the rank's own share. The other ranks' are missing."),
        Suspect(
            lambda args: [sum(alone(args)) / len(args)] * len(args),
            "this is the mean of the ranks' results. A share with large scores weighs more than one with small ones.",
        ),
    ),
    thoughts={
        "values": "with the largest top of all ranks, a share's factor is exp(top - largest). Both y and total need it. Then they add up.",
        "traffic": "the result is right, but more travels than the tops and one row with its total. Shares can be added up where they travel.",
        "calls": "the result is right. y and total can travel in one tensor.",
        "inputs": "dist.all_reduce(top, ...) writes into the argument. Make a copy first.",
    },
)

# --- overlap_box --------------------------------------------------------------------------


def common(a, b):
    return [(max(p, q), min(s, t)) for (p, s), (q, t) in zip(a, b)]


def overlap(a, b):
    box = common(a, b)
    return box if all(start < stop for start, stop in box) else None


OVERLAP_BOX = valued(
    "overlap_box",
    {
        "rows and columns": ([(0, 32), (0, 64)], [(0, 64), (16, 32)]),
        "one inside the other": ([(0, 64), (0, 64)], [(8, 16), (32, 40)]),
        "the same": ([(4, 8)], [(4, 8)]),
        "apart in both dimensions": ([(0, 8), (0, 8)], [(16, 24), (16, 24)]),
        "apart in the second dimension": ([(0, 16), (0, 8)], [(0, 16), (24, 32)]),
        "neighbors, which touch": ([(0, 16), (0, 64)], [(16, 32), (0, 64)]),
        "one dimension": ([(0, 48)], [(32, 64)]),
    },
    overlap,
    suspects={
        lambda a, b: common(a, b) if all(x <= y for x, y in common(a, b)) else None: "boxes that touch have no element in "
        "common: stop isn't part of a box.",
        lambda a, b: common(a, b) if any(x < y for x, y in common(a, b)) else None: "boxes must overlap in every dimension.",
        lambda a, b: common(a, b): "a box without elements isn't one: where start isn't less than stop, return None.",
        lambda a, b: [(min(p, q), max(s, t)) for (p, s), (q, t) in zip(a, b)]: "this is the smallest box around both. The common one "
        "begins at the later start, and ends at the earlier stop.",
    },
    thought="in each dimension, the common part begins at the later start, and ends at the earlier stop.",
    praise="[(0, 48)] and [(32, 64)] have {} in common.",
)

# --- usable -------------------------------------------------------------------------------


def young(samples, newest, most, of=min):
    return [k for k, versions in enumerate(samples) if versions and newest - of(versions) <= most]


USABLE = valued(
    "usable",
    {
        "one version each": ([[3, 3], [4, 4], [5]], 5, 1),
        "weights that changed within an answer": ([[2, 2, 5, 5], [4, 5], [5, 5]], 5, 1),
        "an empty sample": ([[], [7, 7]], 7, 0),
        "none": ([[1], [2]], 9, 3),
        "all": ([[6, 7], [7], [5, 6, 7]], 7, 2),
        "on the limit": ([[2, 3], [1, 3]], 4, 2),
    },
    young,
    suspects={
        lambda samples, newest, most: young(samples, newest, most, max): "a sample is as old as its oldest token, and not as its newest.",
        lambda samples, newest, most: [
            k for k, versions in enumerate(samples) if versions and newest - min(versions) < most
        ]: "at most `most` versions behind: a sample on the limit counts.",
        lambda samples, newest, most: [samples[k] for k in young(samples, newest, most)]: "return the indices, not the samples.",
        lambda samples, newest, most: sorted(
            {*young(samples, newest, most), *(k for k, versions in enumerate(samples) if not versions)}
        ): "an empty sample isn't usable.",
    },
    thought="a sample's age is newest minus the version of its oldest token.",
    praise="On the limit, the usable ones are {}.",
)

TASKS = (FASTEST, MERGE_SHARES, OVERLAP_BOX, USABLE)
