"""What traffic.count counts on real ranks, against what the literature says of each collective and algorithm.

S is the whole buffer: what broadcast and all_reduce work on, what all_gather and gather end with,
what scatter, reduce_scatter and all_to_all start with.
"""

from math import ceil, log2

import pytest
import torch
import torch.distributed as dist

from collectives import algorithms as schedule
from collectives.log import collectives, traffic
from helpers import run
from tests.corpus.collectives import CASES, make, most

S = 480  # bytes: 120 numbers, which 2, 3, 4, 5 and 8 ranks can share evenly
NUMBERS = S // 4


def between_barriers(done):
    """The events of a run, per rank, cut where the ranks met."""
    cut = []
    for mine in done.events:
        parts = [[]]
        for e in mine:
            parts.append([]) if e.op == "barrier" else parts[-1].append(e)
        cut.append(parts)
    return [list(part) for part in zip(*cut)]


def counted(calls, world_size):
    """The traffic of each of these functions of (rank, number of ranks), made one after the other in one run."""

    def all_of_them():
        for call in calls:
            call(dist.get_rank(), dist.get_world_size())
            dist.barrier()

    done = run(all_of_them, world_size=world_size)
    return [traffic.count(events) for events in between_barriers(done)[: len(calls)]]


# --- collectives ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_collectives_move_what_the_literature_says(n):
    def call(op):
        each = NUMBERS if collectives.of(op).in_place else NUMBERS // n
        return lambda rank, n: make(op, range(n), rank, 1, lambda rank, slot: torch.ones(each))

    moving = {op: case for op, case in CASES.items() if collectives.of(op).least}
    for (op, case), got in zip(moving.items(), counted(list(map(call, moving)), n)):
        factor, row = case.busiest(n), collectives.of(op)
        assert got.busiest == pytest.approx(factor * S), op
        parted = row.root and not row.in_place  # then only the root has all of S
        assert got.largest == [pytest.approx(S / n if parted and rank != 1 else S) for rank in range(n)], op
        assert got.ops == {op: n} and got.steps == 1 and got.messages == [0] * n and not got.links
        assert bool(row.root) == bool(case.root), op
        for rank in range(n):
            sent, received = case.root if row.root and rank == 1 else case.others(n) or (factor, factor)
            sent, received = (factor if part is most else part for part in (sent, received))
            assert (got.sent[rank], got.received[rank]) == pytest.approx((sent * S, received * S)), (op, rank)


def test_a_barrier_moves_nothing():
    got = traffic.count(run(lambda: dist.barrier(), world_size=3).events)
    assert (got.sent, got.received, got.steps) == ([0] * 3, [0] * 3, 1)


@pytest.mark.parametrize("members", [[1, 3, 4], [4, 0], [2]])
def test_a_group_counts_as_a_world_of_its_own(members):
    n, group_root = len(members), members[-1]

    def some_of_them():
        group = dist.new_group(members)
        if dist.get_rank() in members:
            x = torch.ones(NUMBERS)
            dist.all_reduce(x, group=group)
            dist.broadcast(x, src=group_root, group=group)
            dist.all_gather_single(torch.zeros(NUMBERS), torch.ones(NUMBERS // n), group=group)

    got = traffic.count(run(some_of_them, world_size=5).events)
    each = 3 * (n - 1) / n * S  # all_reduce and all_gather
    root, other = (each + S * (n > 1), each), (each, each + S)
    wanted = {rank: root if rank == group_root else other for rank in members}
    assert list(zip(got.sent, got.received)) == [pytest.approx(wanted.get(rank, (0, 0))) for rank in range(5)]
    assert got.steps == (3 if n > 1 else 0)


SPLITS = [[0, 2, 1], [4, 1, 0], [3, 0, 5]]  # numbers from each rank to each


def by_splits(rank, n):
    out = [row[rank] for row in SPLITS]
    dist.all_to_all_single(torch.ones(sum(out)), torch.ones(sum(SPLITS[rank])), out, SPLITS[rank])


def rows_by_splits(rank, n):
    out = [row[rank] for row in SPLITS]
    dist.all_to_all_single(torch.ones(sum(out), 7), torch.ones(sum(SPLITS[rank]), 7), out, SPLITS[rank])


@pytest.mark.parametrize("call, width", [(by_splits, 4), (rows_by_splits, 28)])
def test_uneven_splits_are_counted_one_by_one(call, width):
    (got,) = counted([call], 3)
    assert got.sent == [3 * width, 4 * width, 3 * width]  # without what a rank keeps: the diagonal
    assert got.received == [7 * width, 2 * width, 1 * width]


# --- algorithms, message by message ---------------------------------------------------------


def lg(n):
    return ceil(log2(n))


# Steps, the busiest rank's bytes of S, and the most messages of a rank, over n ranks.
ANY = {
    # Thakur, Rabenseifner, Gropp 2005, sections 4.1 to 4.5
    "ring_all_gather": lambda n: (n - 1, (n - 1) / n, n - 1),
    "bruck_all_gather": lambda n: (lg(n), (n - 1) / n, lg(n)),
    "binomial_broadcast": lambda n: (lg(n), lg(n), lg(n)),
    "scatter_ring_broadcast": lambda n: (lg(n) + n - 1, 2 * (n - 1) / n, lg(n) + n - 1),
    "binomial_scatter": lambda n: (lg(n), (n - 1) / n, lg(n)),
    "binomial_gather": lambda n: (lg(n), (n - 1) / n, 1),
    "binomial_reduce": lambda n: (lg(n), lg(n), 1),
    "pairwise_all_to_all": lambda n: (n - 1, (n - 1) / n, n - 1),
    # Patarasuk and Yuan 2009
    "ring_reduce_scatter": lambda n: (n - 1, (n - 1) / n, n - 1),
    "ring_all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n, 2 * (n - 1)),
}
POWERS_OF_TWO = {
    # Thakur, Rabenseifner, Gropp 2005, as above
    "doubling_all_gather": lambda n: (lg(n), (n - 1) / n, lg(n)),
    "halving_reduce_scatter": lambda n: (lg(n), (n - 1) / n, lg(n)),
    "bruck_all_to_all": lambda n: (lg(n), lg(n) / 2, lg(n)),
    "doubling_all_reduce": lambda n: (lg(n), lg(n), lg(n)),
    "rabenseifner_all_reduce": lambda n: (2 * lg(n), 2 * (n - 1) / n, 2 * lg(n)),
}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_algorithms_cost_what_the_literature_says(n):
    wanted = ANY | (POWERS_OF_TWO if n & n - 1 == 0 else {})
    programs = [getattr(schedule, name)(n).program() for name in wanted]

    def call(program):
        piece = program.schedule.collective in ("all_gather", "gather")
        return lambda rank, n: program(torch.ones(NUMBERS // n if piece else NUMBERS))

    for (name, figures), got in zip(wanted.items(), counted([call(program) for program in programs], n)):
        assert (got.steps, got.busiest / S, max(got.messages)) == pytest.approx(figures(n)), name
        assert sum(got.links.values()) == sum(got.messages) and set(got.ops) == {"send", "recv"}


def test_a_ring_by_hand_takes_as_many_steps():
    def ring(rank, n):
        x = torch.ones(NUMBERS)
        for _ in range(2 * (n - 1)):
            sending = dist.isend(x[: NUMBERS // n], (rank + 1) % n)
            dist.recv(x[NUMBERS // n : 2 * NUMBERS // n], (rank - 1) % n)
            sending.wait()

    (got,) = counted([ring], 4)
    assert got.steps == 6 and got.messages == [6] * 4 and got.sent == got.received == [6 / 4 * S] * 4
    assert got.links == {(rank, (rank + 1) % 4): 6 for rank in range(4)}
