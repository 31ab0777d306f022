"""The judge of a run, fed with what ranks wrote down elsewhere: a file for each rank, read one after the other."""

import copy
import dataclasses
import inspect
import itertools
import linecache
import math
import re
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist

from collectives.judge import wording
from collectives.judge.monitor import Monitor
from collectives.judge.verdict import Deadlock
from collectives.launch.wire import Frames, frame
from collectives.log.event import Event, Failure, Line
from collectives.log.messages import (
    Called, Caught, Completed, Failed, Grouped, Misused, Returned, Skipped, Ungrouped, Waiting,
)  # fmt: skip
from helpers import RunError, run
from tests import ROOT


def other_shapes():
    dist.all_reduce(torch.ones(2 + dist.get_rank()))


def late_by_one():
    if dist.get_rank():
        dist.barrier()
    dist.all_reduce(torch.ones(2))


def all_receive():
    dist.recv(torch.empty(1), (dist.get_rank() + 1) % dist.get_world_size())


def one_fails():
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 1:
        raise ValueError("no such layer")
    dist.barrier()


def with_text(line):
    return line and line._replace(text=linecache.getline(line.file, line.number).strip())


@pytest.mark.parametrize("program", [other_shapes, late_by_one, all_receive, one_fails])
def test_files_of_ranks_are_judged_as_the_live_run_was(program, tmp_path, monkeypatch):
    feed = Monitor.feed

    def write_down(monitor, rank, message):
        with open(tmp_path / str(rank), "ab") as file:
            file.write(frame(message))
        feed(monitor, rank, message)

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "feed", write_down)
        with pytest.raises(RunError) as live:
            run(program, world_size=3)

    monitor = Monitor(3, with_text=with_text)
    for rank in range(3):
        for message in Frames().feed((tmp_path / str(rank)).read_bytes()):
            monitor.feed(rank, message)
    verdict = monitor.final_verdict()
    assert wording.headline(verdict) == f"{live.type.__name__}: {live.value}"
    assert monitor.final_verdict() == verdict


def test_a_monitor_is_told_by_methods_alone():
    public = [value for name, value in vars(Monitor).items() if not name.startswith("_")]
    assert all(inspect.isfunction(value) or isinstance(value, property) and value.fset is None for value in public)
    assert all(name.startswith("_") for name in vars(Monitor(2)))
    assert Monitor(2).failures.__class__ is MappingProxyType
    for file in (
        file for folder in ("collectives", "helpers", "grader", "tools") for file in (ROOT / folder).rglob("*.py")
    ):
        assert not re.findall(r"monitor\._\w+|\bState\(", file.read_text()) or file.parent.name == "judge", file


def test_a_verdict_is_data_that_asking_does_not_change():
    monitor = Monitor(2, keep=4)
    monitor.feed(0, Called(Event(0, 0, "barrier", (0, 1))))
    monitor.feed(0, Waiting(0, 0.5, False, "main"))
    monitor.feed(1, Returned(b"", (None, None), None, []))
    first, second = monitor.verdict(), monitor.verdict()
    assert first == second and hash(first) == hash(second)
    assert (first.ranks, first.absent, [call.op for call in first.calls]) == ((0,), {1}, ["barrier"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.ranks = ()


def test_of_two_misuses_the_first_is_told():
    """As of a gradient that is clipped before its all_reduce is waited for: read, then written to."""
    monitor = Monitor(1)
    monitor.feed(0, Called(Event(0, 0, "all_reduce", (0,))))
    monitor.feed(0, Misused(0, "read", None))
    monitor.feed(0, Misused(0, "written", None))
    assert "rank 0 reads the tensor of all_reduce #1" in wording.headline(monitor.final_verdict())


def test_of_a_long_job_only_the_last_calls_are_kept_and_what_comes_late_is_passed_over():
    monitor = Monitor(2, keep=4)
    for index in range(50):
        for rank in range(2):
            monitor.feed(rank, Called(Event(rank, index, "barrier", (0, 1))))
        for rank in range(2):
            monitor.feed(rank, Completed(index, None, 1.0, True, None))
    assert [[e.index for e in events] for events in monitor.events] == [[46, 47, 48, 49]] * 2
    assert monitor.made(0) == 50
    monitor.feed(0, Misused(3, "read", None))
    monitor.feed(1, Waiting(3, 1.0, False, "main"))
    assert not monitor.in_trouble and not monitor.standing[1].event


A, B, C = (Line("gone.py", number, "step", f"line_{number}()") for number in (10, 20, 30))


def part(rank, index, op="all_reduce", line=A, shape=(1,), **more):
    reduces = {"reduce_op": "SUM"} if op == "all_reduce" else {}
    return Event(
        rank,
        index,
        op,
        (0, 1, 2),
        **({"shape": shape, "dtype": torch.float32, "nbytes": 4 * math.prod(shape), "line": line} | reduces | more),
    )


def turns(left):
    """All orders in which ranks can take turns, if each has so many."""
    if not any(left):
        yield ()
    for rank, n in enumerate(left):
        if n:
            yield from ((rank, *rest) for rest in turns((*left[:rank], n - 1, *left[rank + 1 :])))


def in_any_order(programs):
    """The one verdict on what ranks made, whatever the order in which it came.  programs: by rank, events and misuses."""
    said = set()
    for order in turns(tuple(map(len, programs))):
        monitor, left = Monitor(3), [list(program) for program in programs]
        for rank in order:
            what = left[rank].pop(0)
            monitor.feed(rank, Called(dataclasses.replace(what)) if isinstance(what, Event) else what)
        monitor.nothing_more()
        said.add(wording.headline(monitor.verdict()))
        said.add(wording.headline(monitor.final_verdict()))
    [verdict] = said
    return verdict


@pytest.mark.parametrize(
    "programs, first_line",
    [
        (  # the keys of a set, in three orders
            [[part(0, 0)], [part(1, 0, "all_to_all_single", B, (3, 3))], [part(2, 0, shape=(3, 3))]],
            "disagree on which collective to make in call #1",
        ),
        (
            [
                [part(0, 0, non_dense=("in",)), Misused(0, "read", None)],
                [part(1, 0, dtype=torch.int32, shape=(2,))],
                [part(2, 0, reduce_op="MAX", strides=(1, 2))],
            ],
            "disagree on the reduce op of all_reduce in call #1",
        ),
        (
            [[part(0, 0, "reduce", dst=0)], [part(1, 0, "reduce", dst=0, shape=(2,))], [part(2, 0, "reduce", dst=2)]],
            "disagree on the dst of reduce in call #1",
        ),
        (  # the second call is the graver, and the first comes first
            [
                [part(0, 0), part(0, 1, "broadcast", src=0)],
                [part(1, 0), part(1, 1, "barrier")],
                [part(2, 0, shape=(2,)), part(2, 1, "broadcast", src=2)],
            ],
            "disagree on the shape of all_reduce in call #1",
        ),
    ],
)
def test_the_gravest_flaw_of_the_first_wrong_call_is_told_in_whatever_order_its_parts_come(programs, first_line):
    assert first_line in in_any_order(programs).splitlines()[0]


def lines_of(*places, **last):
    """Three ranks' all_reduces from these lines, a column for each call; the last of each has a shape of its line's."""
    return [
        [
            part(r, k, line=line, shape=(line.number,) if k == len(mine) - 1 else (1,), **last)
            for k, line in enumerate(mine)
        ]
        for r, mine in enumerate(places)
    ]


def test_lines_of_different_calls_are_told_from_those_of_one():
    """Rank 0 has been where the others are: it makes a call more, or a call fewer. Who never was may be in the same call."""
    different = in_any_order(lines_of([A, B], [A, A], [A, A]))
    head, *_, remedy = different.splitlines()
    assert head == "Mismatch: ranks disagree on which all_reduce to make in call #2."
    assert remedy.startswith("These are different calls.") and "shape" not in remedy
    assert "Earlier, call #1 came from step, line 10:  line_10()\nRank 0 may have made fewer calls" in different
    assert "or makes a call here that ranks 1 and 2 don't." in different

    head, *_, remedy = in_any_order(lines_of([B, B], [A, A], [A, A])).splitlines()
    assert head == "Mismatch: ranks disagree on the shape of all_reduce in call #2."
    assert "must pass the same shape" in remedy and "If these lines aren't meant to make one call" in remedy

    *_, remedy = in_any_order([[part(r, 0, shape=(1 + r,))] for r in range(3)]).splitlines()
    assert "must pass the same shape" in remedy and "these lines" not in remedy

    root = [part(0, 0, "broadcast", A, src=0), part(0, 1, "broadcast", B, src=1, shape=(2,))]
    others = [[part(r, 0, "broadcast", B, src=0), part(r, 1, "broadcast", [B, A][r == 1], src=1)] for r in (1, 2)]
    assert "on the shape of broadcast" in in_any_order([root, *others]), "the line of a root"


def test_where_ranks_met_before_is_told_even_if_they_were_never_on_one_line():
    """As of a library that makes a call of its own on some ranks alone: the others are a line ahead from the beginning."""
    ahead = [[part(0, 0, line=A), part(0, 1, line=B)], [part(1, 0, line=A), part(1, 1, line=B)]]
    said = in_any_order([*ahead, [part(2, 0, line=B), part(2, 1, "barrier", C)]])
    assert "ranks made call #1 from different lines, which may have mixed up their data:" in said
    assert re.search(r"  #1  ranks 0 and 1 +step, line 10:.*\n  #1  rank 2 +step, line 20:", said)
    own = in_any_order(
        [[part(0, 0), part(0, 1)], [part(1, 0), part(1, 1)], [part(2, 0, line=B), part(2, 1, "barrier", C)]]
    )
    assert "Earlier" not in own, "each rank has lines of its own: that is how the program is made"


def test_calls_that_torch_makes_to_stand_in_are_not_where_ranks_parted():
    def made(index, within, line, line_of_own=None):
        joined = [part(r, index, within="Join.__exit__") for r in (0, 1)]
        return [*joined, part(2, index, line=line, within=within)]

    calls = [[part(r, 0, line=C) for r in range(3)]]
    calls += [made(1, "DistributedDataParallel.forward", B), made(2, "Tensor.backward", C), made(3, None, B)]
    calls += [made(4, "DistributedDataParallel.forward", B)]
    two = made(5, None, B)[:2]
    out_of_input = [part(r, 5, within="Join.__exit__", **({"reduce_op": "MAX"} if r == 2 else {})) for r in range(3)]
    for last, flaw in ([*two, part(2, 5, "barrier", C)], "collective"), (out_of_input, "all_reduce"):
        monitor = Monitor(3)
        for event in itertools.chain(*calls, last):
            monitor.feed(event.rank, Called(event))
        said = wording.headline(monitor.final_verdict())
        assert f"disagree on which {flaw} to make" in said
        assert "Earlier, ranks made calls #4 and #5 from different lines" in said and "#2" not in said and "#3" not in said
        assert "Join matches only the calls of the models and optimizers given to it" in said


def test_an_exception_between_two_calls_that_ranks_make_in_different_orders_is_named():
    """The rank that caught it left out a call of the same form, and is a call ahead."""
    places = {0: (A, B, A), 1: (A, B, A), 2: (A, A, B)}
    monitor = Monitor(3)
    monitor.feed(2, Caught("OSError: gone", C, 1, 1))
    for r, mine in places.items():
        for k, line in enumerate(mine):
            monitor.feed(r, Called(part(r, k, line=line)))
    said = wording.headline(monitor.final_verdict())
    assert said.startswith("Mismatch: ranks make calls #2 and #3 in different orders.")
    assert "Earlier, after 1 call, rank 2 caught OSError: gone\n  step, line 30:  line_30()" in said


def alone(index, groups, ranks=(0, 1)):
    return Grouped(index, ranks, None, f"{ranks} of a process in {groups} groups", groups)


def test_of_groups_that_members_make_alone_only_names_without_a_partner_are_judged():
    monitor = Monitor(3, keep=4, grace=60)
    for index in range(20):  # rank 0 is far ahead of what is heard of rank 1, or behind it
        for rank in (0, 1) if index % 2 else (1, 0):
            monitor.feed(rank, alone(index, index))
            monitor.feed(rank, alone(100 + index, index, (rank, 2)))
    for index in range(20):
        monitor.feed(2, alone(2 * index, index, (0, 2)))
        assert not monitor.in_trouble
        monitor.feed(2, alone(2 * index + 1, index, (1, 2)))
    assert not monitor.in_trouble and not monitor._alone
    monitor.feed(0, alone(200, 30))
    monitor.feed(0, Ungrouped(200))  # it failed, and the program tries something else
    monitor.feed(1, alone(200, 31))
    assert not monitor.in_trouble
    monitor.feed(0, alone(201, 32))
    assert monitor.is_certain
    assert re.search(r"  rank 0  in 32 groups *\n  rank 1  in 31 groups *\n", wording.headline(monitor.verdict()))


def test_a_name_that_may_have_been_lost_is_held_against_nobody():
    monitor = Monitor(2)
    monitor.feed(0, alone(0, 1))
    monitor.feed(1, Skipped(0, {}, set()))
    monitor.feed(1, alone(1, 2))
    assert not monitor.in_trouble and monitor.standing[0].lacking == frozenset()


def test_a_recv_that_gloo_refuses_as_its_sender_is_gone_is_no_first_cause():
    """Rank 0 dropped its send and returned; rank 1's recv raises before anybody waits for it."""
    refused = Failure("RuntimeError", "Connection closed by peer [127.0.0.1]:5", [], True)
    sent, received = (
        Event(rank, 0, op, (0, 1), group_name="0", backend="gloo", src=0, dst=1, async_op=op == "send")
        for rank, op in ((0, "send"), (1, "recv"))
    )
    told = {
        0: [Called(sent), Completed(0, None, None, False, None), Returned(b"", (None, None), None, [])],
        1: [Called(received), Failed(refused)],
    }
    for order in turns([len(told[0]), len(told[1])]):
        monitor, left = Monitor(2), {rank: list(messages) for rank, messages in told.items()}
        for rank in order:
            monitor.feed(rank, copy.deepcopy(left[rank].pop(0)))
        verdict = monitor.failure()
        assert isinstance(verdict, Deadlock) and verdict.ranks == (1,), (order, verdict)
        assert "Rank 0 dropped the handle of isend #1" in wording.words(verdict)
