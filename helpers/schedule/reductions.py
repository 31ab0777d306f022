"""The algorithms that add: reduce_scatter and all_reduce.  (For reduce see algorithms.py.)

Sources are as there, where nothing else is said.
"""

from __future__ import annotations

from .algorithms import (
    binomial_broadcast,
    binomial_reduce,
    doubling_all_gather,
    doublings,
    flat_broadcast,
    flat_reduce,
    need_positive,
    need_power_of_two,
    ring_all_gather,
)
from .model import Message, add, copy
from .schedule import Schedule

# --- everybody gets its own piece of the sum ----------------------------------------------


def ring_reduce_scatter(n: int) -> Schedule:
    """A sum travels right, and each adds its own on the way: n - 1 steps, (n - 1)/n S a rank."""
    steps = [[add(r, (r + 1) % n, (r - k - 1) % n) for r in range(n)] for k in range(n - 1)]
    return Schedule("reduce_scatter", n, steps, n, name="ring")


def halving_reduce_scatter(n: int) -> Schedule:
    """Partners share the work: each gives away the half it will not own, then the half of that: lg n steps."""
    need_power_of_two(n, "recursive halving", "take ring_reduce_scatter")
    steps = [
        [add(r, r ^ d, range((r ^ d) // d * d, (r ^ d) // d * d + d)) for r in range(n)] for d in reversed(doublings(n))
    ]
    return Schedule("reduce_scatter", n, steps, n, name="recursive halving")


# --- everybody gets the whole sum ---------------------------------------------------------


def naive_all_reduce(n: int) -> Schedule:
    """All send to rank 0, which adds and sends the sum to all: 2 (n - 1) steps, 2 (n - 1) S through one rank."""
    return Schedule("all_reduce", n, flat_reduce(n).steps + flat_broadcast(n).steps, name="gather and send back")


def tree_all_reduce(n: int) -> Schedule:
    """Up a binomial tree and down again: 2 ceil(lg n) steps of the whole buffer."""
    return Schedule("all_reduce", n, binomial_reduce(n).steps + binomial_broadcast(n).steps, name="binomial tree")


def ring_all_reduce(n: int) -> Schedule:
    """reduce_scatter, then all_gather, both by ring: 2 (n - 1) steps, 2 (n - 1)/n S a rank, which is the least.

    P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009, doi 10.1016/j.jpdc.2008.09.002.
    """
    return Schedule("all_reduce", n, ring_reduce_scatter(n).steps + ring_all_gather(n).steps, n, name="ring")


def multi_ring_all_reduce(n: int, node: int) -> Schedule:
    """As many rings as a node has ranks, each with its share of the buffer: every network port of a node works.

    Each ring goes through all ranks of a node, then on to the next node from the rank's own
    port to the same port there.  So does NCCL, which calls a ring a channel.
    """
    nodes = whole_nodes(n, node)
    rings = [
        [
            m * node + (first - m + i) % node for m in range(nodes) for i in range(node)
        ]  # its last is the next one's first
        for first in range(node)
    ]
    steps = []
    for half in (ring_reduce_scatter(n), ring_all_gather(n)):
        for step in half.steps:
            steps.append([
                Message(ring[m.source], ring[m.target], tuple(j * n + c for c in m.chunks), m.adds)
                for j, ring in enumerate(rings) for m in step
            ])  # fmt: skip
    return Schedule("all_reduce", n, steps, n * node, name=f"{node} ring{'s' * (node > 1)}")


def doubling_all_reduce(n: int) -> Schedule:
    """Partners at distance 1, 2, 4, ... exchange the whole buffer and add: lg n steps of S.

    Where n is no power of two, the ranks beyond give theirs to a partner first, and get
    the sum last: two steps more.
    """
    p = largest_power_of_two(n)
    steps = [[add(r, r ^ d, 0) for r in range(p)] for d in doublings(p)]
    return Schedule("all_reduce", n, _folded(n, p, steps, 1), name="recursive doubling")


def rabenseifner_all_reduce(n: int) -> Schedule:
    """reduce_scatter by halving, all_gather by doubling: 2 lg n steps, and as few bytes as the ring.

    Other world sizes than powers of two as in doubling_all_reduce.
    R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004,
    doi 10.1007/978-3-540-24685-5_1.
    """
    p = largest_power_of_two(n)
    steps = halving_reduce_scatter(p).steps + doubling_all_gather(p).steps
    return Schedule("all_reduce", n, _folded(n, p, steps, p), p, name="Rabenseifner's halving and doubling")


def largest_power_of_two(n: int) -> int:
    if n < 1:
        raise ValueError(f"world_size is a number of ranks, 1 or more, not {n}.")
    return 1 << n.bit_length() - 1


def _folded(n: int, p: int, steps: list[list[Message]], chunks: int) -> list[list[Message]]:
    """An all_reduce of p ranks made one of n, at most 2 p: the rest have it done by a partner."""
    if n == p:
        return steps
    first = [add(r, r - p, range(chunks)) for r in range(p, n)]
    last = [copy(r - p, r, range(chunks)) for r in range(p, n)]
    return [first, *steps, last]


def hierarchical_all_reduce(n: int, node: int) -> Schedule:
    """Three rings: reduce_scatter in the node, all_reduce between the nodes, all_gather in the node.

    node: ranks in a node, which must divide n.  Only 1/node of the buffer leaves each rank's node.
    """
    nodes = whole_nodes(n, node)
    inside = (ring_reduce_scatter(node), ring_all_gather(node))
    between = ring_all_reduce(nodes)
    # Rank m * node + i is rank i of node m.  Chunk i * nodes + j is part j of the piece i of a node.
    steps = []
    for step in inside[0].steps:
        steps.append(_in_every_node(step, node, nodes))
    for step in between.steps:
        steps.append([
            Message(m.source * node + i, m.target * node + i, tuple(i * nodes + j for j in m.chunks), m.adds)
            for m in step for i in range(node)
        ])  # fmt: skip
    for step in inside[1].steps:
        steps.append(_in_every_node(step, node, nodes))
    return Schedule("all_reduce", n, steps, n, name=f"rings in and between nodes of {node}")


def _in_every_node(step: list[Message], node: int, nodes: int) -> list[Message]:
    return [
        Message(k * node + m.source, k * node + m.target, tuple(i * nodes + j for i in m.chunks for j in range(nodes)), m.adds)
        for k in range(nodes) for m in step
    ]  # fmt: skip


def whole_nodes(n: int, node: int) -> int:
    """Number of nodes; ValueError if they do not come out even."""
    if node < 1 or n % node:
        raise ValueError(f"nodes of {node} ranks do not divide {n} ranks: take a node size that does.")
    return n // node


# --- the double binary tree ---------------------------------------------------------------


def double_tree_all_reduce(n: int, pieces: int = 4, node: int = 1) -> Schedule:
    """Half of the buffer goes up and down one binary tree, half another whose leaves are the first one's inner ranks.

    pieces: into how many each half is cut; they follow each other through the tree, one a step.
    node: more than 1: the trees are between nodes, with a chain through the ranks of each; and
        there are as many pairs of trees as a node has ranks, each with its share of the
        buffer and with another rank of the node at the head of the chain.
    NCCL's algorithm "Tree" is this one.  P. Sanders, J. Speck, J. L. Träff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35(12),
    2009, doi 10.1016/j.parco.2009.09.001.
    """
    need_positive(pieces)
    nodes = whole_nodes(n, node)
    links = tree_links(nodes, node)
    steps: list[list[Message]] = [[] for _ in range(max((down for *_, down in links), default=-pieces) + pieces)]
    for number, name in enumerate(double_tree_names(nodes, node)):
        for place, above, up, down in links:
            for piece in range(pieces):
                chunk = number * pieces + piece
                steps[up + piece].append(add(name[place], name[above], chunk))
                steps[down + piece].append(copy(name[above], name[place], chunk))
    between = f" between nodes of {node}" if node > 1 else ""
    return Schedule("all_reduce", n, steps, 2 * node * pieces, name="double binary tree" + between)


def tree_parents(n: int) -> list[int]:
    """Each rank's parent in a binary tree that keeps the order of ranks; rank 0, the root, is its own.

    Of any stretch of ranks, the one divisible by the highest power of two is on top.  So even
    ranks are inner ones, and odd ranks are leaves.
    """
    parent = [0] * n
    for r in range(1, n):
        low = r & -r
        up = (r ^ low) | low << 1  # the neighbour at distance `low` that is divisible by more
        parent[r] = up if up < n else r ^ low
    return parent


def double_tree_names(nodes: int, node: int = 1) -> list[list[int]]:
    """Which rank stands at each place of each tree: the pair whose chains begin at rank 0 of a node, then at 1, ...

    The second of a pair is the first one backwards, so that even and odd change places; with
    an odd number of nodes that takes a shift by one instead, and one node is an inner one twice.
    """
    backwards = [nodes - 1 - r if nodes % 2 == 0 else (r + 1) % nodes for r in range(nodes)]
    return [
        [m * node + (head + i) % node for m in order for i in range(node)]
        for head in range(node) for order in (range(nodes), backwards)
    ]  # fmt: skip


def tree_links(nodes: int, node: int = 1) -> list[tuple[int, int, int, int]]:
    """(place, the place above it, step of the first message up, step of the first message down) of all but the root.

    A tree of nodes, in each of which a chain hangs: place m * node + i is the i-th of node m's
    chain.  A rank sends up once it has heard all below it, and down comes what the root has.
    """
    parent = tree_parents(nodes)
    depth, height = [0] * nodes, [node - 1] * nodes
    for m in sorted(range(1, nodes), key=lambda m: m & -m, reverse=True):  # parents before children
        depth[m] = depth[parent[m]] + 1
    for m in sorted(range(1, nodes), key=lambda m: m & -m):
        height[parent[m]] = max(height[parent[m]], height[m] + 1)
    links = []
    for m in range(nodes):
        down = height[0] + depth[m] - 1
        if m:
            links.append((m * node, parent[m] * node, height[m], down))
        links += [(m * node + i, m * node + i - 1, node - 1 - i, down + i) for i in range(1, node)]
    return links
