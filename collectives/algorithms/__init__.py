"""Algorithms of collectives as data: drawn, proved, counted, executed.

from collectives.algorithms import ring_all_reduce
ring_all_reduce(4)            # last line of a cell: the picture, and the steps in words
ring_all_reduce(4).prove()
ring_all_reduce(4).count()
run(lambda: ring(x))          # with ring = ring_all_reduce(4).program()
"""

from ..lazy import lazy

__all__ = lazy(
    __name__,
    {
        ".data_movement": """
            flat_broadcast chain_broadcast binomial_broadcast scatter_ring_broadcast flat_scatter binomial_scatter
            flat_reduce chain_reduce binomial_reduce flat_gather binomial_gather
            ring_all_gather doubling_all_gather bruck_all_gather pairwise_all_to_all bruck_all_to_all
        """,
        ".catalogue": "ALGORITHMS",
        ".count": "Bound Count",
        ".from_run": "from_run recorded",
        ".schedule": "COLLECTIVES Message Schedule add copy",
        ".outline": "outline",
        ".proof": "Proof WrongSchedule",
        ".reductions": """
            ring_reduce_scatter halving_reduce_scatter naive_all_reduce tree_all_reduce ring_all_reduce
            multi_ring_all_reduce doubling_all_reduce rabenseifner_all_reduce double_tree_all_reduce
            hierarchical_all_reduce
        """,
        ".rounds": "Outline Phase",
    },
)
