"""Placement: how the ranks share each tensor, read off the pieces that they hold, and in words.

Which parallelism made the pieces isn't known and doesn't matter: tensor parallel columns, ZeRO's rows, a stage's layers
and an expert on two ranks are all found by the same table, PLACEMENTS.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Callable, NamedTuple, Sequence

from ..format import aligned, span
from .modules import layer_of
from .observer import STATES, Piece
from .view import alike, said_layers

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


@dataclass(frozen=True)
class Owners:
    """The ranks that hold each slice of one tensor."""

    whole: Dims  # of the tensor
    ranks: dict[Slice, list[int]]  # who holds each slice
    partial: bool  # the tensor is the sum of what the ranks hold
    world_size: int

    @property
    def replicas(self) -> list[int]:
        """The ranks that hold the whole tensor, where no rank holds another slice of it."""
        return next((r for s, r in self.ranks.items() if s.shape == self.whole and len(self.ranks) == 1), [])

    @property
    def dimension(self) -> int | None:
        """The one dimension along which all slices are cut; None where there is none, or a start isn't known."""
        n = len(self.whole)
        cuts = {d for s in self.ranks for d in range(n) if len(s.shape) == n and s.shape[d] != self.whole[d]}
        return cuts.pop() if len(cuts) == 1 and all(s.start is not None for s in self.ranks) else None


def owners(pieces: Sequence[tuple[int, Piece]], world_size: int) -> Owners:
    """The Owners of one tensor.  pieces: (rank, piece), for every rank that holds a part."""
    pieces = [(rank, piece) for rank, piece in pieces if piece.nbytes]
    slices = dict.fromkeys((rank, Slice(piece.start, piece.shape)) for rank, piece in pieces)
    whole = pieces[0][1].whole if pieces else ()
    return Owners(whole, alike(slices), any(piece.partial for _, piece in pieces), world_size)


def _everywhere(o: Owners) -> str:
    return "whole on each" if len(o.replicas) == o.world_size else f"whole on {span(o.replicas)}"


def _partial(o: Owners) -> str:
    return f"addends on {span(sorted({rank for ranks in o.ranks.values() for rank in ranks}))}"


def _sharded(o: Owners) -> str:
    """'rows in 4', 'columns in 2, each on 2 ranks', 'rows in 3 (3, 3, 2)'"""
    d = o.dimension
    slices = sorted(o.ranks, key=lambda s: s.start[d])
    sizes = [s.shape[d] for s in slices]
    first = [o.ranks[s][0] for s in slices]
    copies = max(map(len, o.ranks.values()))
    word = "elements" if len(o.whole) == 1 else ("rows", "columns")[d] if d < 2 else f"dimension {d}"
    words = f"{word} in {len(sizes)}"
    if len(set(sizes)) > 1:
        words += f" ({', '.join(map(str, sizes))})"
    if copies == 1 and first != sorted(first):
        words += f": ranks {', '.join(map(str, first))}"
    if sum(sizes) != o.whole[d]:
        words += f", {sum(sizes)} of {o.whole[d]} held"
    return words if copies == 1 else f"{words}, each on {copies} ranks"


def _listed(o: Owners) -> str:
    """'0: [0:4, 0:3]; 1: [0:4, 3:6]'"""
    return "; ".join(f"{span(r)}: {s.text(o.whole)}" for s, r in sorted(o.ranks.items(), key=lambda entry: entry[1]))


PLACEMENTS: dict[str, tuple[Callable[[Owners], bool], Callable[[Owners], str]]] = {
    # the field's name: (whether it applies, its words); the first that applies
    "absent": (lambda o: not o.ranks, lambda o: "-"),
    "partial": (lambda o: o.partial, _partial),
    "replicated": (lambda o: bool(o.replicas), _everywhere),
    "sharded": (lambda o: o.dimension is not None, _sharded),
    "in blocks": (lambda o: True, _listed),
}


def cut(pieces: Sequence[tuple[int, Piece]], world_size: int) -> str:
    """How ranks share one tensor, in words: 'whole on each', 'rows in 4', 'columns in 2, each on 2 ranks'.

    pieces: (rank, piece), for every rank that holds a part.
    """
    tensor = owners(pieces, world_size)
    return next(words(tensor) for applies, words in PLACEMENTS.values() if applies(tensor))


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
    cuts = {name: [cut(holders[name, kind], len(pieces)) for kind in kinds] for name in shapes}
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
    rows, above = [("layer", "tensor", "shape", *kinds)], ""
    for line, names in lines.items():
        layer = said_layers(names)
        rows.append(("" if layer == above else layer, *line))
        above = layer
    return aligned(rows)
