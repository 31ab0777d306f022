"""Every algorithm of collectives.algorithms, in the variants that differ."""

from inspect import signature

from collectives.algorithms import (
    ALGORITHMS,
    double_tree_all_reduce,
    doubling_all_gather,
    halving_reduce_scatter,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
)


def variants(n: int, roots=None):
    """Every built-in algorithm at this world size, with differing roots, pieces and nodes."""
    roots = roots or {0, n // 2, n - 1}
    for algorithm in ALGORITHMS:
        if algorithm in (hierarchical_all_reduce, multi_ring_all_reduce):
            yield from (algorithm(n, node) for node in range(1, min(n, 8) + 1) if n % node == 0)
        elif algorithm is double_tree_all_reduce:
            yield from (algorithm(n, pieces, node) for pieces, node in ((1, 1), (3, 1), (2, 4)) if n % node == 0)
        elif algorithm in (doubling_all_gather, halving_reduce_scatter):
            if n & n - 1 == 0:
                yield algorithm(n)
        elif "root" in signature(algorithm).parameters:
            yield from (algorithm(n, root) for root in roots)
            if "pieces" in signature(algorithm).parameters:
                yield algorithm(n, n - 1, 3)
        else:
            yield algorithm(n)
