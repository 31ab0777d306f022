"""update_weights(mine, has, needs): weights from one layout to a different one, each number once."""

from functools import cache

import torch

from helpers.exercise import Budget, Case, Suspect, Task

TENSORS = {  # shape, and the dimension along which tensor parallelism cuts it
    "embed": ((12, 5), 0),
    "block0.norm": ((1, 5), None),
    "block0.up": ((16, 5), 0),
    "block0.down": ((5, 16), 1),
    "block1.norm": ((1, 5), None),
    "block1.up": ((16, 5), 0),
    "block1.down": ((5, 16), 1),
    "head": ((12, 5), 0),
}
# Per kind of case: whether the trainer has stages, the sampler's copies (0: one per rank), and whether its ranks are others.
LAYOUTS = {
    "from stages": (True, 1, False),
    "fewer parts": (False, 0, False),
    "apart": (True, 1, True),
    "two copies": (False, 2, False),
}
CASES = (
    Case(2, "from stages"),
    Case(2, "apart"),
    Case(4, "from stages"),
    Case(4, "fewer parts", late=1),
    Case(4, "apart"),
    Case(4, "two copies"),
    Case(3, "from stages", late=2),
    Case(5, "fewer parts"),
    Case(6, "apart", late=0),
    Case(6, "two copies"),
    Case(7, "from stages"),
    Case(8, "apart"),
    Case(8, "two copies"),
    Case(1, "from stages"),
)


def box_of(name, part, parts):
    shape, dim = TENSORS[name]
    box = [(0, size) for size in shape]
    if dim is not None:
        box[dim] = (part * shape[dim] // parts, (part + 1) * shape[dim] // parts)
    return box


def layout(ranks, parts, staged):
    """Per rank a list of (name, box): tensors in `parts`, and the ranks that are left as stages, or as copies."""
    names, stages = list(TENSORS), len(ranks) // parts if staged else 1
    held = {}
    for place, rank in enumerate(ranks):
        stage = place // parts % stages
        mine = names[stage * len(names) // stages : (stage + 1) * len(names) // stages]
        held[rank] = [(name, box_of(name, place % parts, parts)) for name in mine]
    return held


@cache
def layouts(case):
    """(has, needs): per rank, a list of (name, box)."""
    n = case.world_size
    stages, copies, apart = LAYOUTS[case.kind]
    trainers = range(n // 2) if apart else range(n)
    samplers = range(n // 2, n) if apart else range(n)
    half = 2 if len(trainers) % 2 == 0 else 1
    has = layout(trainers, half if stages else len(trainers), staged=True)
    needs = layout(samplers, max(1, len(samplers) // (copies or len(samplers))), staged=False)
    return [has.get(rank, []) for rank in range(n)], [needs.get(rank, []) for rank in range(n)]


def rows_of(boxes):
    """The boxes of a rank as the task has them: a row of five integers each."""
    rows = [[list(TENSORS).index(name), *box[0], *box[1]] for name, box in boxes]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 5)


def boxes_of(rows):
    return [(list(TENSORS)[k], [(top, bottom), (left, right)]) for k, top, bottom, left, right in rows.tolist()]


def shape_of(box):
    return [stop - start for start, stop in box]


def flat(pieces):
    return torch.cat([torch.empty(0), *(piece.flatten() for piece in pieces)])


def arguments(d):
    whole = {
        name: d.numbers(torch.Size(shape).numel(), common=True).float().view(shape)
        for name, (shape, _) in TENSORS.items()
    }
    has, needs = layouts(d.case)
    mine = flat(whole[name][tuple(slice(*side) for side in box)] for name, box in has[d.rank])
    return mine, [rows_of(boxes) for boxes in has], [rows_of(boxes) for boxes in needs]


def pieces_of(mine, boxes):
    return mine.split([torch.Size(shape_of(box)).numel() for _, box in boxes]) if boxes else []


def wholes(args, only=None):
    """name -> the tensor, from all ranks' pieces; zeros where it is unknown.  only: the one rank whose pieces count."""
    whole = {name: torch.zeros(shape) for name, (shape, _) in TENSORS.items()}
    for rank, (mine, has, _) in enumerate(args):
        boxes = boxes_of(has[rank])
        for (name, box), piece in zip(boxes, pieces_of(mine, boxes)):
            if only in (None, rank):
                whole[name][tuple(slice(*side) for side in box)] = piece.view(shape_of(box))
    return whole


def updated(args, own=False):
    found = []
    for rank, (*_, needs) in enumerate(args):
        whole = wholes(args, rank if own else None)
        found.append(flat(whole[name][tuple(slice(*side) for side in box)] for name, box in boxes_of(needs[rank])))
    return found


def backward(rows):
    """The boxes of these rows, the last tensor first."""
    return sorted(boxes_of(rows), key=lambda named: -list(TENSORS).index(named[0]))


def missing(args):
    """Bytes that each rank needs and doesn't hold."""
    known = []
    for rank, (*_, needs) in enumerate(args):
        marked = {name: torch.zeros(shape) for name, (shape, _) in TENSORS.items()}
        for name, box in boxes_of(args[0][1][rank]):
            marked[name][tuple(slice(*side) for side in box)] = 1
        here = flat(marked[name][tuple(slice(*side) for side in box)] for name, box in boxes_of(needs[rank]))
        known.append(4 * int((here == 0).sum()))
    return known


def budget(case, args):
    return Budget(
        "each rank receives what it needs and doesn't have, once, in at most two calls",
        received=missing(args),
        calls=[2] * case.world_size,
    )


TASK = Task(
    "update_weights",
    CASES,
    arguments,
    updated,
    budget,
    needs=lambda case, args: missing(args),
    new=True,
    parameters=("mine", "has", "needs"),
    suspects=(
        Suspect(
            lambda args: [mine for mine, *_ in args],
            "these are the rank's own pieces. Return what needs[rank] lists.",
        ),
        Suspect(
            lambda args: updated(args, own=True),
            "only what the rank had itself is in it. What others hold never came.",
        ),
        Suspect(
            lambda args: [flat(wholes(args).values())] * len(args),
            "these are whole tensors. Rank r returns the boxes of needs[r], flattened, end to end.",
        ),
        Suspect(
            lambda args: [
                flat(wholes(args)[name][tuple(slice(*side) for side in box)] for name, box in backward(needs[rank]))
                for rank, (*_, needs) in enumerate(args)
            ],
            "the boxes are right, and in a different order than needs[rank] has them.",
        ),
    ),
    thoughts={
        "values": "what s sends to d is, for each box that d needs, its overlap with a box of the same name that s has. Both sides must "
        "go through the overlaps in the same order, and cut them relative to the start of their own box.",
        "received": "the result is right, but ranks receive numbers that they don't need, or that they have, or the same ones twice. If "
        "several ranks hold a box, one of them sends it, and a rank that holds it itself sends to itself.",
        "calls": "the result is right. One all_to_all_single with split sizes carries all overlaps of all ranks.",
        "Mismatch": "what rank s sends to d must be what d expects from s. Both compute it from the same has and needs.",
        "RankFailed": "some ranks have nothing, and some need nothing: torch.cat of an empty list fails, so begin it with an empty tensor.",
    },
)
