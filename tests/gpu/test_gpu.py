"""What only GPUs can show of the recorder: `make test-gpu`, on one GPU or more; with gloo, ranks share one."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from collectives import run
from collectives.jobs import load
from tests import ROOT

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not GPUS, reason="there is no GPU here")]
needs_nccl = pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch has no NCCL")


@pytest.fixture
def job(tmp_path):
    """Runs a function of job.py under the recorder, and returns its record."""

    def run_job(name, backend, ranks, *options):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
        command += ["-m", "collectives.watch", "--record", tmp_path / "r", *options]
        command += [ROOT / "tests" / "gpu" / "job.py", name, backend]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(list(map(str, command)), env=environ, text=True, capture_output=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        record = load(tmp_path / "r")
        assert record.verdict == ""
        return record

    return run_job


@needs_nccl
def test_calls_on_nccl_are_issued_and_their_ends_seen_later(job):
    for mine in job("ways", "nccl", GPUS).events:
        *left, barrier = mine
        assert {e.backend for e in mine} == {"nccl"} and all(e.waited and e.end is not None for e in mine)
        assert barrier.op == "barrier" and barrier.issued is None
        assert any(e.issued is not None and e.end - e.issued > 0.1 for e in left)  # behind what kept the device busy


def test_calls_on_gloo_that_share_a_gpu_are_waited_for(job):
    for mine in job("ways", "gloo", 2).events:
        assert {e.backend for e in mine} == {"gloo"} and all(e.waited and e.end is not None for e in mine)
        assert all(e.issued is None for e in mine)


@needs_nccl
def test_a_graph_is_captured_under_the_recorder(job):
    for mine in job("graph", "nccl", GPUS, "--values").events:
        assert [e.captured for e in mine] == [False, True, False]


@needs_nccl
def test_ddp_is_recorded(job):
    for mine in job("ddp", "nccl", GPUS).events:
        gradients = [e for e in mine if e.op == "all_reduce" and e.shape == (20,)]
        assert len(gradients) == 3 and all(e.waited for e in gradients)


@needs_nccl
@pytest.mark.skipif(GPUS < 2, reason="there is one GPU here, and this takes two")
def test_uneven_tensors_are_no_mistake(job):
    job("uneven", "nccl", GPUS)


def total():
    x = torch.full((2,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    return str(x.device), x.tolist()


@pytest.mark.parametrize("backend, ranks", [("gloo", 2), pytest.param("nccl", GPUS, marks=needs_nccl)])
def test_run_shows_values_of_tensors_on_gpus(backend, ranks):
    done = run(total, world_size=max(ranks, 1), backend=backend, device="cuda")
    for rank, (device, values) in enumerate(done.results):
        assert device == f"cuda:{rank % GPUS}" and values == [sum(range(1, ranks + 1))] * 2
        assert done.events[rank][0].after.tolist() == values
