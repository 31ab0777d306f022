"""All algorithms there are, from simple to elaborate."""

from . import data_movement as a
from . import reductions as r

ALGORITHMS = (
    a.flat_broadcast, a.chain_broadcast, a.binomial_broadcast, a.scatter_ring_broadcast,
    a.flat_scatter, a.binomial_scatter,
    a.flat_reduce, a.chain_reduce, a.binomial_reduce,
    a.flat_gather, a.binomial_gather,
    a.ring_all_gather, a.doubling_all_gather, a.bruck_all_gather,
    r.ring_reduce_scatter, r.halving_reduce_scatter,
    a.pairwise_all_to_all, a.bruck_all_to_all,
    r.naive_all_reduce, r.tree_all_reduce, r.ring_all_reduce, r.multi_ring_all_reduce, r.doubling_all_reduce,
    r.rabenseifner_all_reduce, r.double_tree_all_reduce, r.hierarchical_all_reduce,
)  # fmt: skip
