"""A class graded on engines of ipyparallel, on hosts of their own: one is lost, one has no sandbox, and nothing is lost."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.jobs import Hosts, HostsUnavailable
from helpers.course import ROOT
from helpers.grade import walls
from tests.test_class import MEAN, RIGHT, WRONG, hand_in

pytest.importorskip("ipyparallel")
KINDS = (RIGHT, WRONG, RIGHT, "def distributed_mean(x): return x")
STUDENTS = {f"student{k:02}": KINDS[k % 4] for k in range(60)}  # some are still to be handed out once an engine is lost
POINTS = {student: "3" if source == RIGHT else "0" for student, source in STUDENTS.items()}
LOST = [
    "--HeartMonitor.period=1000",
    "--HeartMonitor.max_heartmonitor_misses=15",
]  # an engine is, after 15 s of silence
UP = "import ipyparallel, sys; ipyparallel.Client(sys.argv[1]).wait_for_engines(3, timeout=200)"


def without_bubblewrap(folder: Path) -> str:
    """A PATH of all programs that there are, but for bwrap."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if program.name != "bwrap" and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def once_there(file: Path, *command: str) -> list[str]:
    return ["sh", "-c", f'until [ -s {file} ]; do sleep 0.1; done; exec "$@"', "sh", sys.executable, *command]


@pytest.mark.slow
def test_a_sandbox_holds_on_a_host_made_of_namespaces():
    """bubblewrap asks /proc for its own processes, so a host's must not be the machine's."""
    try:
        walls.check()
        hosts = Hosts(1)
    except (HostsUnavailable, walls.Unavailable) as why:
        pytest.skip(str(why))
    program = "import os; from helpers.grade import walls; walls.check(); print(os.readlink('/proc/self') == str(os.getpid()))"
    with hosts, hosts.start(0, [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as trial:
        assert trial.stdout.read() == "True\n"


@pytest.mark.nightly
def test_of_engines_on_three_hosts_one_is_lost_one_slow_and_one_has_no_sandbox(tmp_path):
    try:
        walls.check()
        hosts = Hosts(3)
    except (HostsUnavailable, walls.Unavailable) as why:
        pytest.skip(str(why))
    submissions, profile = hand_in(tmp_path / "submissions", **STUDENTS), tmp_path / "profile"
    for_engines, for_clients = (profile / "security" / f"ipcontroller-{name}.json" for name in ("engine", "client"))
    slow, bare = ["nice", "-n", "19"], ["env", f"PATH={without_bubblewrap(tmp_path / 'bin')}"]
    with hosts:
        at = ["--ip=10.77.0.1", "--location=10.77.0.1", f"--profile-dir={profile}", "--log-level=ERROR"]
        hosts.start(0, [sys.executable, "-m", "ipyparallel.controller", *at, *LOST], cwd=ROOT)
        engine = once_there(for_engines, "-m", "ipyparallel.engine", f"--file={for_engines}", "--log-level=ERROR")
        for host, how in enumerate((slow, [], bare)):
            hosts.start(host, [*how, *engine], cwd=ROOT)
        assert hosts.start(0, once_there(for_clients, "-c", UP, str(for_clients)), cwd=ROOT).wait(300) == 0
        options = ["--seed", "s", "--engines", str(for_clients), "--out", str(tmp_path / "report"), str(submissions)]
        command = [sys.executable, "-m", "helpers.grade", "--score", *options]
        grader = hosts.start(0, command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert any(line.startswith(f"2/{len(STUDENTS)}") for line in grader.stdout), grader.communicate()
        hosts.end(1)  # with two pieces of work
        said, complained = grader.communicate(timeout=900)
    assert grader.returncode == 0, complained
    assert f"{len(STUDENTS)} names, {len(STUDENTS)} graded" in said
    assert complained.count("grades nothing: no sandbox: ") == 1
    rows = list(csv.DictReader((tmp_path / "report" / "scores.csv").read_text().splitlines()))
    assert {row["student"]: row[MEAN] for row in rows} == POINTS and len(rows) == len(POINTS)


@pytest.mark.slow
def test_a_cluster_that_is_none_is_told_of(tmp_path):
    folder, out = hand_in(tmp_path / "submissions", ann=RIGHT), tmp_path / "report"
    options = ["--engines", str(tmp_path / "none.json"), "--out", str(out), str(folder)]
    command = [sys.executable, "-m", "helpers.grade", "--score", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "There is no ipyparallel cluster at" in done.stderr
