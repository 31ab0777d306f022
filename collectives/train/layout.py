"""Layout: the boxes in which each rank's part of each tensor is drawn, as numbers.

A tensor is drawn as the matrix it is, rows from top to bottom; further dimensions count as columns.
"""

from collections import Counter, defaultdict
from math import prod
from typing import NamedTuple, Sequence

from .modules import layer_of
from .observer import Piece

MAX_TENSORS = 30  # more are drawn as one box per layer

Box = tuple[float, float, float, float]  # left, top, width, height, as shares of the tensor
UNIT_BOX: Box = (0.0, 0.0, 1.0, 1.0)  # of a tensor


class Layout(NamedTuple):
    """The ranks' boxes of each tensor or layer, for kinds that are cut alike."""

    kinds: list[str]  # "optimizer × 2" for two states
    held: list[dict[str, list[Box]]]  # per rank: tensor or layer -> the boxes it holds
    whole: dict[str, int]  # tensor or layer -> bytes of the whole

    def copies(self) -> Counter[tuple[str, Box]]:
        """How many ranks hold each box of each tensor or layer."""
        return Counter((name, box) for held in self.held for name, boxes in held.items() for box in set(boxes))


def layouts(pieces: Sequence[Sequence[Piece]], kinds: Sequence[str]) -> list[Layout]:
    """The Layouts of these kinds, one for all that are cut alike.  pieces: per rank."""
    distinct: list[Layout] = []
    for kind in kinds:
        held: list[dict[str, list[Box]]] = [defaultdict(list) for _ in pieces]
        whole: dict[str, int] = {}
        tensors: Counter[tuple[int, str]] = Counter()
        for rank, row in enumerate(pieces):
            for piece in (piece for piece in row if piece.kind == kind):
                tensors[rank, piece.name] += 1
                count = prod(piece.shape)
                whole[piece.name] = prod(piece.whole) * (piece.nbytes // count if count else 4)  # float32 if empty
                box = _box(piece, rank)
                if box[2] and box[3] and box not in held[rank][piece.name]:
                    held[rank][piece.name].append(box)
        states = max(tensors.values(), default=0)
        word = f"{kind} × {states}" if states > 1 else kind
        same = [layout for layout in distinct if (layout.held, layout.whole) == (held, whole)]
        if same:
            same[0].kinds.append(word)
        elif whole:
            distinct.append(Layout([word], held, whole))
    if len({piece.name for row in pieces for piece in row}) > MAX_TENSORS:
        return [_by_layer(layout) for layout in distinct]
    return distinct


def _box(piece: Piece, rank: int) -> Box:
    """A piece's box; one whose place isn't known is drawn in the order of the ranks."""
    if piece.start is None or len(piece.shape) != len(piece.whole):
        share = min(1.0, prod(piece.shape) / prod(max(n, 1) for n in piece.whole))
        return (0.0, min(rank * share, 1 - share), 1.0, share)
    if not piece.whole:
        return UNIT_BOX
    top, high = piece.start[0] / max(piece.whole[0], 1), piece.shape[0] / max(piece.whole[0], 1)
    left, wide = 0.0, 1.0
    for start, size, n in zip(piece.start[1:], piece.shape[1:], piece.whole[1:]):
        left, wide = left + wide * start / max(n, 1), wide * size / max(n, 1)
    return (left, top, wide, high)


def _by_layer(layout: Layout) -> Layout:
    """The same with a layer instead of its tensors."""
    total: dict[str, int] = defaultdict(int)
    above: dict[str, int] = {}  # tensor -> bytes of its layer's tensors before it
    for name, nbytes in layout.whole.items():
        above[name] = total[layer_of(name)]
        total[layer_of(name)] += nbytes

    def boxes(layer: str, tensors: dict[str, list[Box]]) -> list[Box]:
        parts = [(box, layout.whole[name]) for name in tensors for box in tensors[name]]
        distinct = {box for box, _ in parts}
        if len(distinct) == 1 and sum(nbytes for _, nbytes in parts) == total[layer]:  # all are cut alike
            return [parts[0][0]]
        if distinct == {UNIT_BOX}:  # some are whole and others not here, experts say: each has its stripe
            return [(0.0, above[name] / total[layer], 1.0, layout.whole[name] / total[layer]) for name in tensors]
        share = sum(box[2] * box[3] * nbytes for box, nbytes in parts) / total[layer]  # a box of the right area
        top = sum(max(box[0], box[1]) * nbytes for box, nbytes in parts) / total[layer]
        return [(0.0, min(top, 1 - share), 1.0, share)]

    held: list[dict[str, list[Box]]] = []
    for row in layout.held:
        layers: dict[str, dict[str, list[Box]]] = defaultdict(dict)
        for name, tensor in row.items():
            layers[layer_of(name)][name] = tensor
        held.append({layer: boxes(layer, tensors) for layer, tensors in layers.items()})
    return Layout(layout.kinds, held, dict(total))
