"""A schedule without the names of its chunks: who sends how much to whom, and how often in a row.

That is all a price depends on, and it is small where an algorithm is regular: the ring
repeats one step 2 (N - 1) times.  So the regular algorithms are written down here for any
number of ranks, without making their schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Callable, Iterator, NamedTuple

import numpy as np

from .algorithms import doublings, need_positive, ring_all_gather
from .model import Message
from .reductions import (
    double_tree_all_reduce,
    double_tree_names,
    doubling_all_reduce,
    hierarchical_all_reduce,
    largest_power_of_two,
    multi_ring_all_reduce,
    rabenseifner_all_reduce,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
    tree_links,
    whole_nodes,
)
from .schedule import Schedule

MAX_UNROLLED = 2048  # ranks of a schedule that is made in full


class Phase(NamedTuple):
    """One step, done `times` times in a row.  Arrays have one entry a message.

    ring: the number of the ring that each message is part of, where what goes round is passed
        on: in every step each rank sends what came in the step before.  None elsewhere.
    """

    times: int
    source: np.ndarray  # ranks
    target: np.ndarray
    share: np.ndarray  # of the whole buffer S
    adds: np.ndarray  # bool
    ring: np.ndarray | None = None


@dataclass(frozen=True, repr=False)
class Outline:
    """The phases of an algorithm; they are made one by one, each time they are asked for."""

    collective: str
    name: str
    world_size: int
    make: Callable[[], Iterator[Phase]]

    def __iter__(self) -> Iterator[Phase]:
        return self.make()

    def __repr__(self) -> str:
        return f"{self.collective} by {self.name}, {self.world_size} ranks"


def outline(what: Schedule | Callable[..., Schedule], *args, **kwargs) -> Outline:
    """The outline of a schedule; or of an algorithm, as in `outline(ring_all_reduce, 16384)`.

    Algorithms with an outline of their own take any number of ranks: the rings, doubling,
    Rabenseifner, the trees, the hierarchical one.  Of the others the schedule is made.
    Raises ValueError for more than 2048 ranks of those, and whatever the algorithm itself raises.
    """
    if isinstance(what, Schedule):
        return Outline(what.collective, what.name, what.world_size, lambda: _unrolled(what))
    if what in _REGULAR:
        return _REGULAR[what](*args, **kwargs)
    n = args[0] if args else kwargs.get("n", 0)
    if n > MAX_UNROLLED:
        names = ", ".join(f.__name__ for f in _REGULAR)
        raise ValueError(
            f"{what.__name__} of {n} ranks is too long to write out; at most {MAX_UNROLLED}. At any size: {names}."
        )
    return outline(what(*args, **kwargs))


def _unrolled(s: Schedule) -> Iterator[Phase]:
    steps = (sorted(step, key=_what) for step in s.steps if step)  # a step without messages takes no time
    for rows, same in groupby(steps, lambda step: [_what(m) for m in step]):
        alike = list(same)
        source, target, chunks, adds = map(np.array, zip(*rows))
        yield Phase(len(alike), source, target, chunks / s.cuts, adds, _passed_on(alike))


def _what(m: Message) -> tuple:
    """All of a message but which chunks it carries."""
    return m.source, m.target, len(m.chunks), m.adds


def _passed_on(steps: list[list[Message]]) -> np.ndarray | None:
    """The rings of steps that are alike; None if some rank sends in the second what did not come in the first."""
    if len(steps) < 2:
        return None
    sends = {(m.source, m.chunks): k for k, m in enumerate(steps[1])}
    next_ = [sends.get((m.target, m.chunks)) for m in steps[0]]
    if None in next_ or len(set(next_)) < len(next_):
        return None
    ring, rings = [-1] * len(next_), 0
    for k in range(len(ring)):
        rings += ring[k] < 0
        while ring[k] < 0:
            ring[k], k = rings - 1, next_[k]
    return np.array(ring)


def _same(times: int, source, target, share: float, adds, ring=None) -> Phase:
    """A phase whose messages are all of one size."""
    return Phase(times, source, target, np.full(len(source), share), np.full(len(source), adds), ring)


# --- the regular ones ---------------------------------------------------------------------


def _ring(n: int, name: str = "all_reduce") -> Outline:
    def make():
        ranks = np.arange(n)
        for half, adds in (("reduce_scatter", True), ("all_gather", False)):
            if n > 1 and name in ("all_reduce", half):
                yield _same(n - 1, ranks, (ranks + 1) % n, 1 / n, adds, np.zeros(n, int))

    return Outline(name, "ring", n, make)


def _multi_ring(n: int, node: int) -> Outline:
    nodes = whole_nodes(n, node)

    def make():
        m, i = np.arange(nodes)[:, None], np.arange(node)
        rings = [(m * node + (first - m + i) % node).ravel() for first in range(node)]
        source, target = np.concatenate(rings), np.concatenate([np.roll(ring, -1) for ring in rings])
        for adds in (True, False) if n > 1 else ():
            yield _same(n - 1, source, target, 1 / (n * node), adds, np.arange(node).repeat(n))

    return Outline("all_reduce", f"{node} ring{'s' * (node > 1)}", n, make)


def _hierarchical(n: int, node: int) -> Outline:
    nodes = whole_nodes(n, node)

    def make():
        ranks = np.arange(n)
        inside = ranks // node * node + (ranks + 1) % node
        if node > 1:
            yield _same(node - 1, ranks, inside, 1 / node, True, ranks // node)
        for adds in (True, False) if nodes > 1 else ():
            yield _same(nodes - 1, ranks, (ranks + node) % n, 1 / n, adds, ranks % node)
        if node > 1:
            yield _same(node - 1, ranks, inside, 1 / node, False, ranks // node)

    return Outline("all_reduce", f"rings in and between nodes of {node}", n, make)


def _folded(n: int, p: int, steps: list[tuple[int, float, bool]], name: str) -> Outline:
    """Exchanges at (distance, share, adds) of p ranks, for n ranks: see reductions._folded."""

    def make():
        rest, ranks = np.arange(p, n), np.arange(p)
        if n > p:
            yield _same(1, rest, rest - p, 1.0, True)
        for distance, share, adds in steps:
            yield _same(1, ranks, ranks ^ distance, share, adds)
        if n > p:
            yield _same(1, rest - p, rest, 1.0, False)

    return Outline("all_reduce", name, n, make)


def _doubling(n: int) -> Outline:
    p = largest_power_of_two(n)
    return _folded(n, p, [(d, 1.0, True) for d in doublings(p)], "recursive doubling")


def _rabenseifner(n: int) -> Outline:
    p = largest_power_of_two(n)
    down = [(d, d / p, True) for d in reversed(doublings(p))]
    up = [(d, d / p, False) for d in doublings(p)]
    return _folded(n, p, down + up, "Rabenseifner's halving and doubling")


def _tree(n: int) -> Outline:
    def make():
        for adds, distances in ((True, reversed(doublings(n))), (False, doublings(n))):
            for d in distances:
                above = np.arange(min(d, n - d))
                yield _same(1, above + d if adds else above, above if adds else above + d, 1.0, adds)

    return Outline("all_reduce", "binomial tree", n, make)


def _double_tree(n: int, pieces: int = 4, node: int = 1) -> Outline:
    need_positive(pieces)
    nodes = whole_nodes(n, node)

    def make():
        if n < 2:
            return
        place, above, up, down = np.array(tree_links(nodes, node)).T
        edges = []
        for name in map(np.array, double_tree_names(nodes, node)):
            edges.append((name[place], name[above], up, np.ones(n - 1, bool)))
            edges.append((name[above], name[place], down, np.zeros(n - 1, bool)))
        source, target, start, adds = map(np.concatenate, zip(*edges))
        # An edge is busy from its start for as many steps as there are pieces.
        changes = np.unique(np.concatenate([start, start + pieces]))
        for k, until in zip(changes, changes[1:]):
            busy = (start <= k) & (k < start + pieces)
            yield _same(int(until - k), source[busy], target[busy], 0.5 / (node * pieces), adds[busy])

    between = f" between nodes of {node}" if node > 1 else ""
    return Outline("all_reduce", "double binary tree" + between, n, make)


_REGULAR = {
    ring_all_reduce: _ring,
    ring_reduce_scatter: lambda n: _ring(n, "reduce_scatter"),
    ring_all_gather: lambda n: _ring(n, "all_gather"),
    multi_ring_all_reduce: _multi_ring,
    hierarchical_all_reduce: _hierarchical,
    doubling_all_reduce: _doubling,
    rabenseifner_all_reduce: _rabenseifner,
    tree_all_reduce: _tree,
    double_tree_all_reduce: _double_tree,
}
