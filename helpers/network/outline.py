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

from ..schedule import (
    Schedule,
    double_tree_all_reduce,
    doubling_all_reduce,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
    rabenseifner_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from ..schedule.algorithms import doublings, need_positive
from ..schedule.reductions import double_tree_names, largest_power_of_two, tree_parents, tree_times, whole_nodes

MOST_UNROLLED = 2048  # ranks of a schedule that is made in full


class Phase(NamedTuple):
    """One step, done `times` times in a row.  Arrays have one entry a message."""

    times: int
    source: np.ndarray  # ranks
    target: np.ndarray
    share: np.ndarray  # of the whole buffer S
    adds: np.ndarray  # bool


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
    if n > MOST_UNROLLED:
        names = ", ".join(f.__name__ for f in _REGULAR)
        raise ValueError(
            f"{what.__name__} of {n} ranks is too long to write out; at most {MOST_UNROLLED}. At any size: {names}."
        )
    return outline(what(*args, **kwargs))


def _unrolled(s: Schedule) -> Iterator[Phase]:
    steps = (sorted((m.source, m.target, len(m.chunks), m.adds) for m in step) for step in s.steps)
    for rows, alike in groupby(steps):
        if rows:  # a step without messages takes no time
            yield _phase(len(list(alike)), rows, s.cuts)


def _phase(times: int, rows: list[tuple], cuts: int) -> Phase:
    source, target, chunks, adds = map(np.array, zip(*rows))
    return Phase(times, source, target, chunks / cuts, adds)


def _same(times: int, source, target, share: float, adds: bool) -> Phase:
    """A phase whose messages are all alike."""
    return Phase(times, source, target, np.full(len(source), share), np.full(len(source), adds))


# --- the regular ones ---------------------------------------------------------------------


def _ring(n: int, name: str = "all_reduce") -> Outline:
    def make():
        ranks = np.arange(n)
        for half, adds in (("reduce_scatter", True), ("all_gather", False)):
            if n > 1 and name in ("all_reduce", half):
                yield _same(n - 1, ranks, (ranks + 1) % n, 1 / n, adds)

    return Outline(name, "ring", n, make)


def _multi_ring(n: int, node: int) -> Outline:
    nodes = whole_nodes(n, node)

    def make():
        m, i = np.arange(nodes)[:, None], np.arange(node)
        rings = [(m * node + (first - m + i) % node).ravel() for first in range(node)]
        source, target = np.concatenate(rings), np.concatenate([np.roll(ring, -1) for ring in rings])
        for adds in (True, False) if n > 1 else ():
            yield _same(n - 1, source, target, 1 / (n * node), adds)

    return Outline("all_reduce", f"{node} ring{'s' * (node > 1)}", n, make)


def _hierarchical(n: int, node: int) -> Outline:
    nodes = whole_nodes(n, node)

    def make():
        ranks = np.arange(n)
        inside = ranks // node * node + (ranks + 1) % node
        if node > 1:
            yield _same(node - 1, ranks, inside, 1 / node, True)
        for adds in (True, False) if nodes > 1 else ():
            yield _same(nodes - 1, ranks, (ranks + node) % n, 1 / n, adds)
        if node > 1:
            yield _same(node - 1, ranks, inside, 1 / node, False)

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


def _double_tree(n: int, pieces: int = 4) -> Outline:
    need_positive(pieces)

    def make():
        if n < 2:
            return
        parent = tree_parents(n)
        rank, up, down = np.array(tree_times(parent)).T
        above = np.array(parent)[rank]
        edges = []
        for name in map(np.array, double_tree_names(n)):
            edges.append((name[rank], name[above], up, np.ones(n - 1, bool)))
            edges.append((name[above], name[rank], down, np.zeros(n - 1, bool)))
        source, target, start, adds = map(np.concatenate, zip(*edges))
        # An edge is busy from its start for as many steps as there are pieces.
        changes = np.unique(np.concatenate([start, start + pieces]))
        for k, until in zip(changes, changes[1:]):
            busy = (start <= k) & (k < start + pieces)
            yield Phase(int(until - k), source[busy], target[busy], np.full(busy.sum(), 0.5 / pieces), adds[busy])

    return Outline("all_reduce", "double binary tree", n, make)


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
