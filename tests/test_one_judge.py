"""The same fault, judged twice: by what its ranks report while they run, and by the dumps that they leave."""

import pkgutil
import random
import typing
from itertools import chain, combinations_with_replacement

import pytest
import torch

from collectives.judge import diagnose, verdict, wording
from collectives.judge.monitor import Monitor
from collectives.judge.verdict import Cause, Disagreement
from collectives.judge.wording import mismatches
from collectives.log.event import MAIN, Event, Line
from collectives.log.messages import Began, Called, Completed, Issued, Waiting, WorkBegan
from collectives.watch.explain import evidence, ops
from collectives.watch.explain.command import explain
from collectives.watch.explain.judged import Judged
from collectives.watch.explain.dumped_job import DumpedJob
from tests.corpus import dumps
from tests.corpus.dumps import FREEZE, STOP, SYNC, WORLD, Do, Played

KINDS = ("absent", "left out", "shape", "collective", "freeze")


def live(played: Played) -> Monitor:
    """The judge of a job on GPUs, told of each call when it is issued, and of its end, in the order of time."""
    told = []
    for rank, entries in enumerate(played.made):
        for index, made in enumerate(entries):
            do = made["do"]
            ends = {} if do.peer is None else {"dst" if do.kind == "send" else "src": do.peer}
            event = Event(
                rank, index, ops.op_of(do.kind), played.groups[do.group], **ends, group_name=do.group[0], dtype=torch.float32,
                shape=do.shape, line=Line("train.py", do.line, "train_step"), start=float(made["made"]), backend="nccl",
            )  # fmt: skip
            told += [(made["made"], rank, Called(event)), (made["made"], rank, Issued(index, None, event.start))]
            if made["ended"]:
                told.append((made["ended"], rank, Completed(index, None, float(made["ended"]), True, None)))
    monitor = Monitor(played.size, keep=256)
    for rank in range(played.size):
        monitor.feed(rank, Began())
    for _, rank, message in sorted(told, key=lambda at: at[0]):
        monitor.feed(rank, message)
    monitor.nothing_more()
    return monitor


def named(causes: tuple[Cause, ...]) -> list[tuple]:
    """What causes say: how, who, in which call, and what was left out before."""
    calls = [cause.waits[0].call for cause in causes]
    where = [(call.events[0].group_name, call.index, call.is_message) for call in calls]
    slips = [cause.slip and (cause.slip.rank, cause.slip.by, ops.family(cause.slip.first.op)) for cause in causes]
    return [(cause.kind, cause.ranks, cause.held, at, slip) for cause, at, slip in zip(causes, where, slips)]


def both_ways(played: Played, folder) -> tuple[Cause, ...]:
    """The causes, which must be the same by messages and by files."""
    monitor = live(played)
    standstill = monitor.standstill(1.0)
    played.write(folder)
    found = evidence.gather([folder])
    judged = Judged(DumpedJob({each.rank: each for each in found.dumps}))
    assert named(standstill.causes) == named(judged.causes)
    disagreement = monitor.verdict()
    if flaws := {cause.flaw for cause in standstill.causes if cause.kind == "mismatch"}:
        assert isinstance(disagreement, Disagreement) and disagreement.flaw in flaws
    return judged.causes


def spoil(kind: str, program: list, rng: random.Random, dimension: str = "") -> None:
    """Let something go wrong in a rank's program: at one of its calls of groups of this dimension."""
    calls = [i for i, step in enumerate(program) if step != SYNC and dimension in step.group[1]]
    at = rng.choice([i for i in calls if program[i].peer is None or kind in ("absent", "freeze")])
    match kind:
        case "absent":
            program.insert(at, STOP)
        case "freeze":
            program.insert(at, FREEZE)
        case "left out":
            del program[at]
        case "shape":
            program[at] = program[at]._replace(shape=(7,))
        case "collective":
            program[at] = program[at]._replace(kind="broadcast")


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_has_the_same_cause_by_messages_and_by_dumps(kind, tmp_path):
    for seed in range(60):
        rng = random.Random(f"{kind} {seed}")
        groups, programs = dumps.mesh(2, 2, 2), dumps.training(2, 2, 2, steps=rng.choice([1, 2, 3]))
        rank = rng.randrange(8)
        spoil(kind, programs[rank], rng)
        (cause,) = both_ways(Played(groups, programs), tmp_path / str(seed))
        # Of a kernel that does not end, nothing tells on which of the ranks it is that wait for it.
        blamed = [wait.event.rank for wait in cause.waits] if kind == "freeze" else cause.ranks
        assert rank in blamed and (cause.kind == "joined") == (kind == "freeze"), (seed, rank, cause)


@pytest.mark.parametrize("kinds", [*combinations_with_replacement(("absent", "shape", "collective", "freeze"), 2)])
def test_two_faults_in_groups_apart_are_both_named(kinds, tmp_path):
    """Two of 16 GPUs, in tensor-parallel groups of different replicas, of which neither needs the other until later."""
    for seed in range(6):
        rng = random.Random(f"{kinds} {seed}")
        groups, programs = dumps.mesh(2, 2, 4), dumps.training(2, 2, 4, steps=1)
        ranks = [8 * rng.randrange(2) + 4 * replica + rng.randrange(4) for replica in range(2)]
        for kind, rank in zip(kinds, ranks):
            spoil(kind, programs[rank], rng, "tp")
        causes = both_ways(Played(groups, programs), tmp_path / str(seed))
        for kind, rank in zip(kinds, ranks):
            blamed = [cause.ranks or tuple(wait.event.rank for wait in cause.waits) for cause in causes]
            assert rank in chain(*blamed) and len(causes) == 2, (seed, ranks, named(causes))


# --- what is said -------------------------------------------------------------------------


def test_both_say_who_holds_up_whom_in_the_same_words(tmp_path):
    groups, programs = dumps.mesh(2, 2, 4), dumps.training(2, 2, 4, steps=1)
    for rank in (2, 5):
        programs[rank].insert(4, STOP)
    played = Played(groups, programs)
    played.write(tmp_path)
    who = "Ranks 2 and 5 hold up the other 14: rank 2 has not made all_reduce"
    said = explain(tmp_path)
    assert said.startswith(
        f"{who} #3 of group mesh_tp (0-3); rank 5 has not made all_reduce #3 of group mesh_tp (4-7).\n"
        "Ranks 0, 1 and 3 are waiting in all_reduce #3 of group mesh_tp (0-3), for at least "
    )
    assert said.count("They are running something else, outside any recorded call") == 1
    # A watched job counts the calls of a rank, and knows a group by its members.
    watched = wording.headline(live(played).standstill(4.0))
    assert f"\n{who} #5 of group 0-3; rank 5 has not made all_reduce #5 of group 4-7.\n" in watched


def test_a_call_that_was_left_out_is_named_while_a_job_runs():
    programs = [[Do("all_reduce", WORLD, line=10 + n % 2) for n in range(10)] for _ in range(3)]
    del programs[1][4]
    said = wording.headline(live(Played({WORLD: (0, 1, 2)}, programs)).standstill(4.0))
    assert (
        "Rank 1 holds up the other 2: it has not made all_reduce #10.\nRank 1 left out all_reduce #5, at train_step"
        in said
    )


# --- what messages tell beyond dumps ------------------------------------------------------


def told(*messages: tuple) -> tuple[Cause, ...]:
    """The causes in a job of three ranks."""
    monitor = Monitor(3, check=False)
    for rank in range(3):
        monitor.feed(rank, Began())
    for rank, message in messages:
        monitor.feed(rank, message)
    standstill = monitor.standstill(1.0)
    return standstill.causes if standstill else ()


def a_call(rank: int, index: int, op: str = "all_reduce", **about) -> tuple:
    return rank, Called(Event(rank, index, op, (0, 1, 2), start=float(index), **about))


def test_a_batch_that_a_network_loses_is_no_circle_of_ranks():
    """Its messages are reported one after the other, and issued together."""
    batch = [
        [a_call(r, 0, "send", dst=(r + 1) % 3, backend="nccl"), a_call(r, 1, "recv", src=(r - 1) % 3, backend="nccl")]
        + [(r, Issued(index, None, 2.0)) for index in range(2)]
        for r in range(3)
    ]
    causes = told(*chain(*batch))
    assert {cause.kind for cause in causes} == {"joined"}


def test_a_rank_that_waits_for_another_one_holds_up_nobody():
    """Until its time limit; or in a thread, while its main thread goes on."""
    late = [a_call(0, 0), (0, Waiting(0, 0.5, False, "main"))]
    limited = [a_call(1, 0, group_name="other"), (1, Waiting(0, 0.5, True, "main"))]
    thread = [(1, WorkBegan("worker", None)), a_call(1, 0, group_name="other"), (1, Waiting(0, 0.5, False, "worker"))]
    thread.append(a_call(1, 1, group_name="third", end=1.5))
    for waiting in (limited, thread):
        (cause,) = told(*waiting, *late)
        assert (cause.kind, cause.ranks) == ("absent", (2,)), cause


def test_a_rank_in_a_call_with_a_time_limit_is_not_in_your_code():
    monitor = Monitor(3, check=False)
    for rank in (1, 2):
        for message in (a_call(rank, 0), (rank, Waiting(0, 0.5, True, MAIN))):
            monitor.feed(*message)
        monitor.locate(rank, Line("train.py", 6, "step"), ["all_reduce", "step"])
    monitor.feed(0, Began())
    said = wording.headline(monitor.standstill(4.0))
    assert "ranks 1 and 2  waiting in all_reduce #1, for a limited time" in said, said


def test_what_is_not_waited_for_accuses_nobody():
    """As an isend whose handle is dropped, on gloo."""
    assert told(a_call(0, 0, "send", dst=1, async_op=True), a_call(2, 0, "barrier", async_op=True)) == ()


def test_a_rank_that_has_reported_nothing_may_hold_up_the_others():
    monitor = Monitor(3, check=False)
    for rank in range(2):
        monitor.feed(*a_call(rank, 0, backend="nccl"))
    (cause,) = monitor.standstill(1.0).causes
    assert (cause.kind, cause.ranks, cause.held) == ("silent", (2,), {0, 1})
    assert "Rank 2 may hold up the other 2: it has reported nothing, and ranks 0 and 1 are waiting in all_reduce #1." in (
        wording.headline(monitor.standstill(1.0))
    )


def leaves(kind):
    """The classes below this one that have none below them."""
    return set().union(*map(leaves, kind.__subclasses__())) or {kind}


def test_every_kind_has_its_words():
    assert leaves(verdict.Verdict) == set(wording._KINDS), "see _KINDS in judge/wording/__init__.py"
    assert set(diagnose._GRAVITY) <= set(mismatches.CONSEQUENCES), "see CONSEQUENCES in judge/wording/mismatches.py"


@pytest.mark.parametrize("table", ["judge.wording.causes._WHY", "watch.explain.words._SENTENCES", "watch.explain.words._ADVICE"])
def test_every_kind_of_cause_has_its_words(table):
    kinds = set(typing.get_args(typing.get_type_hints(Cause)["kind"]))
    assert set(pkgutil.resolve_name(f"collectives.{table}")) == kinds
