"""Right programs run to their end: nothing is accused that works, whatever its order or timing."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers import run

# A program is a list of steps, the same on every rank; a step is what happens, on whom.
MEMBERS = st.sets(st.integers(0, 4), min_size=2, max_size=5)
STEP = st.one_of(
    st.tuples(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"]), MEMBERS),
    st.tuples(st.sampled_from(["broadcast", "reduce", "gather", "scatter"]), MEMBERS),
    st.tuples(st.sampled_from(["send", "isend", "shift", "any"]), MEMBERS),
    st.tuples(st.sampled_from(["async", "overlap"]), MEMBERS),
    st.tuples(st.just("slow"), MEMBERS),
)


def perform(steps, n):
    """Returns what the last step of each kind left, checked on the way."""
    rank = dist.get_rank()
    groups: dict[tuple, dist.ProcessGroup] = {}
    for _, members in steps:
        members = tuple(sorted(m % n for m in members))
        members = tuple(dict.fromkeys(members))
        if members not in groups:
            groups[members] = dist.new_group(members)
    pending = []
    for number, (kind, chosen) in enumerate(steps):
        members = tuple(dict.fromkeys(sorted(m % n for m in chosen)))
        if rank in members:
            step(kind, rank, members, groups[members], pending, tag=number)
    for work, x, wanted in pending:
        work.wait()
        assert x.tolist() == wanted


def step(kind, rank, members, group, pending, tag):
    size, root, me = len(members), members[-1], members.index(rank)
    x = torch.full((2,), float(rank))
    if kind == "all_reduce":
        dist.all_reduce(x, group=group)
        assert x[0] == sum(members)
    elif kind == "all_gather":
        out = [torch.zeros(2) for _ in members]
        dist.all_gather(out, x, group=group)
        assert [t[0] for t in out] == list(members)
    elif kind == "reduce_scatter":
        out = torch.zeros(1)
        dist.reduce_scatter_single(out, torch.arange(float(size)), group=group)
        assert out == me * size
    elif kind == "all_to_all":
        out = torch.zeros(size)
        dist.all_to_all_single(out, torch.full((size,), float(rank)), group=group)
        assert out.tolist() == list(members)
    elif kind == "barrier":
        dist.barrier(group=group)
    elif kind == "broadcast":
        dist.broadcast(x, src=root, group=group)
        assert x[0] == root
    elif kind == "reduce":
        dist.reduce(x, dst=root, group=group)
        assert rank != root or x[0] == sum(members)
    elif kind == "gather":
        dist.gather(x, [torch.zeros(2) for _ in members] if rank == root else None, dst=root, group=group)
    elif kind == "scatter":
        dist.scatter(x, [torch.full((2,), float(m)) for m in members] if rank == root else None, src=root, group=group)
        assert x[0] == rank
    elif size > 1 and kind in ("send", "isend"):
        if rank == members[0]:
            dist.send(x, members[1]) if kind == "send" else pending.append((dist.isend(x, members[1]), x, x.tolist()))
        elif rank == members[1]:
            dist.recv(x, members[0])
            assert x[0] == members[0]
    elif size > 1 and kind == "shift":
        got = torch.zeros(2)
        ops = [dist.P2POp(dist.isend, x, members[(me + 1) % size]), dist.P2POp(dist.irecv, got, members[me - 1])]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert got[0] == members[me - 1]
    elif size > 1 and kind == "any":
        if rank == root:
            assert sorted(dist.recv(x, group=group, tag=tag) for _ in members[1:]) == list(members[:-1])
        else:
            dist.send(x, root, group=group, tag=tag)
    elif kind == "async":
        pending.append((dist.all_reduce(x, group=group, async_op=True), x, [float(sum(members))] * 2))
    elif kind == "overlap":
        work = dist.all_reduce(x, group=group, async_op=True)
        y = torch.ones(3) * 2  # other memory may be used meanwhile
        work.wait()
        assert x[0] + y[0] == sum(members) + 2
    elif kind == "slow" and me == 0:
        time.sleep(0.02)


def check(steps, n):
    done = run(perform, steps, n, world_size=n)
    for call in done.calls:
        assert len(call.events) == (2 if call.is_message else len(call.group))
        assert all(e.end is not None and e.waited for e in call)


LIMITS = dict(
    deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate, Phase.shrink]
)


@pytest.mark.slow
@settings(max_examples=15, derandomize=True, **LIMITS)
@given(st.lists(STEP, min_size=1, max_size=12), st.integers(2, 5))
def test_random_right_programs_are_not_accused(steps, n):
    check(steps, n)


@pytest.mark.nightly
@settings(max_examples=150, **LIMITS)
@given(st.lists(STEP, min_size=5, max_size=30), st.integers(2, 6))
def test_many_random_right_programs_are_not_accused(steps, n):
    check(steps, n)


def test_a_slow_rank_is_not_called_stuck():
    def straggle():
        if dist.get_rank() == 1:
            time.sleep(1.5)
        dist.barrier()

    run(straggle, world_size=3)


def test_a_wait_with_a_limit_of_its_own_is_not_called_stuck():
    def patient():
        from datetime import timedelta

        if dist.get_rank() == 0:
            work = dist.irecv(torch.zeros(1), 1)
            with pytest.raises(RuntimeError):
                work.wait(timedelta(seconds=0.3))
            return "gave up"

    assert run(patient, world_size=2).results == ["gave up", None]
