"""The same fault, judged twice: by what its ranks report while they run, and by the dumps that they leave."""

import random
from itertools import chain, combinations_with_replacement

import pytest
import torch

from collectives.explain import evidence, ops
from collectives.explain.messages import Judged
from collectives.explain.waits import Job
from collectives.judge.monitor import Monitor
from collectives.judge.verdict import Cause, Disagreement
from collectives.rank.protocol import Began, Called, Completed, Issued
from collectives.record.event import Event, Line
from tests.corpus import dumps
from tests.corpus.dumps import FREEZE, STOP, SYNC, Played

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
    judged = Judged(Job({each.rank: each for each in found.dumps}))
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
