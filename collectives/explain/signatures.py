"""Whether what ranks pass to one collective fits together, by what their dumps say of it."""

from bisect import bisect_left
from itertools import chain
from math import prod
from typing import Mapping, NamedTuple

from ..record.collectives import of
from .dump import Launch, Signature

UNTOLD = "call"  # of which a log does not say what it is
FEW = 3  # calls by which a rank may have slipped against the others
ENOUGH = 2  # calls in a row that must agree, to say so


def family(op: str) -> str:
    """The collective that an op is a form of: all_gather for "all_gather_single"."""
    return op.removesuffix("_single").removesuffix("_coalesced")


def flaw(one: Signature, other: Signature) -> str | None:
    """What differs between two ranks' parts of one collective: "collective", "dtype", "elements"; None if they fit.

    Roots and reduce ops are in no dump. An all_to_all, and a gather or scatter of the ranks that are not its root, may
    differ in size.
    """
    if UNTOLD in (one.op, other.op):
        return None
    if len(one.parts) != len(other.parts) or family(one.op) != family(other.op):
        return "collective"
    if one.parts:
        return next((found for pair in zip(one.parts, other.parts) if (found := flaw(*pair))), None)
    if one.dtypes and other.dtypes and one.dtypes != other.dtypes:
        return "dtype"
    return "elements" if elements(one) != elements(other) else None


def elements(what: Signature) -> int | None:
    """Elements that must be the same on all ranks of a collective; None where they need not be."""
    collective = of(family(what.op))
    if collective.in_place:
        return _count(what.sizes or what.results)
    if "own" not in (collective.gives, collective.gets):
        return None
    own, row = (what.sizes, what.results) if collective.gives == "own" else (what.results, what.sizes)
    uneven = len(set(row)) > 1 or len(own) != 1
    return None if uneven and collective.root is None else _count(own)


def _count(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(map(prod, shapes))


def camps(parts: Mapping[int, Signature]) -> list[list[int]]:
    """The ranks whose parts fit together, each time."""
    found: list[list[int]] = []
    for rank, what in parts.items():
        camp = next((camp for camp in found if not flaw(parts[camp[0]], what)), None)
        if camp is None:
            found.append([rank])
        else:
            camp.append(rank)
    return found


class Lane(NamedTuple):
    """The calls of a rank that pair up, k-th with k-th, with those of its peers."""

    numbers: list[int]
    launches: list[Launch]

    def at(self, number: int) -> Launch | None:
        place = bisect_left(self.numbers, number)
        return self.launches[place] if place < len(self.numbers) and self.numbers[place] == number else None


class Slip(NamedTuple):
    """A rank's calls are the others' that come later, or earlier, from some call on.

    by: calls that it left out; below 0, made besides.  first: the first of these.
    """

    by: int
    first: Launch


def slip(own: Lane, reference: Lane) -> Slip | None:
    """How one lane has slipped against another one.

    Calls are compared by what is passed and by the line that made them, without which nothing is said.
    """
    if not (_is_dense(own) and _is_dense(reference)):
        return None
    begin = max(own.numbers[0], reference.numbers[0])
    mine, theirs = own.launches[begin - own.numbers[0] :], reference.launches[begin - reference.numbers[0] :]
    alike = [_is_same(*pair) for pair in zip(mine, theirs)]
    if all(alike):
        return None
    at = alike.index(False)
    for by in chain.from_iterable((n, -n) for n in range(1, FEW + 1)):
        shifted = list(zip(mine[at + max(0, -by) :], theirs[at + max(0, by) :]))
        if len(shifted) >= ENOUGH and all(_is_same(*pair) for pair in shifted):
            return Slip(by, theirs[at] if by > 0 else mine[at])
    return None


def _is_same(one: Launch, other: Launch) -> bool:
    return one.what == other.what and one.place == other.place and one.place is not None


def _is_dense(lane: Lane) -> bool:
    return lane.numbers[-1] - lane.numbers[0] == len(lane.numbers) - 1
