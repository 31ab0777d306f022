"""timeline(): who waited for whom, and the trace file that other viewers open."""

import gzip
import json
import time
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist

from collectives.draw.canvas import AMOUNT
from collectives.format import duration
from collectives.play.trace_file import FIRST_PROCESS
from helpers import run, timeline
from tests import ROOT, reading


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
    assert len(picture.text.splitlines()) == 1 + 3 + 1 + 1 + 3 * 4


def test_a_rank_works_waits_or_moves(picture):
    for rank, share in enumerate(picture.shares):
        mine = [span for span in picture.spans if span.event.rank == rank]
        assert sum(share[:3]) == pytest.approx(max(span.end for span in mine)) and min(share[:3]) >= 0
        assert share.waited == pytest.approx(sum(span.waits for span in mine))
    shapes = reading.drawn(picture)
    for (y, rank, _), share in zip(reading.ranks(shapes), picture.shares):  # the first rows are the totals
        told = [w.text for w in shapes.words if abs(w.y - y) < 1 and w.text.startswith("worked ")]
        assert told == [f"worked {duration(share.worked)}, waited {duration(share.waited)}"
                        + f" for rank {share.late}" * (share.late is not None) + f", moved {duration(share.moved)}"]  # fmt: skip
        worked = [box for box in shapes.boxes if abs((box.top + box.bottom) / 2 - y) < 1 and box.fill == AMOUNT]
        assert len(worked) == 1 or share.worked < 0.01


@pytest.mark.parametrize("seconds, says", [(0.9996, "1 s"), (0.9994, "999 ms"), (9.996e-4, "1 ms"), (2e-7, "0.2 µs")])
def test_a_time_is_said_in_the_unit_that_its_three_figures_have(seconds, says):
    assert duration(seconds) == says


def test_a_short_wait_is_shown_from_near():
    """Of 0.65 s rank 0 waits 50 ms, which alone would be a hair's breadth; the times are set, the rest is a run's."""

    def meet_twice():
        dist.barrier()
        dist.barrier()

    done = run(meet_twice, world_size=2)
    for rank, came in enumerate((0.6, 0.65)):
        first, second = done.events[rank]
        first.start, first.end, second.start, second.end = 0.0, 0.001, came, 0.651
    seen = timeline(done)
    words = [w.text for w in reading.drawn(seen).words]
    assert "Close-up: the longest wait: rank 0, 50 ms in barrier #2, for rank 1" in words
    assert "worked 599 ms, waited 50 ms for rank 1, moved 2 ms" in words
    assert seen.text.splitlines()[1].split() == ["0", "599", "ms", "50", "ms", "2", "ms", "rank", "1"]


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


def traced(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def test_a_trace_file_has_every_call_and_no_slices_that_cross(picture, tmp_path):
    """Slices of a thread nest, or a viewer drops them; a call in flight has a beginning and an end of one id."""
    whole = traced(picture.save(tmp_path / "trace.json.gz"))
    assert whole == traced(picture.save(tmp_path / "trace.json"))
    events, run = whole["traceEvents"], picture.run
    threads, flights, made = defaultdict(list), defaultdict(list), set()
    for e in events:
        if e["ph"] == "X":
            threads[e["pid"], e["tid"]].append((round(e["ts"] * 1000), -round((e["ts"] + e["dur"]) * 1000)))
            made.add((e["pid"] % FIRST_PROCESS, e["args"].get("call")))
        elif e["ph"] in "be":
            flights[e["pid"], e["cat"], e["id"]].append((e["ts"], e["ph"]))
    assert made - {(rank, None) for rank in range(3)} == {(e.rank, e.index + 1) for mine in run.events for e in mine}
    for slices in threads.values():
        open_ = []
        for start, end in sorted(slices):
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or -end <= open_[-1]
            open_.append(-end)
    assert len(flights) == 3 and all([phase for _, phase in sorted(pair)] == ["b", "e"] for pair in flights.values())


def test_arrows_of_a_trace_begin_and_end_in_slices(picture, tmp_path):
    events = traced(picture.save(tmp_path / "trace.json"))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    begun, met = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert begun.keys() == met.keys()
    for e in (*begun.values(), *met.values()):
        assert any(
            (s["pid"], s["tid"]) == (e["pid"], e["tid"]) and s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in slices
        )
    ends = [(e["name"], *(at[k]["pid"] - FIRST_PROCESS for at in (begun, met))) for k, e in begun.items()]
    assert {each for each in ends if each[0] == "message"} == {("message", 0, 1), ("message", 1, 2), ("message", 2, 0)}
    assert {("kept waiting", 1, 0), ("kept waiting", 1, 2)} <= set(ends)


def profiled(folder):
    with torch.profiler.profile() as profiler:
        straggler()
    profiler.export_chrome_trace(f"{folder}/kineto{dist.get_rank()}.json")


def test_a_trace_lies_on_the_clock_of_torch_profilers(tmp_path):
    seen = timeline(run(profiled, str(tmp_path), world_size=2))
    paths = [tmp_path / f"kineto{rank}.json" for rank in range(2)]
    whole = traced(seen.save(tmp_path / "all.json", *paths))
    theirs = [traced(path)["traceEvents"] for path in paths]
    assert len([e for e in whole["traceEvents"] if e.get("pid", 0) >= 2 * FIRST_PROCESS]) == sum(
        len([e for e in each if "pid" in e]) for each in theirs
    )
    ours, gloos = (
        sorted(e["ts"] for e in whole["traceEvents"] if e["ph"] == "X" and e["name"] == name)
        for name in ("all_reduce #2", "gloo:all_reduce")
    )
    assert len(ours) == len(gloos) == 2 and all(0 <= gloo - call < 50_000 for call, gloo in zip(ours, gloos))
    with pytest.raises(ValueError, match="is not a trace of torch.profiler"):
        seen.save(tmp_path / "none.json", ROOT / "pyproject.toml")


def test_a_long_timeline_stays_short():
    def chat():
        for _ in range(400):
            dist.barrier()

    seen = timeline(run(chat, world_size=3))
    assert len(seen.text.splitlines()) == 1 + 3 + 1 + 1 + 1 + 40 and "the longest waits of 1,200 calls" in seen.text
    assert len(reading.drawn(seen).boxes) < 3 * 860
