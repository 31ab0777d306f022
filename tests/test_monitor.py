"""The judge of a run, fed with what ranks wrote down elsewhere: a file for each rank, read one after the other."""

import dataclasses
import inspect
import linecache
import re
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist

from collectives.judge import wording
from collectives.judge.monitor import Monitor
from collectives.rank.protocol import Called, Completed, Frames, Misused, Returned, Waiting, frame
from collectives.record.event import Event
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
    for file in (*(ROOT / "collectives").rglob("*.py"), *(ROOT / "helpers").rglob("*.py")):
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
