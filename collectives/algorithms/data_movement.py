"""The algorithms that move data: one to many, many to one, all to all ranks.

Each is a function of the world size that returns a Schedule; algorithms that also add are in reductions.py.
Sizes and costs are from R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
in MPICH", IJHPCA 19(1), 2005, doi 10.1177/1094342005051521, unless another source is named.
"""

from .rounds import Outline, exchange, one_ring, regular
from .schedule import Schedule, add, copy


def doublings(n: int) -> list[int]:
    """1, 2, 4, ... below n."""
    return [1 << k for k in range((n - 1).bit_length())]


def need_power_of_two(n: int, algorithm: str, instead: str) -> None:
    if n < 1 or n & (n - 1):
        raise ValueError(
            f"{algorithm} pairs off all ranks in every step, so it needs 2, 4, 8, ... ranks, not {n}: {instead}."
        )


def need_positive(pieces: int) -> None:
    if pieces < 1:
        raise ValueError(f"pieces must be 1 or more, not {pieces}.")


# --- one to many --------------------------------------------------------------------------


def flat_broadcast(n: int, root: int = 0) -> Schedule:
    """The root sends to each in turn: n - 1 steps, and the root sends (n - 1) S."""
    steps = [[copy(root, (root + k) % n, 0)] for k in range(1, n)]
    return Schedule("broadcast", n, steps, root=root, name="flat tree")


def chain_broadcast(n: int, root: int = 0, pieces: int = 1) -> Schedule:
    """Each passes on to the next; cut into pieces, all links of the chain work at the same time."""
    need_positive(pieces)
    steps = [
        [copy((root + v) % n, (root + v + 1) % n, k - v) for v in range(n - 1) if 0 <= k - v < pieces]
        for k in range(n + pieces - 2 if n > 1 else 0)
    ]
    return Schedule("broadcast", n, steps, pieces, root, name=f"chain of {pieces} pieces" if pieces > 1 else "chain")


def binomial_broadcast(n: int, root: int = 0) -> Schedule:
    """Every rank that has the chunk forwards it: they double in every step, ceil(lg n) steps."""
    pairs = [[(v, v + d) for v in range(min(d, n - d))] for d in doublings(n)]  # for root 0
    steps = [[copy((root + a) % n, (root + b) % n, 0) for a, b in step] for step in pairs]
    return Schedule("broadcast", n, steps, root=root, name="binomial tree")


def scatter_ring_broadcast(n: int, root: int = 0) -> Schedule:
    """A piece to each, then a ring all-gather: lg n + n - 1 steps, but no rank sends more than 2 S.

    Van de Geijn's broadcast for large buffers.
    """
    # The root has every chunk already, so the ring skips it.
    ring = [[m for m in step if m.target != root] for step in ring_all_gather(n).steps]
    return Schedule("broadcast", n, binomial_scatter(n, root).steps + ring, n, root, "scatter and ring all-gather")


def flat_scatter(n: int, root: int = 0) -> Schedule:
    """The root hands each its piece in turn: n - 1 steps, and no byte travels twice."""
    steps = [[copy(root, (root + k) % n, (root + k) % n)] for k in range(1, n)]
    return Schedule("scatter", n, steps, n, root, name="flat tree")


def binomial_scatter(n: int, root: int = 0) -> Schedule:
    """The root sends half of all pieces to the rank halfway around, which continues like the root: ceil(lg n) steps."""
    steps = [
        [
            copy((root + v) % n, (root + v + d) % n, [(root + u) % n for u in range(v + d, min(v + 2 * d, n))])
            for v in range(0, n - d, 2 * d)
        ]
        for d in reversed(doublings(n))
    ]
    return Schedule("scatter", n, steps, n, root, name="binomial tree")


# --- many to one: the same trees, backwards -----------------------------------------------


def flat_reduce(n: int, root: int = 0) -> Schedule:
    """Each sends to the root in turn, which adds: n - 1 steps, and the root receives (n - 1) S."""
    return backwards(flat_broadcast(n, root), "reduce")


def chain_reduce(n: int, root: int = 0, pieces: int = 1) -> Schedule:
    """Each adds its own to what it gets and passes it on; NCCL's reduce is such a chain."""
    return backwards(chain_broadcast(n, root, pieces), "reduce")


def binomial_reduce(n: int, root: int = 0) -> Schedule:
    """In every step half of the ranks that still hold a sum send it away: ceil(lg n) steps."""
    return backwards(binomial_broadcast(n, root), "reduce")


def flat_gather(n: int, root: int = 0) -> Schedule:
    """Each hands its piece to the root in turn: n - 1 steps."""
    return backwards(flat_scatter(n, root), "gather")


def binomial_gather(n: int, root: int = 0) -> Schedule:
    """Pieces are collected along a tree: ceil(lg n) steps."""
    return backwards(binomial_scatter(n, root), "gather")


def backwards(s: Schedule, collective: str) -> Schedule:
    """The last message first and every arrow turned round: a broadcast becomes a reduce, a scatter a gather."""
    send = add if collective == "reduce" else copy
    steps = [[send(m.target, m.source, m.chunks) for m in step] for step in reversed(s.steps)]
    return Schedule(collective, s.world_size, steps, s.chunks, s.root, s.name)


# --- every rank gets every piece ----------------------------------------------------------


@regular
def ring_all_gather(n: int) -> Outline:
    """Each passes on to its right neighbor what it got from its left: n - 1 steps, (n - 1)/n S per rank."""
    return Outline("all_gather", "ring", n, lambda: [one_ring(n, adds=False)], n)


@regular
def doubling_all_gather(n: int) -> Outline:
    """Partners at distance 1, 2, 4, ... exchange all they have: lg n steps, (n - 1)/n S per rank."""
    need_power_of_two(n, "recursive doubling", "take bruck_all_gather, which has as few steps, or ring_all_gather")
    return Outline("all_gather", "recursive doubling", n, lambda: (exchange(n, d, False) for d in doublings(n)), n)


def bruck_all_gather(n: int) -> Schedule:
    """Each sends all it has to the rank 1, 2, 4, ... before it: ceil(lg n) steps at any world size.

    J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport
    message-passing systems", IEEE TPDS 8(11), 1997, doi 10.1109/71.642949.
    """
    steps = [
        [copy(r, (r - d) % n, [(r + i) % n for i in range(min(d, n - d))]) for r in range(n)] for d in doublings(n)
    ]
    return Schedule("all_gather", n, steps, n, name="Bruck")


# --- from each to each --------------------------------------------------------------------


def pairwise_all_to_all(n: int) -> Schedule:
    """In step k each sends the piece for the rank k after it: n - 1 steps, no byte travels twice."""
    steps = [[copy(r, (r + k) % n, r * n + (r + k) % n) for r in range(n)] for k in range(1, n)]
    return Schedule("all_to_all", n, steps, n * n, name="pairwise exchange")


def bruck_all_to_all(n: int) -> Schedule:
    """A chunk for the rank o further on moves 1, 2, 4, ... ranks, for each bit of o: ceil(lg n) steps of about S/2.

    Bruck et al. 1997, as bruck_all_gather.
    """

    def load(r: int, d: int) -> list[int]:
        """The chunks that r has by then, by the bits of o below d, and must send: those with the bit d in o."""
        froms = [((r - o % d) % n, o) for o in range(n) if o & d]
        return sorted(source * n + (source + o) % n for source, o in froms)

    steps = [[copy(r, (r + d) % n, load(r, d)) for r in range(n)] for d in doublings(n)]
    return Schedule("all_to_all", n, steps, n * n, name="Bruck")
