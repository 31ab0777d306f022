"""Traces of torch.profiler, explained: made for real with gloo, and as NCCL's kernels are in them."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from collectives.explain import load
from collectives.machines import machine
from collectives.watch.explain.command import explain
from tests import ROOT

PROFILED = """
import sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    for _ in range(3):
        dist.all_reduce(torch.ones(1 << 16))
    dist.broadcast(torch.ones(100), 0)
p.export_chrome_trace(f"{sys.argv[1]}/rank_{rank}.json.gz")
"""


@pytest.mark.slow
def test_traces_made_for_real_with_gloo(tmp_path):
    (tmp_path / "job.py").write_text(PROFILED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, "job.py", str(tmp_path)], cwd=tmp_path, env=environment, check=True, capture_output=True)
    said = explain(tmp_path)
    assert "256 KiB" in said and "The traces of ranks 0 and 1 don't say in which group a call of gloo was made." in said
    run = load(*tmp_path.glob("*.gz"))
    assert run.traffic.ops == {"all_reduce": 6, "broadcast": 2}
    assert run.totals["all_reduce", 2, "float32"].nbytes == 6 * 4 << 16


def trace(rank: int, waits: list[float], old: bool = False) -> dict:
    """Of one rank of three: all_reduces of 64 MiB that take 500 µs and the wait, each beside a kernel of 300 µs."""
    events, at = [], 1000.0 * (rank + 1)  # clocks differ
    for number, wait in enumerate(waits):
        at += 2000
        args = {"stream": 20, "correlation": number, "device": rank}
        if not old:
            args |= {"Collective name": "allreduce", "In msg nelems": 1 << 24, "Out msg nelems": 1 << 24, "Group size": 3,
                     "dtype": "Float", "Process Group Name": "0", "Process Group Description": "default_pg",
                     "Process Group Ranks": "[0, 1, 2]"}  # fmt: skip
        common = {"ph": "X", "pid": rank}
        told = {"name": "nccl:all_reduce", "cat": "user_annotation", "tid": 5, "ts": at - 30, "dur": 20}
        shapes = {"Input Dims": [[1 << 24]], "Input type": ["float"]} if number else {}
        launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "tid": 5, "ts": at - 20, "dur": 5}
        kernel = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "cat": "kernel", "tid": 20}
        events += [
            common | told | {"args": shapes},
            common | launch | {"args": {"correlation": number}},
            common | kernel | {"ts": at, "dur": 500 + wait, "args": args},
            common | {"name": "gemm", "cat": "kernel", "tid": 7, "ts": at, "dur": 300, "args": {"stream": 7}},
        ]
    info = {"backend": "nccl", "rank": rank, "world_size": 3}
    return {"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "distributedInfo": info, "traceEvents": events}


WAITS = [[400.0, 300.0, 0.0, 500.0], [350.0, 320.0, 40.0, 450.0], [0.0, 0.0, 30.0, 0.0]]


def written(folder, old=False):
    for rank, waits in enumerate(WAITS):
        (folder / f"rank-{rank}.pt.trace.json.gz").write_bytes(
            gzip.compress(json.dumps(trace(rank, waits, old)).encode())
        )


def test_who_came_last_what_was_hidden_and_what_the_machine_should_give(tmp_path):
    written(tmp_path)
    said = explain(tmp_path)
    assert said.startswith(
        "Rank 2 holds up the other 2: it came last in 3 of 4 collectives, for which each waited 1.16 ms on average."
    )
    row = next(line.split() for line in said.splitlines() if "all_reduce" in line and "MiB" in line)
    assert row[:5] == ["all_reduce", "all", "3", "64", "MiB"] and row[5:8] == ["4", "500", "µs"]
    assert float(row[8]) == pytest.approx(2 * 2 / 3 * 2**26 / 500e-6 / 1e9, rel=1e-2)  # by the rank that came last
    assert "model: NCCL on 3 x H100." in said
    hidden = next(line for line in said.splitlines() if line.split()[:1] == ["2"])
    assert "2.03 ms, 31%" in hidden and "830 µs, 13%" in hidden, (
        hidden
    )  # four of 500 and 30; beside kernels of 300 each


@pytest.mark.parametrize("gpu", ["GB300", "B300", "GB200", "B200"])
def test_a_trace_is_priced_on_its_own_gpu(tmp_path, gpu):
    told = trace(0, WAITS[0]) | {"deviceProperties": [{"name": f"NVIDIA {gpu} SXM"}]}
    (tmp_path / "rank-0.pt.trace.json").write_text(json.dumps(told))
    assert f"model: NCCL on 3 x {gpu}." in explain(tmp_path)


def test_traces_of_two_ranks_on_an_h200():
    """DDP on NCCL, left by tests/gpu: rank 1 slept for 0.1 s in each of three steps."""
    files = sorted((ROOT / "tests" / "corpus" / "nccl").glob("trace_*"))
    told = explain(*files)
    late = "Rank 1 holds up the other rank: it came last in 3 of 5 collectives, for which the other waited 303 ms."
    assert told.startswith(late), told
    record = load(*files)
    for mine in record.events:
        gradients = [e for e in mine if e.op == "all_reduce"]
        assert [(e.nbytes, e.backend, e.group) for e in gradients] == [(1 << 22, "nccl", (0, 1))] * 3
    assert "NVIDIA H200" in told


def test_an_older_trace_is_read_by_its_launches(tmp_path):
    written(tmp_path, old=True)
    said = explain(tmp_path)
    assert said.startswith("Rank 2 holds up the other 2")
    assert "don't say what some collectives carried, and in which group: it is of an older torch." in said
    assert "64 MiB" in said


def test_a_bill_of_a_trace_and_a_machine_by_name(tmp_path):
    written(tmp_path)
    run = load(tmp_path)
    assert run.verdict.startswith("Rank 2 holds up") and len(run.calls) == 4
    assert "all_reduce" in repr(run.bill(machine("DGX A100", 3)))
    assert json.loads(run.timeline().save(tmp_path / "out.json").read_text())["traceEvents"]
    assert "model: NCCL on 3 x B200." in explain(tmp_path, machine="HGX B200, EFA")
    with pytest.raises(ValueError, match="no machine is called 'H1000'"):
        explain(tmp_path, machine="H1000")


def test_steps_of_traces_are_their_profilers_and_count_what_is_exposed(tmp_path):
    """Clocks agree here, and rank 2 comes last: the others' kernels wait, 300 µs of each beside another kernel."""
    for rank, waits in enumerate(WAITS):
        data = trace(0, waits)
        data["distributedInfo"]["rank"] = rank
        kernels = [e for e in data["traceEvents"] if e["name"].startswith("ncclDev")]
        for number, kernel in enumerate(kernels):
            kernel["ts"] = 3000.0 * (number + 1) - waits[number]
            kernel["dur"] = 500 + waits[number]
            beside = next(e for e in data["traceEvents"] if e["name"] == "gemm" and "seen" not in e)
            beside |= {"ts": kernel["ts"], "seen": True}
            told = {"name": f"ProfilerStep#{number + 7}", "cat": "user_annotation", "tid": 5, "ts": kernel["ts"] - 900}
            data["traceEvents"].append({"ph": "X", "pid": 0, "dur": 1800, **told})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(data))
    steps = load(tmp_path).training_steps()
    assert [step.number for step in steps] == [7, 8, 9, 10]
    assert steps[0].ranks[0].waited == pytest.approx(100e-6) and steps[0].ranks[0].moved == pytest.approx(500e-6)
    assert steps[3].ranks[1].waited == pytest.approx(150e-6) and steps[3].late == 2
    assert "do not say when a rank was blocked" not in repr(steps)
    (kind,) = steps.kinds(machine("DGX A100", 3))
    assert kind.busbw == pytest.approx(2 * 2 / 3 * 2**26 / 500e-6, rel=1e-2) and kind.model > 0


def test_the_bandwidth_of_a_gather_counts_the_parts_of_all_ranks(tmp_path):
    for kind in ("allgather", "gather"):
        for rank, waits in enumerate(WAITS):
            data = json.dumps(trace(rank, waits)).replace('"allreduce"', f'"{kind}"')
            (tmp_path / f"rank{rank}.json").write_text(data)
        row = next(line.split() for line in explain(tmp_path).splitlines() if "MiB" in line)
        assert row[3:5] == ["192", "MiB"], row


def test_traces_that_cannot_be_used_are_named(tmp_path):
    written(tmp_path)
    whole = (tmp_path / "rank-1.pt.trace.json.gz").read_bytes()
    (tmp_path / "rank-1.pt.trace.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rank-7.json").write_text('{"traceEvents": []}')
    (tmp_path / "again.json").write_text(json.dumps(trace(0, WAITS[0])))
    (tmp_path / "bad.json").write_text(
        json.dumps({"traceEvents": [{"ph": "X", "dur": 1, "ts": "x", "cat": "kernel", "name": "nccl"}]})
    )
    said = explain(tmp_path)
    for words in (
        "rank-1.pt.trace.json.gz is compressed and cut short or damaged",
        "rank-7.json is a trace without any collective.",
        "is of rank 0, which another trace has already: left out.",
        "bad.json is not a complete trace of torch.profiler: TypeError",
        "2 of 3 ranks have a trace here.",
    ):
        assert words in said, said
