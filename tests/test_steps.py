"""Training steps: found, timed, and who made the others wait."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from collectives import run, step_ended, training_steps
from collectives.log.event import Event
from collectives.outcome.run import Run

LATE = 0.1  # seconds


def straggles():
    """DistributedDataParallel, which waits in C++; rank 1 is late in each step."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        if dist.get_rank() == 1:
            time.sleep(LATE)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def test_who_is_late_in_each_step_of_ddp_is_named_and_waited_for():
    steps = training_steps(run(straggles, world_size=3))
    assert steps.counted and [step.number for step in steps][:1] == [0] and len(steps) >= 4
    later = steps[1:]  # a busy machine may hold up another rank now and then
    assert sum(step.late == 1 for step in later) > len(later) / 2
    worked, waited, caused = (
        [sum(getattr(step.ranks[rank], what) for step in later) for rank in range(3)]
        for what in ("worked", "waited", "caused")
    )
    assert all(waited[rank] > LATE / 2 * len(later) and worked[rank] < waited[rank] for rank in (0, 2))
    assert worked[1] >= LATE * len(later) and caused[1] > LATE * len(later)
    assert "Rank 1 held up the others: " in repr(steps)


def played(world_size, calls, step=None):
    """A Run of blocking calls: (op, {rank: (start, end)}), and the step of each."""
    events = [[] for _ in range(world_size)]
    for k, (op, times) in enumerate(calls):
        for rank, (start, end) in times.items():
            e = Event(
                rank, len(events[rank]), op, tuple(sorted(times)), start=start, end=end, step=step(k) if step else 0
            )
            events[rank].append(e)
    return Run(world_size, [None] * world_size, events, name="played")


def test_a_rank_that_is_late_because_it_waited_itself_passes_the_blame_on():
    """Rank 0 waits for 1 from 1 to 5, which waits for 2 from 2 to 4: rank 2 made them wait 2 + 2 s, rank 1 2 s."""
    calls = [("all_reduce", {1: (2.0, 4.0), 2: (4.0, 4.0)}), ("barrier", {0: (1.0, 5.0), 1: (5.0, 5.0)})]
    calls += [("broadcast", {0: (6.0, 6.0), 1: (6.0, 6.0), 2: (6.0, 6.0)})]
    (step,) = training_steps(played(3, calls, lambda k: k // 2))
    assert {rank: each.waited for rank, each in step.ranks.items()} == {0: 4.0, 1: 2.0, 2: 0.0}
    assert {rank: each.caused for rank, each in step.ranks.items()} == {0: 0.0, 1: 2.0, 2: 4.0} and step.late == 2


def test_steps_that_nobody_counted_are_the_calls_that_repeat():
    """After two other calls, five times three; before the first of the three the ranks work longest."""
    calls, at = [("barrier", {0: (0.0, 0.1), 1: (0.0, 0.1)}), ("scatter", {0: (0.2, 0.3), 1: (0.2, 0.3)})], 0.5
    for _ in range(5):
        for op, pause in (("all_gather", 1.0), ("all_reduce", 0.1), ("all_reduce", 0.1)):
            calls.append((op, {0: (at + pause, at + pause + 0.5), 1: (at + pause, at + pause + 0.5)}))
            at += pause + 0.5
    steps = training_steps(played(2, calls))
    assert not steps.counted and len(steps) == 5 and steps.outside == 4
    assert all(each.calls == 3 and each.worked == pytest.approx(1.2) and each.moved == pytest.approx(1.5)
               for step in steps[1:] for each in step.ranks.values())  # fmt: skip


def test_of_optimizers_that_take_turns_the_last_ends_a_step_and_the_programs_marks_come_first():
    def train(marks: bool):
        first, second = (torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(2))
        for _ in range(4):
            for optimizer in (first, second):
                dist.all_reduce(torch.ones(1))
                optimizer.step()
            if marks:
                dist.barrier()
                step_ended()

    counted = [e.step for e in run(train, False, world_size=2).events[0]]
    assert counted == [0, 1, 2, 2, 3, 3, 4, 4]  # that it is the second is known once the first steps again
    marked = [e.step for e in run(train, True, world_size=2).events[0]]
    assert marked[-6:] == [marked[-1] - 1] * 3 + [marked[-1]] * 3


@pytest.mark.slow
def test_ten_thousand_steps_are_said_on_a_screen():
    calls = [("all_reduce", {0: (k, k + 0.5), 1: (k + 0.4, k + 0.5)}) for k in range(10_000)]
    steps = training_steps(played(2, calls, lambda k: k))
    said = repr(steps)
    assert len(steps) == 10_000 and len(said.splitlines()) <= 24 and max(map(len, said.splitlines())) <= 120
    assert steps.by("rank")[1].caused == pytest.approx(4000)
