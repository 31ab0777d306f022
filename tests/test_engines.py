"""run() on engines of ipyparallel: the same Run, the same sentences, and what becomes of engines that die or hang."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from traitlets.config import Config

from collectives import jobs
from collectives.jobs import EngineError, Hosts, HostsUnavailable
from helpers import Mismatch, RankFailed, Stuck
from tests import ROOT

ipyparallel = pytest.importorskip("ipyparallel")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # ipyparallel's own warnings are not ours


@pytest.fixture(scope="module")
def client():
    engines = ipyparallel.Cluster(n=4, log_level=40)
    yield engines.start_and_connect_sync(activate=False)
    engines.stop_cluster_sync()


def gather_ranks():
    x = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(x)
    print("hello from", dist.get_rank())
    return os.getpid(), os.environ["LOCAL_RANK"]


def test_the_run_is_as_ever_and_the_ranks_are_fresh(client, capsys):
    made = jobs.run(gather_ranks, client)
    again = jobs.run(gather_ranks, client)
    assert "all_reduce SUM, ranks 0-3" in repr(made) and made.calls[0].events[3].after.tolist() == [6.0, 6.0]
    assert made.draw() is not None and None not in made.sent
    assert capsys.readouterr().out.splitlines()[:4] == [f"[{rank}] hello from {rank}" for rank in range(4)]
    assert len({pid for r in (made, again) for pid, _ in r.results}) == 8
    assert all(0 <= event.start < 60 for events in made.events for event in events)


def test_there_may_be_more_ranks_than_engines_and_fewer(client):
    assert [local for _, local in jobs.run(gather_ranks, client[[0, 1]], world_size=5).results] == list("01234")
    assert len(jobs.run(gather_ranks, client, world_size=2).results) == 2


def test_verdicts_are_the_courses_own(client):
    def leaves_one_out():
        if dist.get_rank() != 2:
            dist.all_reduce(torch.ones(1))

    def fails():
        if dist.get_rank() == 3:
            raise ValueError("no data")
        dist.barrier()

    def disagrees():
        dist.all_reduce(torch.ones(1 + dist.get_rank() // 3))

    def loops():
        while dist.get_rank() == 1:
            pass

    with pytest.raises(Stuck, match="rank 2 returned before any call"):
        jobs.run(leaves_one_out, client)
    with pytest.raises(RankFailed, match="rank 3 raised ValueError: no data\n    fails, line"):
        jobs.run(fails, client)
    with pytest.raises(Mismatch):
        jobs.run(disagrees, client)
    with pytest.raises(Stuck, match="rank 1 is running your code.\n(.|\n)*loops, line \\d+:  while"):
        jobs.run(loops, client, timeout=3)
    assert len(jobs.run(gather_ranks, client).results) == 4


def test_use_sends_every_run_there_and_back(client):
    from helpers import run

    engines = set(client[:].apply_sync(os.getpid))
    jobs.use(client)
    try:
        assert len(set(run(os.getppid, world_size=4).results)) == 4  # the fork server of each engine
    finally:
        jobs.use()
    assert len(set(run(os.getppid, world_size=4).results)) == 1
    assert len(engines) == 4


def test_what_is_no_engine():
    with pytest.raises(TypeError, match="Client or view of ipyparallel, not a str"):
        jobs.run(gather_ranks, "host1")


@pytest.mark.nightly
def test_engines_that_die_or_hang_are_named_and_the_next_run_works(client):
    pids = client[:].apply_sync(os.getpid)

    def hurts_an_engine(pid, number):
        dist.barrier()
        if dist.get_rank() == 3:
            os.kill(pid, number)
        dist.barrier()

    with pytest.raises(RankFailed, match="was lost with engine 3 on .*, which is gone"):
        jobs.run(hurts_an_engine, client, pids[3], signal.SIGKILL)
    assert len(jobs.run(gather_ranks, client).results) == 3
    with pytest.raises(EngineError, match=r"engines \[3\] are gone"):
        jobs.run(gather_ranks, client[[2, 3]] if 3 in client.ids else _view(client))

    def stops_an_engine(pid):
        dist.barrier()
        if dist.get_rank() == 2:
            os.kill(pid, signal.SIGSTOP)
        dist.barrier()
        while True:
            pass

    try:
        with pytest.raises(RankFailed, match="engine 2 on .*, which has not answered for 10 s"):
            jobs.run(stops_an_engine, client, pids[2])
        with pytest.raises(EngineError, match="engine 2 has not answered"):
            jobs.run(gather_ranks, client)
        assert len(jobs.run(gather_ranks, client[[0, 1]]).results) == 2
    finally:
        os.kill(pids[2], signal.SIGCONT)


def _view(client):
    view = client[[0, 1]]
    view.targets = [2, 3]
    return view


@pytest.mark.nightly
def test_engines_on_two_hosts(tmp_path):
    """A controller on the first of two hosts, two engines on each, and the notebook on none of them."""
    try:
        hosts = Hosts(2)
    except HostsUnavailable as reason:
        pytest.skip(str(reason))
    with hosts:
        where = ["--profile-dir", str(tmp_path / "profile"), "--log-level=ERROR"]
        hosts.start(
            0, [sys.executable, "-m", "ipyparallel.controller", "--ip=10.77.0.1", "--location=10.77.0.1", *where]
        )
        file = tmp_path / "profile" / "security" / "ipcontroller-engine.json"
        wait = f"until [ -s {file} ]; do sleep 0.1; done; exec {sys.executable} -m ipyparallel.engine --file={file} --log-level=ERROR"
        for host in (0, 0, 1, 1):
            hosts.start(host, ["env", "GLOO_SOCKET_IFNAME=eth0", "sh", "-c", wait])
        script = tmp_path / "drive.py"
        script.write_text(DRIVE.format(file=str(file.with_name("ipcontroller-client.json"))))
        notebook = hosts.start(0, [sys.executable, str(script)], stdout=-1)
        said = notebook.communicate(timeout=150)[0].decode()
    first, *rest = [f"[('{a}', '0'), ('{a}', '1'), ('{b}', '0'), ('{b}', '1')]" for a, b in (ORDER, ORDER[::-1])]
    assert said.splitlines()[-1:] in ([first], rest), said  # host by host, beginning with either


ORDER = ("host0", "host1")
DRIVE = """
import os, socket, time
import ipyparallel
import torch, torch.distributed as dist
from collectives import jobs

while not os.path.exists({file!r}):
    time.sleep(0.1)
client = ipyparallel.Client({file!r})
client.wait_for_engines(4, timeout=90)

def where():
    dist.barrier()
    return socket.gethostname(), os.environ["LOCAL_RANK"]

print(jobs.run(where, client).results)
"""


# --- engines that ipyparallel's other launchers start --------------------------------------


def ranks_by(launcher, folder, config):
    """What `where_from` returns on two engines by this launcher, which are gone afterwards."""

    def where_from():
        dist.barrier()
        return os.getppid(), {
            name: os.environ.get(name) for name in ("SSH_CONNECTION", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
        }

    engines = ipyparallel.Cluster(
        engines=launcher, n=2, config=config, profile_dir=str(folder / "profile"), log_level=40
    )
    try:
        client = engines.start_and_connect_sync(activate=False)
        pids = client[:].apply_sync(os.getpid)
        (server, first), (other, second) = jobs.run(where_from, client).results
    finally:
        engines.stop_cluster_sync()
    assert server != other
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 20)
    assert not any(map(psutil.pid_exists, pids))
    return first, second


@pytest.fixture
def ssh_config(tmp_path):
    """A configuration file by which ssh reaches a server of this test's, on this machine, as the host `node`."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not (server and shutil.which("ssh")):
        pytest.skip("there is no SSH server here: apt-get install openssh-server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(SSHD.format(port=port, folder=tmp_path))
    (tmp_path / "ssh_config").write_text(SSH.format(port=port, folder=tmp_path))
    privileges = Path("/run/sshd")  # which a server of root's wants; Debian makes it when its own server starts
    made = os.getuid() == 0 and not privileges.exists()
    if made:
        privileges.mkdir()
    command = [server, "-D", "-e", "-f", tmp_path / "sshd_config"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        assert "Server listening" in said, said
        yield tmp_path / "ssh_config"
        process.terminate()
    if made:
        privileges.rmdir()


SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""
SSH = """
Host node
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""


@pytest.mark.nightly
def test_engines_by_ssh(ssh_config, tmp_path):
    config = Config()
    config.SSHEngineSetLauncher.engines = {"node": 2}
    config.SSHLauncher.ssh_args = config.SSHLauncher.scp_args = ["-F", str(ssh_config)]
    config.SSHLauncher.remote_python = sys.executable
    config.SSHLauncher.environment = {"PYTHONPATH": str(ROOT)}
    for environ in ranks_by("ssh", tmp_path, config):
        assert environ["SSH_CONNECTION"].startswith("127.0.0.1 ")


def test_engines_by_mpi(tmp_path, monkeypatch):
    pytest.importorskip("mpi4py", reason="there is no mpi4py here: pip install mpi4py")
    if not shutil.which("mpiexec"):
        pytest.skip("there is no MPI here: apt-get install openmpi-bin")
    for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"):  # Open MPI asks
        monkeypatch.setenv(f"OMPI_{name}", "1")
    first, second = ranks_by("mpi", tmp_path, Config())
    assert [environ["OMPI_COMM_WORLD_RANK"] or environ["PMI_RANK"] for environ in (first, second)] == ["0", "1"]


ASKED = {"slurm": "#SBATCH --ntasks=16", "pbs": "#PBS -t 1-16", "sge": "#$ -t 1-16", "lsf": "#BSUB -J ipengine[1-16]"}


@pytest.mark.parametrize("scheduler", ASKED)
def test_what_a_scheduler_is_given(scheduler, tmp_path):
    launcher = ipyparallel.cluster.launcher.find_launcher_class(scheduler, "engine")(
        work_dir=str(tmp_path), profile_dir=str(tmp_path)
    )
    launcher.write_batch_script(16)
    script = Path(launcher.batch_file).read_text()
    assert ASKED[scheduler] in script.splitlines() and f"{sys.executable} -m ipyparallel.engine" in script
    subprocess.run(["sh", "-n", launcher.batch_file], check=True)
