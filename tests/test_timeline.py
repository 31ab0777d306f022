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
from collectives.watch.steps.trace_file import FIRST_PROCESS
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


def test_a_call_that_never_ended_waits_until_the_end_for_whom_it_lacks():
    def lost():
        time.sleep(0.2 * dist.get_rank())
        if dist.get_rank() == 2:
            dist.recv(torch.zeros(1), 0)
        dist.barrier()

    with pytest.raises(Exception) as caught:
        run(lost, world_size=3)
    spans = timeline(caught.value.run).spans
    assert all(span.event.end is None and span.met == span.end for span in spans)
    late = {span.event.rank: span.late for span in spans}
    assert late == {0: 2, 1: 2, 2: None}  # not rank 1, the last that came, and nothing is known after rank 2 came


def test_nothing_to_show_is_said():
    with pytest.raises(ValueError, match="made no calls"):
        timeline(run(lambda: 1, world_size=2))


def traced(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def test_a_trace_file_has_every_call_and_no_slices_that_cross(picture, tmp_path):
    """Slices of a thread nest, or a viewer drops them; a call in flight has a beginning and an end of one id.

    In Perfetto 52 we saw this: what has an "id" is outside of all processes, with "id2" it is in its rank's; and each name
    has a lane.
    """
    whole = traced(picture.save(tmp_path / "trace.json.gz"))
    assert whole == traced(picture.save(tmp_path / "trace.json"))
    events, run = whole["traceEvents"], picture.run
    threads, flights, made = defaultdict(list), defaultdict(list), set()
    for e in events:
        if e["ph"] == "X":
            threads[e["pid"], e["tid"]].append((round(e["ts"] * 1000), -round((e["ts"] + e["dur"]) * 1000)))
            made.add((e["pid"] % FIRST_PROCESS, e["args"].get("call")))
        elif e["ph"] in "be":
            flights[e["pid"], e["cat"], e["name"], e["id2"]["local"]].append((e["ts"], e["ph"]))
            assert "id" not in e and "#" not in e["name"]
    assert made - {(rank, None) for rank in range(3)} == {(e.rank, e.index + 1) for mine in run.events for e in mine}
    for slices in threads.values():
        open_ = []
        for start, end in sorted(slices):
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or -end <= open_[-1]
            open_.append(-end)
    assert len(flights) == 3 and all([phase for _, phase in sorted(pair)] == ["b", "e"] for pair in flights.values())


def test_waits_for_two_calls_at_once_lie_on_two_threads(tmp_path):
    """Else the shorter wait would seem to be part of the longer. The times are set, the rest is a run's."""

    def overlap():
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
        for work in works:
            work.wait()

    done = run(overlap, world_size=2)
    for rank, (first, second) in enumerate(done.events):
        first.start, first.waiting, first.end = 0.2 * rank, 0.1 + 0.2 * rank, 0.9
        second.start, second.waiting, second.end = 0.05 + 0.2 * rank, 0.5, 0.6
    events = traced(timeline(done).save(tmp_path / "trace.json"))["traceEvents"]
    seen = {
        rank: [(e["name"], e["tid"]) for e in events if e["ph"] == "X" and e["pid"] % FIRST_PROCESS == rank]
        for rank in (0, 1)
    }
    assert seen[1] == [
        ("start all_reduce #1", 0), ("start all_reduce #2", 0), ("wait for all_reduce #1", 0), ("wait for all_reduce #2", 1)
    ]  # fmt: skip
    inside = [("wait for all_reduce #1", 0), ("rank 1 has not come", 0), ("all have come", 0)]
    assert seen[0] == [*seen[1][:2], *inside, ("wait for all_reduce #2", 1)]


def test_arrows_of_a_trace_begin_and_end_in_slices(picture, tmp_path):
    """Perfetto 52 drops an arrow whose id is no number, and turns it around if its first slice began later than its second."""
    events = traced(picture.save(tmp_path / "trace.json"))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    begun, met = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert begun.keys() == met.keys()

    def innermost(e):
        """When the slice began to which Perfetto ties an end of an arrow: the last that is open then."""
        return max(
            s["ts"]
            for s in slices
            if (s["pid"], s["tid"]) == (e["pid"], e["tid"]) and s["ts"] <= e["ts"] < s["ts"] + s["dur"]
        )

    assert all(isinstance(k, int) and innermost(begun[k]) <= innermost(met[k]) for k in begun)
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
    assert len([e for e in whole["traceEvents"] if "ts" in e and e["pid"] >= 2 * FIRST_PROCESS]) == sum(
        len([e for e in each if "ts" in e]) for each in theirs
    )
    ours, gloos = (
        sorted(e["ts"] for e in whole["traceEvents"] if e["ph"] == "X" and e["name"] == name)
        for name in ("all_reduce #2", "gloo:all_reduce")
    )
    assert len(ours) == len(gloos) == 2 and all(0 <= gloo - call < 50_000 for call, gloo in zip(ours, gloos))
    names = [e["args"]["name"] for e in whole["traceEvents"] if e["name"] == "process_name"]
    assert {"rank 0, python", "rank 1, python", "rank 0, Spans"} <= set(names)
    places = {e["pid"]: e["args"]["sort_index"] for e in whole["traceEvents"] if e["name"] == "process_sort_index"}
    in_order = sorted(places, key=places.__getitem__)
    assert [pid >= 2 * FIRST_PROCESS for pid in in_order] == [False, True, True] * 2  # after each rank, what is of it
    with pytest.raises(ValueError, match="is not a trace of torch.profiler"):
        seen.save(tmp_path / "none.json", ROOT / "pyproject.toml")


@pytest.mark.slow
def test_a_long_timeline_stays_short():
    def chat():
        for _ in range(400):
            dist.barrier()

    seen = timeline(run(chat, world_size=3))
    assert len(seen.text.splitlines()) == 1 + 3 + 1 + 1 + 1 + 40 and "the longest waits of 1,200 calls" in seen.text
    assert len(reading.drawn(seen).boxes) < 3 * 860
