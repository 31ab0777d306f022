"""rank_of(node, local_rank, per_node): the rank on a node with as many ranks as any other."""

from helpers.exercise import Budget, Case, Suspect, Task


def placed(d):
    per_node = 1 + d.case.size
    return d.rank // per_node, d.rank % per_node, per_node


TASK = Task(
    "rank_of",
    tuple(Case(n, size=size) for n, size in ((2, 0), (4, 1), (3, 2), (6, 2), (8, 3), (5, 0), (7, 6), (1, 0))),
    placed,
    lambda args: [*range(len(args))],
    lambda case, args: Budget("no call at all", calls=[0] * case.world_size),
    needs=lambda case, args: [0] * case.world_size,
    allowed=frozenset(),
    parameters=("node", "local_rank", "per_node"),
    suspects=(
        Suspect(
            lambda args: [local for _, local, _ in args],
            "this is the local rank. How many ranks are on the nodes before this one?",
            where_wrong=True,
        ),
        Suspect(
            lambda args: [node + local for node, local, _ in args],
            "this counts every node before this one as one rank. How many ranks does each have?",
            where_wrong=True,
        ),
        Suspect(
            lambda args: [local * (len(args) // per_node) + node for node, local, per_node in args],
            "this deals the ranks to the nodes like cards. torchrun fills one node before the next.",
            where_wrong=True,
        ),
    ),
    thoughts={
        "values": "how many ranks are on the nodes before this one?",
        "calls": "all that's needed is passed in.",
    },
)
