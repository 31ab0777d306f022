"""What only GPUs can show: `make test-gpu`, on one GPU or more; where there is one, two ranks share it."""

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from collectives import run
from collectives.explain import load as explained
from collectives.jobs import load
from collectives.watch.explain.command import explain
from tests import ROOT

GPUS = torch.cuda.device_count()
RANKS = max(GPUS, 2)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not GPUS, reason="there is no GPU here")]
needs_nccl = pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL")


@pytest.fixture
def job(tmp_path):
    """Runs a function of job.py under torchrun, and under the recorder unless plain. Returns exit code and output."""

    def run_job(name, backend, *options, limit=120, plain=False, **environ):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
        command += [] if plain else ["-m", "collectives.watch", "--record", tmp_path / "r", *options]
        command += [ROOT / "tests" / "gpu" / "job.py", name, backend, limit]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environ
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environ, text=True, timeout=150, **pipes)
        (tmp_path / "output.txt").write_text(done.stdout)
        return done.returncode, done.stdout

    return run_job


@pytest.fixture
def recorded(job, tmp_path):
    """Runs a function of job.py, which is right, and returns its record."""

    def run_job(*about):
        code, said = job(*about)
        assert code == 0, said
        record = load(tmp_path / "r")
        assert record.verdict == ""
        return record

    return run_job


# --- what is right ------------------------------------------------------------------------


@needs_nccl
def test_calls_on_nccl_are_issued_and_their_ends_seen_later(recorded):
    for mine in recorded("ways", "nccl").events:
        *left, barrier = mine
        assert {e.backend for e in mine} == {"nccl"} and all(e.waited and e.end is not None for e in mine)
        assert barrier.op == "barrier" and barrier.issued is None
        assert any(e.issued is not None and e.end - e.issued > 0.1 for e in left)  # behind what kept the device busy


def test_calls_on_gloo_that_share_a_gpu_are_waited_for(recorded):
    for mine in recorded("ways", "gloo").events:
        assert {e.backend for e in mine} == {"gloo"} and all(e.waited and e.end is not None for e in mine)
        assert all(e.issued is None for e in mine)


@needs_nccl
def test_a_graph_is_captured_under_the_recorder(recorded):
    for mine in recorded("graph", "nccl", "--values").events:
        assert [e.captured for e in mine] == [False, True, False]


@needs_nccl
def test_ddp_is_recorded(recorded):
    for mine in recorded("ddp", "nccl").events:
        gradients = [e for e in mine if e.op == "all_reduce" and e.shape == (20,)]
        assert len(gradients) == 3 and all(e.waited for e in gradients)


@needs_nccl
def test_uneven_tensors_are_no_mistake(recorded):
    recorded("uneven", "nccl")


@needs_nccl
def test_the_first_nan_is_found_on_the_gpu_without_waiting_for_it(job, tmp_path):
    code, said = job("not_a_number", "nccl", "--nan")
    assert code == 0, said
    assert re.search(r"rank 1 passes a NaN or an infinity to all_reduce #2, the first: not_a_number, line \d+", said), (
        said
    )
    for mine in load(tmp_path / "r").events:
        assert all(e.issued is not None for e in mine if e.op == "all_reduce")


def total():
    x = torch.full((2,), float(dist.get_rank() + 1)).to("cuda")
    dist.all_reduce(x)
    return str(x.device), x.tolist()


@pytest.mark.parametrize("backend, ranks", [("gloo", 2), pytest.param("nccl", GPUS, marks=needs_nccl)])
def test_run_shows_values_of_tensors_on_gpus(backend, ranks):
    done = run(total, world_size=max(ranks, 1), backend=backend, device="cuda")
    for rank, (device, values) in enumerate(done.results):
        assert device == f"cuda:{rank % GPUS}" and values == [sum(range(1, ranks + 1))] * 2
        assert done.events[rank][0].after.tolist() == values


# --- what goes wrong ----------------------------------------------------------------------


@needs_nccl
def test_the_rank_that_does_not_come_is_named_and_not_the_one_that_the_watchdog_ends(job, tmp_path):
    code, said = job("absent", "nccl", "--patience", "4", limit=12)
    assert code == 1 and "Watchdog caught" in said
    standstill, end = load(tmp_path / "r").verdict.split("RankFailed: ")
    assert "all_reduce #2 of rank 0 lacks rank 1." in standstill
    assert "all_reduce #2 of rank 0 lacks rank 1." in end and "most likely a consequence" in end


@needs_nccl
def test_a_kernel_that_does_not_end_is_no_rank_that_lacks_a_call(job, tmp_path):
    code, said = job("stuck", "nccl", "--patience", "4", limit=12)
    assert code == 1
    standstill = load(tmp_path / "r").verdict.split("RankFailed")[0]
    assert "No rank lacks a call" in standstill and "all_reduce #2" in standstill


@needs_nccl
def test_parts_that_differ_are_a_mismatch(job, tmp_path):
    job("shapes", "nccl", "--patience", "4", limit=12)
    assert "Mismatch: ranks disagree on the shape of all_reduce in call #2." in load(tmp_path / "r").verdict


DUMPS = {
    "absent": r"Rank 1 holds up .*: it has not made all_reduce #2",
    "stuck": r"No rank lacks a call: .*all_reduce #2",
    "shapes": r"Ranks 0 and 1 hold up each other: in call #2, rank 1 passes 1,048,576 elements",
}


@needs_nccl
@pytest.mark.parametrize("kind", DUMPS)
def test_dumps_of_nccl_are_explained(kind, job, tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    prefix = str(folder / "nccl_trace_rank_")
    names = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix, "TORCH_FR_DUMP_TEMP_FILE": prefix}
    sizes = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    code, said = job(kind, "nccl", limit=10, plain=True, **names, **sizes)
    assert code == 1
    assert re.match(DUMPS[kind], explain(folder)), explain(folder)
    told = explain(tmp_path / "output.txt")
    known = "NCCL itself failed on rank 0, in" in told if kind == "shapes" else re.match(DUMPS[kind], told)
    assert known, told


@needs_nccl
def test_a_log_of_nccl_is_explained(job, tmp_path):
    code, said = job("uneven", "nccl", plain=True, NCCL_DEBUG="INFO")
    assert code == 0
    told = explain(tmp_path / "output.txt")
    assert "Socket" in told and str(RANKS) in told, told


@needs_nccl
def test_traces_of_the_profiler_are_explained(job, tmp_path):
    code, said = job("profiled", "nccl", plain=True)
    assert code == 0, said
    told = explain(tmp_path)
    assert told.startswith("Rank 1 holds up the other"), told
    for mine in explained(tmp_path).events:
        assert [(e.nbytes, e.backend) for e in mine if e.op == "all_reduce"] == [(1 << 22, "nccl")] * 3
