"""Placement: how the ranks share each tensor, read off the pieces that they hold, and in words.

The parallelism that made the pieces isn't known and doesn't matter: tensor parallel columns, ZeRO's rows, a stage's
layers and an expert on two ranks are all found by the same rules, in `cut`.
"""

from collections import defaultdict
from typing import NamedTuple, Sequence

from ..format import align, span
from .modules import layer_of
from .observer import STATES, Piece
from .view import group_equal, said_layers

Dims = tuple[int, ...]  # a shape, or an index


class Slice(NamedTuple):
    """A part of a tensor."""

    start: Dims | None  # index of its first element in the tensor; None: not known
    shape: Dims

    def text(self, whole: Dims) -> str:
        """'[0:4, :]', or '[4, 6]' where only its shape is known."""
        if self.start is None or len(self.shape) != len(whole):
            return str(list(self.shape))
        ends = zip(self.start, self.shape, whole)
        return f"[{', '.join(':' if size == n else f'{first}:{first + size}' for first, size, n in ends)}]"


def cut_words(pieces: Sequence[tuple[int, Piece]], world_size: int) -> str:
    """The way ranks share one tensor, in words: 'whole on each', 'rows in 4', 'columns in 2, each on 2 ranks'.

    pieces: (rank, piece), for every rank that holds a part.
    """
    held = [(rank, piece) for rank, piece in pieces if piece.nbytes]
    if not held:
        return "-"
    if any(piece.partial for _, piece in held):
        return f"partial sums on {span(sorted({rank for rank, _ in held}))}"
    whole = held[0][1].whole
    holders = group_equal(dict.fromkeys((rank, Slice(piece.start, piece.shape)) for rank, piece in held))
    (first, ranks), *others = holders.items()
    if first.shape == whole and not others:
        return f"whole on {'each' if len(ranks) == world_size else span(ranks)}"
    if all(s.start is not None and len(s.shape) == len(whole) for s in holders):
        dimensions = {d for s in holders for d, n in enumerate(whole) if s.shape[d] != n}
        if len(dimensions) == 1:
            return _cut_along(dimensions.pop(), whole, holders)
    listed = sorted(holders.items(), key=lambda entry: entry[1])
    return "; ".join(f"{span(ranks)}: {s.text(whole)}" for s, ranks in listed)  # '0: [0:4, 0:3]; 1: [0:4, 3:6]'


def _cut_along(d: int, whole: Dims, holders: dict[Slice, list[int]]) -> str:
    """'rows in 4', 'columns in 2, each on 2 ranks', 'rows in 3 (3, 3, 2)'"""
    slices = sorted(holders, key=lambda s: s.start[d])
    sizes = [s.shape[d] for s in slices]
    first = [holders[s][0] for s in slices]
    copies = max(map(len, holders.values()))
    word = "elements" if len(whole) == 1 else ("rows", "columns")[d] if d < 2 else f"dimension {d}"
    words = f"{word} in {len(sizes)}"
    if len(set(sizes)) > 1:
        words += f" ({', '.join(map(str, sizes))})"
    if copies == 1 and first != sorted(first):
        words += f": ranks {', '.join(map(str, first))}"
    if sum(sizes) != whole[d]:
        words += f", {sum(sizes)} of {whole[d]} held"
    return words if copies == 1 else f"{words}, each on {copies} ranks"


def slices_table(pieces: Sequence[Sequence[Piece]], kinds: Sequence[str] = STATES) -> str:
    """A line for each tensor, layers alike together: its shape, and how the ranks share it.

    pieces: per rank.  kinds: a column each, or one for all where every tensor's kinds are shared alike.
    """
    kinds = [kind for kind in kinds if any(piece.kind == kind for held in pieces for piece in held)]
    shapes: dict[str, Dims] = {}
    holders: dict[tuple[str, str], list[tuple[int, Piece]]] = defaultdict(list)
    for rank, held in enumerate(pieces):
        for piece in held:
            shapes.setdefault(piece.name, piece.whole)
            holders[piece.name, piece.kind].append((rank, piece))
    cuts = {name: [cut_words(holders[name, kind], len(pieces)) for kind in kinds] for name in shapes}
    if all(len(set(words)) == 1 for words in cuts.values()):
        kinds, cuts = [", ".join(kinds)], {name: words[:1] for name, words in cuts.items()}
    layers: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, shape in shapes.items():
        layer = layer_of(name)
        layers[layer].append((name[len(layer) :].strip("."), str(list(shape)), *cuts[name]))
    lines: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for layer, tensors in layers.items():
        if len(tensors) > 1 and len({line[2:] for line in tensors}) == 1:
            tensors = [(f"all {len(tensors)}", "", *tensors[0][2:])]
        for line in tensors:
            lines[line].append(layer)
    said = [said_layers(names) for names in lines.values()]
    rows = [("" if layer == above else layer, *line) for line, layer, above in zip(lines, said, ["", *said])]
    return align([("layer", "tensor", "shape", *kinds), *rows])
