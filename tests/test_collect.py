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
from collectives.jobs import Hosts, HostsUnavailable
from collectives.watch.explain.command import explain
from collectives.watch.explain.host_map import HostMap
from tests import ROOT
from tests.sampling import when
from tests.slurm import Slurm, SlurmUnavailable

SCRIPT = """
import os, pathlib, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
pathlib.Path(sys.argv[1], f"ready_{dist.get_rank()}").touch()
time.sleep(600)
"""


def collect(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "collectives", "collect", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
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
    job = ["--job", "4711"] if way == "srun" else []
    dry = collect(tmp_path / "hang", "--by", way, *job, "node0", "node1", "--dry-run")
    assert "py-spy dump --pid PID" in dry.stdout and dry.stdout.count("nvidia-smi -q") == 2
    assert not (tmp_path / "hang").exists()
    absent = subprocess.run(
        [sys.executable, "-m", "collectives", "collect", str(tmp_path / "hang"), "--by", way, *job, "node0.invalid"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": str(tmp_path)},
    )  # fmt: skip
    assert absent.returncode == 0 and "node0.invalid: not reachable: " in absent.stdout, absent


def test_srun_outside_of_the_job_needs_its_number(tmp_path):
    """In an allocation of its own it would wait until the job that hangs has ended."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = [sys.executable, "-m", "collectives", "collect", str(tmp_path / "hang"), "--by", "srun", "node0"]
    absent = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60)
    assert absent.returncode == 2 and "name it by --job, a number that `squeue --me` shows" in absent.stderr


ON_HOSTS = """
import os, pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
pathlib.Path(sys.argv[1], f"ready_{dist.get_rank()}").touch()
def read_shard():
    time.sleep(600)
if dist.get_rank() == 2:
    read_shard()
dist.all_reduce(torch.ones(4))
"""
# What ssh does, for hosts of namespaces: the first argument is the host's process 1.
ENTER = """#!{python}
import subprocess, sys
*_, host, command = sys.argv
ones = {ones}
sys.exit(subprocess.run([sys.executable, "-I", {enter!r}, str(ones[host]), "sh", "-c", command]).returncode)
"""


def why_untraceable() -> str:
    """py-spy's own reason why it may not look into a process here; "" where it may."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        spy = [os.path.join(os.path.dirname(sys.executable), "py-spy"), "dump", "--pid", str(process.pid)]
        done = again_while_it_starts(spy)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def again_while_it_starts(command):
    """The result of py-spy on a process that has only just begun, in which it finds no interpreter at first."""
    end = time.monotonic() + 30
    while True:
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.returncode or "ermission" in done.stderr or time.monotonic() > end:
            return done


def check_stacks(folder, ranks, names):
    """Whether the stacks of all these ranks are in a folder. If this machine forbids it, missing.txt must have each rank, with the reason."""
    read = [rank for rank in ranks if any(re.search(rf"\.rank{rank}\.\d+\.stack\.txt$", name) for name in names)]
    if read == list(ranks):
        return True
    why, missing = why_untraceable(), (folder / "missing.txt").read_text()
    assert why, (names, missing)
    for rank in ranks:
        assert re.search(rf"\.rank{rank}\.\d+\.stack\.txt \(.*\): .*[Pp]ermission", missing), missing
    assert "Not collected: stack of ranks " in explain(folder)
    return False


SAVES = """
import ctypes, pathlib, sys
libc = ctypes.CDLL(None)
def save_checkpoint():
    if libc.vfork() == 0:  # as long as this child lives, its parent is in a wait that nothing interrupts, as in a dead file system
        pathlib.Path(sys.argv[1]).touch()
        libc.pause()
save_checkpoint()
"""


def test_a_process_that_nothing_interrupts_is_named_with_its_wait(tmp_path):
    """py-spy can't stop it, and would wait as long as it does."""
    (tmp_path / "train.py").write_text(SAVES)
    environment = os.environ | {"RANK": "5"}
    job = subprocess.Popen(
        [sys.executable, tmp_path / "train.py", tmp_path / "here"], env=environment, start_new_session=True
    )
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "here").exists():
            assert time.monotonic() < end and job.poll() is None
            time.sleep(0.05)
        done = collect(tmp_path / "hang")
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    names = [file.name for file in (tmp_path / "hang").iterdir()]
    told = " ".join(explain(tmp_path / "hang").split())
    assert re.search(
        r"Rank 5's process is in a wait that nothing interrupts: .* \(state D(, in \w*(fork|clone)\w*)?\)\.", told
    ), (told, done)
    if check_stacks(tmp_path / "hang", [5], names):
        assert "save_checkpoint" in told, told


@pytest.mark.slow
def test_a_job_on_hosts_of_namespaces_is_gathered_and_explained(tmp_path):
    """Two hosts with two ranks each: names of hosts and ranks, stacks twice, and the rank that reads a shard is found."""
    try:
        hosts = Hosts(2)
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    (tmp_path / "train.py").write_text(ON_HOSTS)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    enter = str(ROOT / "collectives" / "remote" / "enter.py")
    ssh.write_text(ENTER.format(python=sys.executable, ones=dict(zip(hosts.names, hosts._ones)), enter=enter))
    ssh.chmod(0o755)
    binaries = f"{ssh.parent}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    with hosts:
        shared = dict(
            MASTER_ADDR=hosts.addresses[0], MASTER_PORT="29500", WORLD_SIZE="4", GLOO_SOCKET_IFNAME=hosts.interface
        )
        shared |= {"OMP_NUM_THREADS": "1", "PATH": binaries}
        ranks = [
            hosts.start(
                rank // 2,
                [sys.executable, str(tmp_path / "train.py"), str(tmp_path)],
                env=os.environ | shared | {"RANK": str(rank)},
            )
            for rank in range(4)
        ]
        end = time.monotonic() + 90
        while len(list(tmp_path.glob("ready_*"))) < 4:
            assert time.monotonic() < end and all(rank.poll() is None for rank in ranks)
            time.sleep(0.05)
        for folder in ("once", "twice"):
            command = [
                sys.executable,
                "-m",
                "collectives",
                "collect",
                tmp_path / "hang" / folder,
                "--by",
                "ssh",
                *hosts.names,
            ]
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | {"PATH": binaries}, capture_output=True, text=True, timeout=180
            )
            assert done.returncode == 0, done.stderr
        for rank in ranks:
            rank.kill()
    names = [file.name for file in (tmp_path / "hang" / "once").iterdir()]
    for rank in range(4):
        assert any(re.fullmatch(rf"host{rank // 2}\.rank{rank}\.\d+\.status\.txt", name) for name in names), (
            names,
            done.stdout,
        )
    if check_stacks(tmp_path / "hang" / "once", range(4), names):
        told = " ".join(explain(tmp_path / "hang").split())
        assert "Rank 2 is in no collective: in read_shard, train.py:7, in both stacks." in told, told
        assert "Ranks 0, 1 and 3 are waiting in all_reduce, at <module>, train.py:10, apparently for rank 2." in told, (
            told
        )


BY_SLURM = """
import os
for name, slurms in {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS"}.items():
    os.environ.setdefault(name, os.environ[slurms])
""" + ON_HOSTS
TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 2 --master-addr host0 --master-port 29511 "
    "--log-dir {folder}/logs/$SLURM_NODEID --tee 3 -m collectives.watch --patience 2 --record {folder}/record"
)
# How a job of Slurm's starts its ranks: the tasks of a node, their command, and the logs that are on a node.
STARTED = {"by torchrun": (1, TORCHRUN, "logs/*/*/attempt_0/*/stderr.log"), "by srun alone": (2, "{python}", "job.out")}


@pytest.mark.parametrize("how", [pytest.param(how, marks=when(False, how == "by torchrun")) for how in STARTED])
def test_a_job_of_slurm_is_gathered_from_outside_its_allocation_and_explained(how, tmp_path):
    """On a real Slurm of two nodes: srun runs the commands next to the step that hangs."""
    (tmp_path / "train.py").write_text(BY_SLURM)
    tasks, command, logs = STARTED[how]
    step = command.format(python=sys.executable, folder=tmp_path)
    batch = f"#!/bin/sh\nsrun --label sh -c 'exec {step} {tmp_path}/train.py {tmp_path}'\n"
    (tmp_path / "job.sh").write_text(batch)
    shared = dict(MASTER_ADDR="host0", MASTER_PORT="29511", GLOO_SOCKET_IFNAME="eth0", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    try:
        slurm = Slurm(tmp_path / "slurm")
    except SlurmUnavailable as reason:
        pytest.skip(str(reason))
    with slurm:
        options = ["--parsable", "-N2", f"--ntasks-per-node={tasks}", f"--output={tmp_path}/job.out"]
        job = slurm.output("sbatch", *options, tmp_path / "job.sh", env=shared).stdout.strip()
        end = time.monotonic() + 120
        while len(list(tmp_path.glob("ready_*"))) < 4:
            assert time.monotonic() < end, (tmp_path / "job.out").read_text()
            time.sleep(0.05)
        for folder in ("once", "twice"):
            where = tmp_path / "hang" / folder
            gather = [sys.executable, "-m", "collectives", "collect", where, "--by", "srun", "--job", job, "--files", tmp_path / logs]
            done = slurm.output(*gather, cwd=ROOT)
            assert done.returncode == 0, done.stderr
    logs_of_all = [file.relative_to(where).parts for file in where.glob("*/*.*")]
    assert {folder for folder, _ in logs_of_all} == {"shared"}, logs_of_all  # both hosts have this disk
    names = [file.name for file in where.iterdir()]
    found = sorted(name.rsplit(".", 3)[0] for name in names if name.endswith(".status.txt"))
    assert found == [f"host{rank // 2}.rank{rank}" for rank in range(4)], (found, done.stdout)  # and no collector, which has a rank's environment
    told = explain(tmp_path / "hang")
    if check_stacks(where, range(4), names):
        assert "Rank 2 is in no collective: in read_shard, train.py:" in told, told
    if how == "by torchrun":
        assert "Rank 2 holds up the other 3: it has not made all_reduce #2." in (tmp_path / "record" / "verdict.txt").read_text()
