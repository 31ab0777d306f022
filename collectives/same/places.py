"""Where in a tensor of one process a rank's part is, found by its values: whole, cut along dimensions, or flat."""

from itertools import product
from typing import NamedTuple

import torch


class Region(NamedTuple):
    """The part of a tensor that a rank holds."""

    index: tuple[tuple[int, ...] | None, ...]  # for each dimension, the positions; None: all
    flat: tuple[int, int] | None = None  # instead: first element and number of elements, of the flattened tensor
    padding: int = 0  # zeros behind the elements of a flat part

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """This part of a tensor."""
        if self.flat:
            start, count = self.flat
            part = whole.reshape(-1)[start : start + count]
            return torch.cat([part, part.new_zeros(self.padding)]) if self.padding else part
        for dim, positions in enumerate(self.index):
            if positions is not None:
                whole = whole.index_select(dim, torch.tensor(positions, dtype=torch.long))
        return whole

    @property
    def is_whole(self) -> bool:
        return self.flat is None and all(positions is None for positions in self.index)

    def text(self, shape: tuple[int, ...]) -> str:
        """'[0:4, :]'; '' of a whole tensor."""
        if self.is_whole:
            return ""
        if self.flat:
            return f"[{self.flat[0]}:{sum(self.flat)} of {torch.Size(shape).numel()}]"
        return f"[{', '.join(map(_positions, self.index))}]"


def _positions(positions: tuple[int, ...] | None) -> str:
    if positions is None:
        return ":"
    first, last = positions[0], positions[-1]
    if positions == tuple(range(first, last + 1)):
        return f"{first}:{last + 1}"
    step = positions[1] - first if len(positions) > 1 else 1
    if step > 0 and positions == tuple(range(first, last + 1, step)):
        return f"{first}:{last + 1}:{step}"
    return f"{first}, ..., {last}"


def block(start: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...]) -> Region:
    """The place of a contiguous block."""
    return Region(tuple(None if n == w else tuple(range(a, a + n)) for a, n, w in zip(start, shape, whole)))


def places(part: torch.Tensor, whole: torch.Tensor) -> list[Region]:
    """All places at which a tensor has these values, bit for bit; a few likely ones where values repeat."""
    if part.dtype != whole.dtype or not part.numel() and part.shape != whole.shape:
        return []
    if part.shape == whole.shape:
        return [Region((None,) * whole.dim())] if torch.equal(part, whole) else []
    if part.dim() != whole.dim():
        return _flat(part, whole) if part.dim() == 1 else []
    cut = [d for d in range(whole.dim()) if part.shape[d] != whole.shape[d]]
    if any(part.shape[d] > whole.shape[d] for d in cut):
        return _flat(part, whole) if part.dim() == 1 else []
    if len(cut) == 1:
        return _along(cut[0], part, whole) or (_flat(part, whole) if part.dim() == 1 else [])
    starts = product(*(range(0, whole.shape[d] - part.shape[d] + 1) for d in cut))
    found = []
    corner = part[(0,) * part.dim()]
    for start in starts:
        at = [0] * whole.dim()
        for d, a in zip(cut, start):
            at[d] = a
        if whole[tuple(at)] == corner:
            place = block(tuple(at), tuple(part.shape), tuple(whole.shape))
            if torch.equal(place.of(whole), part):
                found.append(place)
    return found[:64]


def _along(d: int, part: torch.Tensor, whole: torch.Tensor) -> list[Region]:
    """Places of a part that is cut along one dimension, in any order of positions."""
    at: dict[bytes, list[int]] = {}
    for k, piece in enumerate(whole.unbind(d)):
        at.setdefault(_bytes(piece), []).append(k)
    options = [at.get(_bytes(piece), []) for piece in part.unbind(d)]
    if not all(options):
        return []

    def place(positions) -> Region:
        return Region(tuple(tuple(positions) if k == d else None for k in range(whole.dim())))

    n = len(options)
    if all(len(option) == 1 for option in options):
        return [place(option[0] for option in options)]
    starts = [a for a in range(whole.shape[d] - n + 1) if all(a + k in option for k, option in enumerate(options))]
    even = [a for a in starts if a % n == 0]
    return [place(range(a, a + n)) for a in [*even, *(a for a in starts if a not in even)][:64]]


def _flat(part: torch.Tensor, whole: torch.Tensor) -> list[Region]:
    """Places of a part of the flattened tensor, which may have zeros behind it."""
    whole = whole.reshape(-1)
    nonzero = part.nonzero()
    least = int(nonzero[-1]) + 1 if len(nonzero) else 0
    if not least:
        return []
    found = []
    for a in (whole == part[0]).nonzero().flatten().tolist():
        count = min(len(part), len(whole) - a)
        if count >= least and torch.equal(whole[a : a + count], part[:count]):
            found.append(Region((), (a, count), len(part) - count))
    return found[:64]


def _bytes(piece: torch.Tensor) -> bytes:
    return piece.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
