"""Algorithms of collectives as data: drawn, proved, counted, executed.

from helpers.schedule import ring_all_reduce
ring_all_reduce(4)            # last line of a cell: the picture, and the steps in words
ring_all_reduce(4).prove()
ring_all_reduce(4).count()
run(lambda: ring(x))          # with ring = ring_all_reduce(4).program()
"""

from .algorithms import (
    binomial_broadcast,
    binomial_gather,
    binomial_reduce,
    binomial_scatter,
    bruck_all_gather,
    bruck_all_to_all,
    chain_broadcast,
    chain_reduce,
    doubling_all_gather,
    flat_broadcast,
    flat_gather,
    flat_reduce,
    flat_scatter,
    pairwise_all_to_all,
    ring_all_gather,
    scatter_ring_broadcast,
)
from .count import Bound, Count
from .learn import from_run, recorded
from .model import COLLECTIVES, Message, Schedule, add, copy
from .proof import Proof, WrongSchedule
from .reductions import (
    double_tree_all_reduce,
    doubling_all_reduce,
    halving_reduce_scatter,
    hierarchical_all_reduce,
    multi_ring_all_reduce,
    naive_all_reduce,
    rabenseifner_all_reduce,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)

ALGORITHMS = (
    flat_broadcast,
    chain_broadcast,
    binomial_broadcast,
    scatter_ring_broadcast,
    flat_scatter,
    binomial_scatter,
    flat_reduce,
    chain_reduce,
    binomial_reduce,
    flat_gather,
    binomial_gather,
    ring_all_gather,
    doubling_all_gather,
    bruck_all_gather,
    ring_reduce_scatter,
    halving_reduce_scatter,
    pairwise_all_to_all,
    bruck_all_to_all,
    naive_all_reduce,
    tree_all_reduce,
    ring_all_reduce,
    multi_ring_all_reduce,
    doubling_all_reduce,
    rabenseifner_all_reduce,
    double_tree_all_reduce,
    hierarchical_all_reduce,
)  # all there are, from simple to elaborate

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "Bound",
    "Count",
    "Message",
    "Proof",
    "Schedule",
    "WrongSchedule",
    "add",
    "copy",
    "from_run",
    "recorded",
    *(algorithm.__name__ for algorithm in ALGORITHMS),
]
