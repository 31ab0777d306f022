"""What run() records of each collective, against what the table says of it, and its text twin."""

import socket

import pytest
import torch
import torch.distributed as dist
from torch import nn

from collectives.format import numbers
from collectives.log.collectives import COLLECTIVES, of
from collectives.rank.operators import OPS
from helpers import Summary, run
from tests.corpus.collectives import CASES, joined, left, make, passed
from tests.sampling import slow

SIZES = [2, 3, 4, *slow(8)]


def value(op):
    """Of a rank and a slot; whole numbers where each member of the group gets its own."""
    if of(op).gives == "all":
        return lambda rank, slot: torch.tensor([100 * rank + slot])
    return lambda rank, slot: torch.tensor([10.0 * rank, 10.0 * rank + 1])


def equal(value, wanted):
    if isinstance(wanted, list):
        return isinstance(value, list) and len(value) == len(wanted) and all(map(equal, value, wanted))
    if wanted is None or value is None:
        return value is wanted
    return torch.equal(value, wanted) and value.dtype == wanted.dtype


@pytest.mark.parametrize("n", SIZES)
def test_each_collective_is_recorded_and_does_what_the_table_says(n):
    def all_of_them():
        for op in CASES:
            make(op, range(n), dist.get_rank(), 1, value(op))

    done = run(all_of_them, world_size=n)
    for rank, events in enumerate(done.events):
        assert len(events) == len(CASES)
        for index, (e, op) in enumerate(zip(events, CASES)):
            assert (e.rank, e.index, e.op, e.group) == (rank, index, op, tuple(range(n)))
            assert equal(e.before, passed(op, range(n), rank, 1, value(op))), e
            after = joined(op, left(op, range(n), rank, 1, value(op)))
            assert equal(e.after, after) or after is None and e.is_undefined, e
            assert e.end >= e.start > 0 and e.waited and e.line.function == "<lambda>"
    assert [call.ranks for call in done.calls] == [tuple(range(n))] * len(CASES)


@pytest.mark.parametrize("op, row", COLLECTIVES.items())
def test_the_columns_of_a_collective_are_those_of_its_result(op, row):
    n, summed = 4, []

    def total(values):
        summed.append(values)
        return frozenset().union(*values)

    def results(root):
        """Of each rank, with the set of the slots that a value is made of for a value."""
        given = row.given(n, lambda rank, slot: frozenset({(rank, slot)}))
        return [row.result(given, me, root, total) for me in range(n)]

    assert any(results(0)) == (row.gets is not None)
    for me, got in enumerate(results(0)):
        assert isinstance(got, list) == (got is not None and row.gets == "all")
        slots = frozenset().union(*got) if isinstance(got, list) else got or ()
        assert {rank for rank, _ in slots} <= {me, *row.gloo(me, 0, n)}, "a rank waits for whom it gets something from"
    assert bool(summed) == row.reduces
    assert (results(0) != results(1)) == (row.root is not None)


@pytest.mark.parametrize("op, row", COLLECTIVES.items())
def test_every_collective_has_its_operators_and_is_called_here(op, row):
    assert {kind for kind, *_ in OPS.values()} >= {op, *row.also}, "see rank/operators.py"
    assert op in CASES, "see tests/corpus/collectives.py"


def test_every_operator_is_a_form_of_a_collective():
    kinds = {kind for kind, *_ in OPS.values()} - {"send", "recv"}
    assert {kind for kind in kinds if not of(kind).op} == set(), "see log/collectives.py"


TWINS = {
    "broadcast": """\
broadcast from 1, ranks 0-2, float32 [2], 8 B per rank
  rank   before      after
  0      0 1     ->  10 11
  1*     10 11   ->  10 11
  2      20 21   ->  10 11""",
    "all_reduce": """\
all_reduce SUM, ranks 0-2, float32 [2], 8 B per rank
  rank   before      after
  0      0 1     ->  30 33
  1      10 11   ->  30 33
  2      20 21   ->  30 33""",
    "reduce": """\
reduce SUM to 1, ranks 0-2, float32 [2], 8 B per rank
  rank   before      after
  0      0 1     ->  undefined
  1*     10 11   ->  30 33
  2      20 21   ->  undefined""",
    "gather": """\
gather to 1, ranks 0-2, float32 [2], 8 B per rank
  rank   before      after
  0      0 1     ->  -
  1*     10 11   ->  0 1 | 10 11 | 20 21
  2      20 21   ->  -""",
    "scatter": """\
scatter from 1, ranks 0-2, int64 [1], 24 B on rank 1
  rank   before               after
  0      -                ->  100
  1*     100 | 101 | 102  ->  101
  2      -                ->  102""",
    "all_gather": """\
all_gather, ranks 0-2, float32 [2], 8 B per rank
  rank   before      after
  0      0 1     ->  0 1 | 10 11 | 20 21
  1      10 11   ->  0 1 | 10 11 | 20 21
  2      20 21   ->  0 1 | 10 11 | 20 21""",
    "all_gather_single": """\
all_gather_single, ranks 0-2, float32 [2], 8 B per rank
  rank   before      after
  0      0 1     ->  0 1 10 11 20 21
  1      10 11   ->  0 1 10 11 20 21
  2      20 21   ->  0 1 10 11 20 21""",
    "reduce_scatter": """\
reduce_scatter SUM, ranks 0-2, int64 [1], 24 B per rank
  rank   before               after
  0      0 | 1 | 2        ->  300
  1      100 | 101 | 102  ->  303
  2      200 | 201 | 202  ->  306""",
    "reduce_scatter_single": """\
reduce_scatter_single SUM, ranks 0-2, int64 [3], 24 B per rank
  rank   before           after
  0      0 1 2        ->  300
  1      100 101 102  ->  303
  2      200 201 202  ->  306""",
    "all_to_all": """\
all_to_all, ranks 0-2, int64 [1], 24 B per rank
  rank   before               after
  0      0 | 1 | 2        ->  0 | 100 | 200
  1      100 | 101 | 102  ->  1 | 101 | 201
  2      200 | 201 | 202  ->  2 | 102 | 202""",
    "all_to_all_single": """\
all_to_all_single, ranks 0-2, int64 [3], 24 B per rank
  rank   before           after
  0      0 1 2        ->  0 100 200
  1      100 101 102  ->  1 101 201
  2      200 201 202  ->  2 102 202""",
    "barrier": "barrier, ranks 0-2",
}


@pytest.mark.parametrize("op", TWINS)
def test_text_twin_of_each_collective(op):
    done = run(lambda: make(op, range(3), dist.get_rank(), 1, value(op)), world_size=3)
    assert repr(done) == TWINS[op]


def test_what_differs_between_processors_is_not_printed():
    assert (
        numbers([0.3265, 6.687e-05]) == numbers([0.3265, 6.689e-05]) == "0.3265 6.7e-05"
    )  # 2e-8 is float32's noise here
    assert numbers([0.3265, 0.01234, 2**40, 1048576.5]) == "0.3 0.01 1099511627776 1.049e+06"
    assert numbers([6.687e-05, 5e-324, float("inf"), float("nan")]) == "6.687e-05 5e-324 inf nan"
    assert numbers([]) == ""


def test_messages_are_paired_and_shown_as_one_exchange():
    def shift():
        rank, n = dist.get_rank(), dist.get_world_size()
        there, here = torch.tensor([rank]), torch.tensor([-1])
        sending = dist.isend(there, (rank + 1) % n)
        dist.recv(here, (rank - 1) % n)
        sending.wait()
        return here.item()

    done = run(shift, world_size=3)
    assert done.results == [2, 0, 1]
    assert [(call.events[0].rank, call.events[1].rank) for call in done.calls] == [(0, 1), (1, 2), (2, 0)]
    assert [e.op for e in done.events[0]] == ["send", "recv"]
    assert [e.async_op for e in done.events[0]] == [True, False]
    assert repr(done).startswith("3 messages, int64 [1], 8 B each\n  0 -> 1   0\n  1 -> 2   1\n  2 -> 0   2\n")


def test_batch_any_source_and_tags():
    def batch():
        rank, n = dist.get_rank(), dist.get_world_size()
        got = torch.zeros(1)
        ops = [
            dist.P2POp(dist.isend, torch.tensor([float(rank)]), (rank + 1) % n, tag=7),
            dist.P2POp(dist.irecv, got, (rank - 1) % n, tag=7),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if rank:
            dist.send(got, 0)
        else:
            return sorted(dist.recv(got) for _ in range(n - 1))

    done = run(batch, world_size=3)
    assert done.results[0] == [1, 2]
    assert [(e.tag, e.within) for e in done.events[1][:2]] == [(7, "batch_isend_irecv")] * 2
    assert sorted(e.src for e in done.events[0][2:]) == [1, 2]
    assert all(len(call.events) == 2 for call in done.calls)


def test_async_after_is_what_stood_at_the_wait():
    def later():
        x = torch.ones(2)
        work = dist.all_reduce(x, async_op=True)
        assert type(work.is_completed()) is bool
        work.wait()
        x.zero_()
        forgotten = torch.ones(2)
        dist.all_reduce(forgotten, async_op=True)
        dist.barrier()

    waited, forgotten, _ = run(later, world_size=2).events[0]
    assert waited.async_op and waited.waited and waited.after.tolist() == [2, 2]
    assert forgotten.async_op and not forgotten.waited and forgotten.after.tolist() == [2, 2]


def test_before_and_after_are_copies():
    def overwrite():
        x = torch.ones(3)
        dist.all_reduce(x)
        x.fill_(-1)

    (e,) = run(overwrite, world_size=2).events[1]
    assert e.before.tolist() == [1, 1, 1] and e.after.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.bool])
def test_every_dtype_travels(dtype):
    (e,) = run(lambda: dist.broadcast(torch.ones(2, 2).to(dtype), src=0), world_size=2).events[1]
    assert e.after.dtype == dtype and e.after.shape == (2, 2) and e.after.to(torch.float64).sum() == 4


def test_large_tensors_are_summarised_unless_asked_for_whole():
    def big(k):
        x = torch.arange(5000.0)
        x[k] += dist.get_rank()
        dist.all_reduce(x)

    e0, e1 = (events[0] for events in run(big, 2, world_size=2).events)
    assert isinstance(e0.before, Summary) and isinstance(e0.after, Summary)
    assert (e0.before.shape, e0.before.nbytes, e0.before.head, e0.after.tail) == (
        (5000,), 20000, (0, 1, 2), (9994, 9996, 9998),
    )  # fmt: skip
    assert e0.before.checksum != e1.before.checksum and e0.after.checksum == e1.after.checksum
    (whole,) = run(big, 2, world_size=2, whole=True).events[0]
    assert whole.before.tolist() == list(range(5000))


def test_bytes_are_counted_by_the_sockets():
    done = run(lambda: dist.broadcast(torch.zeros(250_000), src=0), world_size=4)
    if done.sent[0] is None:
        pytest.skip("only Linux counts bytes per socket")
    # gloo broadcasts by a binomial tree: rank 0 sends twice, rank 1 once; headers are small.
    assert [round(b / 1e6, 2) for b in done.sent] == [2, 1, 0, 0]
    assert [round(b / 1e6, 2) for b in done.received] == [0, 1, 1, 1]


def test_bytes_of_other_connections_are_counted_too():
    def visit(port):
        dist.kept = socket.create_connection(("127.0.0.1", port))  # open until the ranks are counted
        dist.kept.sendall(bytes(5000))
        dist.barrier()

    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run(visit, server.getsockname()[1], world_size=2)
    if done.sent[0] is None:
        pytest.skip("only Linux counts bytes per socket")
    assert all(5000 <= sent < 5500 for sent in done.sent) and max(done.received) < 500


def test_a_subgroup_is_recorded_with_its_own_ranks():
    def odd():
        group = dist.new_group([1, 3])
        if dist.get_rank() % 2:
            x = torch.tensor([dist.get_rank()])
            dist.broadcast(x, src=3, group=group)
            dist.all_reduce(x, group=group)

    done = run(odd, world_size=4)
    assert [len(events) for events in done.events] == [0, 2, 0, 2]
    assert [(e.group, e.src) for e in done.events[1]] == [((1, 3), 3), ((1, 3), None)]
    assert [call.op for call in done.calls] == ["broadcast", "all_reduce"]


def test_objects_show_the_function_the_learner_called():
    def share():
        box = [{"lr": 0.1} if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    done = run(share, world_size=2)
    assert done.results == [{"lr": 0.1}] * 2
    assert [(e.op, e.within, e.line.text) for e in done.events[0]] == [
        ("broadcast", "broadcast_object_list", "dist.broadcast_object_list(box, src=0)")
    ] * 2


def test_distributed_data_parallel_is_recorded():
    def step():
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
        return model.module.weight.grad

    done = run(step, world_size=2)
    gradient = done.calls[-1]
    assert [call.op for call in done.calls[:-1]] == ["all_gather", "broadcast", "broadcast"]
    assert gradient.op == "all_reduce" and gradient.events[0].within == "Tensor.backward"
    # weight.grad is the input, bias.grad is 1: divided by 2 before the sum, added up after.
    assert sorted(gradient.events[1].before.tolist()) == [0.5, 0.5, 0.5]
    assert sorted(gradient.events[1].after.tolist()) == [0.5, 0.5, 1.0]
    assert gradient.events[0].line.text.endswith(".backward()")


def test_fully_shard_is_recorded():
    def step():
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        model = nn.Linear(4, 2, bias=False)
        fully_shard(model)
        model(torch.ones(1, 4)).sum().backward()

    done = run(step, world_size=2)
    assert [call.op for call in done.calls] == ["all_gather_single", "reduce_scatter_single"]
    assert done.calls[0].events[0].nbytes == 16 and done.calls[1].events[0].nbytes == 32


def test_functional_collectives_are_recorded():
    def functional():
        import torch.distributed._functional_collectives as funcol

        return funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 0

    done = run(functional, world_size=2)
    (e,) = done.events[1]
    assert (e.op, e.reduce_op, e.after.tolist(), e.waited) == ("all_reduce", "SUM", [2, 2], True)


def test_what_a_functional_collective_returns_is_waited_for():
    def functional():
        import torch.distributed._functional_collectives as funcol

        return funcol.all_reduce(torch.ones(1 << 20), "sum", dist.group.WORLD)

    done = run(functional, world_size=2)
    assert all(type(result) is torch.Tensor and (result == 2).all() for result in done.results)
    assert done.events[0][0].waited
