"""timeline(): who waited for whom, and the trace file that other viewers open."""

import json
import time

import pytest
import torch
import torch.distributed as dist

from helpers import run, timeline


def straggler():
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    if rank == 1:
        time.sleep(0.4)
    dist.all_reduce(torch.ones(2))
    send = dist.isend(torch.ones(2), (rank + 1) % n)
    dist.recv(torch.zeros(2), (rank - 1) % n)
    send.wait()


@pytest.fixture(scope="module")
def picture():
    return timeline(run(straggler, world_size=3))


def test_a_straggler_is_seen(picture):
    sums = {span.event.rank: span for span in picture.spans if span.event.op == "all_reduce"}
    assert sums[0].waits > 0.2 and sums[2].waits > 0.2 and sums[1].waits == 0
    assert sums[0].late == sums[2].late == 1 and sums[1].late is None
    assert all(span.start <= span.blocked <= span.met <= span.end for span in picture.spans)
    assert repr(picture) == "Picture: timeline of straggler, 3 ranks, 5 calls"
    assert len(picture.text.splitlines()) == 1 + 3 * 4


def test_a_call_that_never_ended_waits_until_the_end():
    def lost():
        if dist.get_rank() == 1:
            time.sleep(0.2)
            dist.recv(torch.zeros(1), 0)
        else:
            dist.recv(torch.zeros(1), 1)

    with pytest.raises(Exception) as caught:
        run(lost, world_size=2)
    spans = timeline(caught.value.run).spans
    assert all(span.event.end is None and span.met == span.end for span in spans)


def test_nothing_to_show_is_said():
    with pytest.raises(ValueError, match="made no calls"):
        timeline(run(lambda: 1, world_size=2))


def test_the_trace_file_has_every_call_and_message(picture, tmp_path):
    events = json.loads(picture.save(tmp_path / "trace.json").read_text())["traceEvents"]
    made = [(e["name"], e["tid"], e["args"]["call"]) for e in events if e["ph"] == "X" and "call" in e["args"]]
    assert sorted(made) == sorted((e.op, e.rank, e.index + 1) for per_rank in picture.run.events for e in per_rank)
    begun, met = ({(e["id"], e["tid"]) for e in events if e["ph"] == phase} for phase in "sf")
    assert len(begun) == len(met) == 3 and all((k, (tid + 1) % 3) in met for k, tid in begun)
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
