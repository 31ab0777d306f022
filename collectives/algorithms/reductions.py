"""The algorithms that add: reduce_scatter, all_reduce.  For reduce, and sources not given here, see data_movement.py."""

from functools import partial
from typing import Callable, Iterator

import numpy as np

from .data_movement import doublings, flat_broadcast, flat_reduce, need_positive, need_power_of_two
from .rounds import Outline, Phase, exchange, one_ring, phase, regular, rings
from .schedule import Schedule

# --- every rank gets its own piece of the sum ---------------------------------------------


@regular
def ring_reduce_scatter(n: int) -> Outline:
    """A sum travels right, and each adds its own on the way: n - 1 steps, (n - 1)/n S per rank."""
    return Outline("reduce_scatter", "ring", n, lambda: [one_ring(n, adds=True)], n)


@regular
def halving_reduce_scatter(n: int) -> Outline:
    """Partners share the work: each gives away the half it will not own, then the half of that: lg n steps."""
    need_power_of_two(n, "recursive halving", "take ring_reduce_scatter")
    distances = doublings(n)[::-1]
    return Outline("reduce_scatter", "recursive halving", n, lambda: (exchange(n, d, True) for d in distances), n)


# --- every rank gets the whole sum --------------------------------------------------------


def naive_all_reduce(n: int) -> Schedule:
    """All send to rank 0, which adds and sends the sum to all: 2 (n - 1) steps, 2 (n - 1) S through one rank."""
    return Schedule("all_reduce", n, flat_reduce(n).steps + flat_broadcast(n).steps, name="gather and send back")


@regular
def tree_all_reduce(n: int) -> Outline:
    """Up a binomial tree and down again: 2 ceil(lg n) steps of the whole buffer."""

    def phases() -> Iterator[Phase]:
        for adds, distances in ((True, reversed(doublings(n))), (False, doublings(n))):
            for d in distances:
                above = np.arange(min(d, n - d))
                yield _phase(above + d, above, adds) if adds else _phase(above, above + d, adds)

    return Outline("all_reduce", "binomial tree", n, phases)


def _phase(source: np.ndarray, target: np.ndarray, adds: bool, chunks: int = 1) -> Phase:
    """A step whose messages carry the whole buffer."""
    return phase(1, source, target, adds, 1.0, lambda k: np.tile(np.arange(chunks), (len(source), 1)))


@regular
def ring_all_reduce(n: int) -> Outline:
    """reduce_scatter, then all_gather, both by ring: 2 (n - 1) steps, 2 (n - 1)/n S per rank, which is the minimum.

    P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009, doi 10.1016/j.jpdc.2008.09.002.
    """
    return Outline("all_reduce", "ring", n, lambda: [one_ring(n, adds=True), one_ring(n, adds=False)], n)


@regular
def multi_ring_all_reduce(n: int, node: int) -> Outline:
    """As many rings as a node has ranks, each with its share of the buffer: every network port of a node works.

    Each ring goes through all ranks of a node, then on to the next node from the rank's own port to the same port
    there.  So does NCCL, which calls a ring a channel.
    """
    nodes = whole_nodes(n, node)

    def phases() -> Iterator[Phase]:
        first, m, i = np.ogrid[:node, :nodes, :node]
        ranks = (m * node + (first - m + i) % node).reshape(node, n)  # a ring's last of a node is the next one's first
        for adds in (True, False):
            yield rings(ranks, 1, adds, 1 / (n * node), lambda ring, piece: (ring * n + piece)[:, None])

    return Outline("all_reduce", f"{node} ring{'s' * (node > 1)}", n, phases, n * node)


@regular
def doubling_all_reduce(n: int) -> Outline:
    """Partners at distance 1, 2, 4, ... exchange the whole buffer and add: lg n steps of S.

    Where n isn't a power of two, the ranks beyond give theirs to a partner first, and get the sum last: two steps more.
    """

    def phases(p: int) -> Iterator[Phase]:
        r = np.arange(p)
        return (_phase(r, r ^ d, True) for d in doublings(p))

    return _fold("recursive doubling", n, phases, cut=False)


@regular
def rabenseifner_all_reduce(n: int) -> Outline:
    """reduce_scatter by halving, all_gather by doubling: 2 lg n steps, and as few bytes as the ring.

    Other world sizes than powers of two as in doubling_all_reduce.
    R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004, doi 10.1007/978-3-540-24685-5_1.
    """

    def phases(p: int) -> Iterator[Phase]:
        steps = [(d, True) for d in reversed(doublings(p))] + [(d, False) for d in doublings(p)]
        return (exchange(p, *step) for step in steps)

    return _fold("halving and doubling", n, phases, cut=True)


def _fold(name: str, n: int, phases: Callable[[int], Iterator[Phase]], cut: bool) -> Outline:
    """An all_reduce of a power of two made one of n ranks: the ranks beyond it have it done by a partner.

    cut: the buffer is cut in as many chunks as the power.
    """
    p = 1 << max(n.bit_length() - 1, 0)
    chunks = p if cut else 1

    def all_phases() -> Iterator[Phase]:
        rest = np.arange(p, n)
        if n > p:
            yield _phase(rest, rest - p, True, chunks)
        yield from phases(p)
        if n > p:
            yield _phase(rest - p, rest, False, chunks)

    return Outline("all_reduce", name, n, all_phases, chunks)


@regular
def hierarchical_all_reduce(n: int, node: int) -> Outline:
    """Three rings: reduce_scatter in the node, all_reduce between the nodes, all_gather in the node.

    node: ranks in a node, which must divide n.  Only 1/node of the buffer leaves each rank's node.
    """
    nodes = whole_nodes(n, node)
    ranks = np.arange(n).reshape(nodes, node)  # rank m * node + i is rank i of node m

    def inside(adds: bool) -> Phase:
        return rings(ranks, 1, adds, 1 / node, lambda m, piece: piece[:, None] * nodes + np.arange(nodes))

    def between(adds: bool) -> Phase:  # chunk i * nodes + j is part j of the piece i of a node
        return rings(ranks, 0, adds, 1 / n, lambda i, part: (i * nodes + part)[:, None])

    name = f"rings in and between nodes of {node}"
    return Outline("all_reduce", name, n, lambda: [inside(True), between(True), between(False), inside(False)], n)


def whole_nodes(n: int, node: int) -> int:
    """Number of nodes; ValueError if they do not come out even."""
    if node < 1 or n % node:
        raise ValueError(f"nodes of {node} ranks do not divide {n} ranks: take a node size that does.")
    return n // node


# --- the double binary tree ---------------------------------------------------------------


@regular
def double_tree_all_reduce(n: int, pieces: int = 4, node: int = 1) -> Outline:
    """Half of the buffer goes up and down one binary tree, half another whose leaves are the first one's inner ranks.

    pieces: into how many each half is cut; they follow each other through the tree, one per step.
    node: more than 1: the trees are between nodes, with a chain through the ranks of each; and there are as many pairs
        of trees as a node has ranks, each with its share of the buffer and with another rank of the node at the head
        of the chain.
    NCCL's algorithm "Tree" is this one.  P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan", Parallel Computing 35(12), 2009, doi 10.1016/j.parco.2009.09.001.
    """
    need_positive(pieces)
    nodes = whole_nodes(n, node)

    def phases() -> Iterator[Phase]:
        if n < 2:
            return
        place, above, up, down = np.array(tree_links(nodes, node)).T
        names = double_tree_names(nodes, node)
        # An edge of a tree is two ways, in turn: down it, up it.  Each is busy for as many steps as there are pieces.
        low, high = names[:, place], names[:, above]
        source, target = np.stack([high, low], 2).ravel(), np.stack([low, high], 2).ravel()
        start = np.tile(np.stack([down, up], 1).ravel(), len(names))
        adds = np.tile([False, True], len(source) // 2)
        tree = np.arange(len(names)).repeat(len(source) // len(names))

        def pieces_of(first: int, busy: np.ndarray, k: int) -> np.ndarray:
            return (tree * pieces + first + k - start)[busy][:, None]

        changes = np.unique(np.concatenate([start, start + pieces]))
        for k, until in zip(changes, changes[1:]):
            busy = (start <= k) & (k < start + pieces)
            chunks = partial(pieces_of, k, busy)
            yield phase(int(until - k), source[busy], target[busy], adds[busy], 0.5 / (node * pieces), chunks)

    between = f" between nodes of {node}" if node > 1 else ""
    return Outline("all_reduce", "double binary tree" + between, n, phases, 2 * node * pieces)


def double_tree_names(nodes: int, node: int = 1) -> np.ndarray:
    """The rank at each place of each tree: the pair whose chains begin at rank 0 of a node, then at 1, ...

    The second of a pair is the first one backwards, so that even and odd change places; with an odd number of nodes
    that takes a shift by one instead, and one node is an inner one twice.
    """
    forth = np.arange(nodes)
    pair = np.stack([forth, forth[::-1] if nodes % 2 == 0 else np.roll(forth, -1)])
    head, _, _, i = np.ogrid[:node, :2, :nodes, :node]
    return (pair[:, :, None] * node + (head + i) % node).reshape(2 * node, nodes * node)


def tree_links(nodes: int, node: int = 1) -> list[tuple[int, int, int, int]]:
    """(place, the place above it, step of the first message up, step of the first message down) for all but the root.

    A binary tree of nodes, in each of which a chain hangs: place m * node + i is the i-th of node m's chain.  In any
    range of nodes, the one divisible by the highest power of two is on top: even ones are inner, odd ones leaves.
    A rank sends up once it has received from all below it; the root's sum comes down.
    """
    m, places = np.arange(nodes), np.arange(nodes * node)
    low = m & -m
    up = (m ^ low) | low << 1  # the neighbor at distance `low` that is divisible by more
    parents = np.where(up < nodes, up, m ^ low)
    above = np.where(places % node, places - 1, parents[places // node] * node).tolist()
    depth, height = [0] * len(above), [0] * len(above)
    upwards = [p for p in np.lexsort((-places, low[places // node])).tolist() if p]  # children before parents
    for p in upwards:
        height[above[p]] = max(height[above[p]], height[p] + 1)
    for p in reversed(upwards):
        depth[p] = depth[above[p]] + 1
    return [(p, above[p], height[p], height[0] + depth[p] - 1) for p in range(1, len(above))]
