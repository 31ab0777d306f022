"""Every implementation of Ranks has the whole interface, and on each a check and a chapter run to their end."""

import os
import shutil
import subprocess
import sys

import pytest

from collectives.remote.export import export
from helpers.exercise.tasks import PRACTICE
from tests import ROOT
from tests.sampling import one_in
from tests.test_class import RIGHT
from tests.test_hosts import needs_hosts

# --- the interface ------------------------------------------------------------------------


def complaints(folder):
    """The output of mypy, as pyproject.toml configures it, about the library in a folder."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, "--config-file", str(ROOT / "pyproject.toml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder).stdout


@pytest.mark.slow
def test_every_implementation_has_all_that_a_session_uses():
    found = complaints(ROOT)
    assert found.startswith("Success: no issues found"), found


@pytest.mark.nightly
def test_an_implementation_that_lacks_a_member_is_found(tmp_path):
    shutil.copytree(ROOT / "collectives", tmp_path / "collectives", ignore=shutil.ignore_patterns("__pycache__"))
    remote, launch = tmp_path / "collectives" / "remote", tmp_path / "collectives" / "launch"
    for file, member in (
        (remote / "relay.py", "def computed("),
        (remote / "engines.py", "def last_words("),
        (launch / "forkserver.py", "def ask_for_stacks("),
    ):
        source = file.read_text()
        assert source.count(member) == 1, file
        file.write_text(source.replace(member, member.replace("def ", "def no_")))
    found = complaints(tmp_path)
    assert 'abstract class "EngineWorkers" with abstract attribute "computed"' in found
    assert '"_NoServer" is missing following "Server" protocol member' in found
    assert 'abstract class "LocalWorkers" with abstract attribute "ask_for_stacks"' in found


# --- on each implementation ---------------------------------------------------------------

# As on a busy machine: ranks that compute get more time than their timeout.
SLOW = """
from collectives.launch import run as launch, session

def computes(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return "computed"

session.MOST_PATIENCE = 1000.0
settings = session.Settings(2, 1.0, True, False, True, computing=60.0)
launch.run_on(launch.where(), settings, computes, (2.5,), {}).results
"""
CELLS = [
    "import os, time\nimport torch\nimport torch.distributed as dist\nfrom helpers import run\n"
    "from helpers.exercise import check_budget, check_practice, check_values",
    f"{RIGHT}\n\ncheck_values(distributed_mean)",
    "check_budget(distributed_mean)",
    "def in_sync(x):\n    raise NotImplementedError()\n\ncheck_practice(in_sync)",
    "def distributed_mean(x):\n    return x\n\ncheck_values(distributed_mean)",  # fails on purpose
    "def show(words, of):  # a name that an exported program uses too\n    print(words, of)\n\nshow('squares', [1, 4])",
    "display('two', 'values')",
    "run(lambda: os.environ['LOCAL_RANK'], world_size=4).results",
]
HOSTS = "from collectives import jobs\nhosts = jobs.Hosts(2)\njobs.use(hosts)\n"
CLUSTER = """
import atexit, ipyparallel
from collectives import jobs
engines = ipyparallel.Cluster(n=2, log_level=40)
atexit.register(engines.stop_cluster_sync)
jobs.use(engines.start_and_connect_sync(activate=False))
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]


def executed(program, launcher, limit=300):
    """Output of a program that ends well."""
    done = subprocess.run(
        [sys.executable, *launcher, str(program)], capture_output=True, text=True, timeout=limit, cwd=program.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLLECTIVES_PROGRESS": str(program.parent / "progress.json")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize(
    "first, launcher",
    [
        pytest.param("", [], id="this machine", marks=pytest.mark.nightly),
        pytest.param("", TORCHRUN, id="engines of torchrun", marks=pytest.mark.nightly),
        pytest.param(HOSTS, [], id="hosts", marks=[needs_hosts, pytest.mark.nightly]),
        pytest.param(CLUSTER, [], id="engines of ipyparallel", marks=one_in(1, 2)),
    ],
)
def test_checks_run_to_their_end_on(first, launcher, tmp_path):
    import nbformat

    cells = [nbformat.v4.new_code_cell(source) for source in [*CELLS, *[SLOW] * (sys.platform == "linux")]]
    cells[4].metadata["tags"] = ["raises-exception"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "few.ipynb")
    (tmp_path / "few.py").write_text(first + export(tmp_path / "few.ipynb"))
    said = executed(tmp_path / "few.py", launcher)
    assert "Right: distributed_mean does what it should" in said and "Right and within its budget" in said
    assert (
        "squares [1, 4]\n" in said
        and "'two'\n'values'\n" in said
        and "in_sync isn't written yet" in said
        and "CheckFailed: distributed_mean" in said
    )
    assert "['0', '1', '0', '1']" in said if first == HOSTS else "['0', '1', '2', '3']" in said
    assert "['computed', 'computed']" in said or sys.platform != "linux"


@one_in(0, 2)
def test_an_exported_chapter_runs_to_its_end_under_torchrun(tmp_path):
    (tmp_path / "05.py").write_text(export(ROOT / "notebooks" / "05_many_to_many.ipynb"))
    said = executed(tmp_path / "05.py", TORCHRUN, limit=600)
    assert said.count("isn't written yet") == len(PRACTICE["05_many_to_many"])
