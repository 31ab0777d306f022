"""Evidence on a real job that hangs under torchrun, gathered into a folder."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from collectives.collect.transports import TRANSPORTS
from collectives.watch.explain.host_map import HostMap
from tests import ROOT

SCRIPT = """
import os, pathlib, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
pathlib.Path(sys.argv[1], f"ready_{dist.get_rank()}").touch()
time.sleep(600)
"""


def collect(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "collectives", "collect", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_job_that_hangs_is_gathered_from_its_host(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = subprocess.Popen(
        [*launch, str(tmp_path / "train.py"), str(tmp_path)], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("ready_*"))) < 2:
            assert time.monotonic() < end and job.poll() is None
            time.sleep(0.05)
        ready = collect(tmp_path / "hang", "--files", f"'{tmp_path}'/train.py")
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(60)
    assert ready.returncode == 0, ready.stderr
    assert ready.stdout.splitlines()[-1] == f"python -m collectives explain {tmp_path}/hang"
    names = [file.name for file in (tmp_path / "hang").iterdir()]
    for rank in range(2):
        assert any(re.search(rf"\.rank{rank}\.\d+\.status\.txt$", name) for name in names), names
    assert [file.read_text() for file in (tmp_path / "hang").glob("*/*train.py")] == [SCRIPT]
    places = HostMap(names)
    assert {places.of_file(name) for name in names if name.endswith(".txt")} == {
        socket.gethostname(),
        "",
    }  # missing.txt has none
    again = collect(tmp_path / "hang")
    assert again.returncode == 1 and "nothing is overwritten" in again.stderr


@pytest.mark.parametrize("way", [way for way in TRANSPORTS if way != "local"])
def test_commands_that_would_run_and_a_way_that_is_not_there(way, tmp_path):
    dry = collect(tmp_path / "hang", "--by", way, "node0", "node1", "--dry-run")
    assert "py-spy dump --pid PID" in dry.stdout and dry.stdout.count("nvidia-smi -q") == 2
    assert not (tmp_path / "hang").exists()
    absent = subprocess.run(
        [sys.executable, "-m", "collectives", "collect", str(tmp_path / "hang"), "--by", way, "node0.invalid"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": str(tmp_path)},
    )  # fmt: skip
    assert absent.returncode == 0 and "node0.invalid: not reachable: " in absent.stdout, absent
