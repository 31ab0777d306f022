"""The judge of a run, fed with what ranks wrote down elsewhere: a file for each rank, read one after the other."""

import linecache

import pytest
import torch
import torch.distributed as dist

from helpers import RunError, run
from helpers.rank.protocol import Frames, frame
from helpers.results.monitor import Monitor
from helpers.results.run import Run


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
    replayed = monitor.final_verdict()(Run(3, [None] * 3, monitor.state.events, [""] * 3, 0.0))
    assert type(replayed) is live.type
    assert str(replayed) == str(live.value)
