"""The short tasks of chapter 19.

crossings(order, local): the ranks of a ring that send to a different host.  sum_over_hosts(x, local): the sum of all
ranks' x, of which as little as possible leaves a host.
"""

import torch

from collectives.log.event import Event
from helpers.exercise import Budget, Case, Measure, Suspect, Task, valued

# --- crossings ----------------------------------------------------------------------------


def _senders(order, local):
    """The ranks of the ring whose right neighbor is on a different host."""
    return [rank for rank, right in zip(order, order[1:] + order[:1]) if rank // local != right // local]


CROSSINGS = valued(
    "crossings",
    {
        "two hosts of three, half scattered": ([0, 3, 1, 2, 4, 5], 3),
        "two hosts of four, in host order": ([0, 1, 2, 3, 4, 5, 6, 7], 4),
        "two hosts of four, alternating": ([0, 4, 1, 5, 2, 6, 3, 7], 4),
        "three hosts of two, one scattered": ([0, 2, 1, 4, 5, 3], 2),
        "one host": ([2, 0, 1], 3),
        "four hosts of one": ([0, 1, 2, 3], 1),
        "a ring that begins within a host": ([1, 2, 3, 0], 2),
    },
    lambda order, local: len(_senders(order, local)),
    suspects={
        lambda order, local: sum(
            a // local != b // local for a, b in zip(order, order[1:])
        ): "the last rank sends, too. To whom?",
        lambda order, local: sum(rank < local for rank in _senders(order, local)): "this is what leaves host 0 alone.",
        lambda order, local: sum(
            a % local != b % local for a, b in zip(order, order[1:] + order[:1])
        ): "rank % local is a rank's number on its host. Which number is its host's?",
    },
    thought="whom does each rank send to, and which host is each of the two on?",
    praise="A ring that begins within a host: {} ranks send to a different one.",
)

# --- sum_over_hosts -----------------------------------------------------------------------

CASES = (
    Case(2, "2 hosts", 4),
    Case(2, "1 host", 4),
    Case(3, "3 hosts", 6, torch.float64),
    Case(4, "2 hosts", 8),
    Case(4, "2 hosts", 4, torch.float64, late=3),
    Case(4, "4 hosts", 4),
    Case(5, "1 host", 5),
    Case(8, "2 hosts", 8, late=2),
    Case(8, "4 hosts", 8, torch.float64),
    Case(6, "2 hosts", 6),
    Case(6, "3 hosts", 12),
    Case(7, "1 host", 7),
    Case(8, "2 hosts", 16),
    Case(1, "1 host"),
)
LEAVE = "bytes that leave its host"
EVERY_GROUP = (
    "every rank has to make every group, in the same order, also groups that it is not in. init_device_mesh does."
)


def hosts(case):
    return int(case.kind.split()[0])


def draw(d):
    return d.numbers(d.case.size), d.world_size // hosts(d.case)


def total(args):
    return [sum(x for x, _ in args)] * len(args)


def of_each_host(args):
    """The sum over the ranks of its host, for each rank."""
    local = args[0][1]
    sums = [sum(x for x, _ in args[first : first + local]) for first in range(0, len(args), local)]
    return [sums[rank // local] for rank in range(len(args))]


def parts(args):
    """The part of the sum that a rank has after a reduce_scatter inside its host and an all_reduce between hosts."""
    return [whole.chunk(local)[rank % local] for rank, (whole, (_, local)) in enumerate(zip(total(args), args))]


def leaving(local):
    """Counts, for each rank, the bytes that its host sends to other hosts.

    A message counts as it is; all_reduce, reduce_scatter and all_gather as the ring over their group, in its order, that
    gloo makes of them; a broadcast or reduce as a message between the root and each other rank.
    """

    def counted(events: list[list[Event]]) -> list[float]:
        sent = [sum(over_the_wire(e, local) for e in mine) for mine in events]
        return [round(sum(sent[rank - rank % local :][:local]), 3) for rank in range(len(events))]

    return counted


def over_the_wire(e: Event, local: int) -> float:
    """The bytes that a rank sends to other hosts in one call."""
    n, elsewhere = len(e.group), [rank for rank in e.group if rank // local != e.rank // local]
    if e.op == "send":
        return e.nbytes * (e.dst in elsewhere)
    if e.op == "broadcast":
        return e.nbytes * len(elsewhere) * (e.rank == e.src)
    if e.op == "reduce":
        return e.nbytes * (e.dst in elsewhere)
    right = e.group[(e.group.index(e.rank) + 1) % n]
    hops = {"all_reduce": 2 * (n - 1) / n, "reduce_scatter": (n - 1) / n, "all_gather": n - 1}
    return e.nbytes * hops.get(e.op.removesuffix("_single"), 0) * (right in elsewhere)


def budget(case, args):
    n, m = case.world_size, hosts(case)
    nbytes = case.size * case.dtype.itemsize
    return Budget(
        "of each rank what an all_reduce sends, 2 (N-1)/N times the size of x over N ranks, and of a host's bytes "
        "2 (M-1)/M times that size to other hosts, over M hosts",
        sent=[2 * (n - 1) / n * nbytes] * n,
        measures=(Measure(LEAVE, leaving(n // m), [round(2 * (m - 1) / m * nbytes, 3)] * n),),
    )


def needs(case, args):
    return [case.size * case.dtype.itemsize] * case.world_size


SUM_OVER_HOSTS = Task(
    "sum_over_hosts",
    CASES,
    draw,
    total,
    budget,
    needs=needs,
    allowed=frozenset(
        {"all_reduce", "reduce_scatter", "reduce_scatter_single", "all_gather", "all_gather_single", "broadcast"}
        | {"reduce", "send", "recv"}
    ),
    parameters=("x", "local"),
    suspects=(
        Suspect(of_each_host, "this is the sum of the rank's own host. Where do the other hosts' sums come from?"),
        Suspect(parts, "this is one part of the sum. Which ranks have the others, and are they near?"),
        Suspect(
            lambda args: [whole * args[0][1] for whole in total(args)],
            "this is the sum, once for every rank of a host. All of them had their host's whole sum already.",
        ),
    ),
    thoughts={
        "calls": "three calls are enough, on two kinds of groups: one that sums and deals out, one that sums, one that collects.",
        "sent": "the ranks of a host don't all have to carry the same sum. reduce_scatter leaves each of them a part of it.",
        LEAVE: "which groups stay inside a host, and how many of its ranks send to another one, how much each?",
        "Stuck": EVERY_GROUP,
        "Mismatch": EVERY_GROUP,
    },
)

TASKS = (CROSSINGS, SUM_OVER_HOSTS)
