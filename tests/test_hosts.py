"""Hosts made of namespaces: ranks on them, the wire between them, and that nothing of them is left."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from collectives.jobs import Hosts, HostsUnavailable, run
from collectives.remote.export import export, with_last_shown
from helpers import RankFailed, Stuck
from tests import ROOT
from tests.corpus.host_faults import ELASTIC, LIMIT_SECONDS, STATIC, TRAIN, Job, processes_of
from tests.sampling import one_in


def available():
    try:
        Hosts(1).close()
    except HostsUnavailable as error:
        return str(error)
    return ""


WHY_NOT = available()
needs_hosts = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def hosts():
    with Hosts(2) as made:
        yield made


def who():
    x = torch.ones(2)
    dist.all_reduce(x)
    interfaces = [name for _, name in socket.if_nameindex()]
    return socket.gethostname(), os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], interfaces, x.tolist()


@needs_hosts
def test_ranks_are_on_their_hosts_and_the_run_is_as_ever(hosts):
    made = run(who, hosts)
    both = ["eth0", "lo"]
    assert [(name, local, host, sorted(i)) for name, local, host, i, _ in made.results] == [
        ("host0", "0", "0", both), ("host0", "1", "0", both), ("host1", "0", "1", both), ("host1", "1", "1", both),
    ]  # fmt: skip
    assert all(x == [4.0, 4.0] for *_, x in made.results)
    assert made.calls[0].op == "all_reduce" and "all_reduce SUM, ranks 0-3" in repr(made)


@needs_hosts
def test_what_leaves_a_host_is_counted_and_takes_its_time():
    def exchange(nbytes):
        x = torch.zeros(nbytes, dtype=torch.uint8)
        start = time.perf_counter()
        (dist.send if dist.get_rank() == 0 else dist.recv)(x, 1 - dist.get_rank())
        return time.perf_counter() - start

    with Hosts(2, latency=0.05, bandwidth=10e6) as hosts:
        small = run(exchange, hosts, 1, world_size=2).results[1]
        before = hosts.sent[0][1]
        large = run(exchange, hosts, 2_000_000, world_size=2).results[1]
        carried = hosts.sent[0][1] - before
    assert small > 0.05  # nothing is faster than the wire
    assert large > 0.05 + 0.2
    assert 2_000_000 < carried < 2_200_000


@needs_hosts
@pytest.mark.slow
def test_a_pulled_cable_is_told_from_a_wrong_program(hosts):
    def unplug_and_go_on(hosts):
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            hosts.unplug(1)
        dist.all_reduce(x)

    with pytest.raises(Stuck, match="All ranks have made the call that .* (?:is|are) waiting in.*a cable, a firewall") as caught:
        run(unplug_and_go_on, hosts, hosts, timeout=3)
    assert caught.value.ranks == (0, 1, 2, 3)
    hosts.plug(1)
    assert run(who, hosts).results[3][0] == "host1"


@needs_hosts
def test_a_rank_that_dies_on_another_host_is_named(hosts):
    def dies():
        x = torch.ones(1)
        dist.all_reduce(x)
        if dist.get_rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x)

    with pytest.raises(RankFailed, match="rank 3 was killed by SIGKILL after 1 call"):
        run(dies, hosts)


@needs_hosts
def test_hosts_end_and_take_along_all_that_runs_on_them(hosts):
    script = "import os, time; os.setsid(); os.fork(); os.write(1, b'1\\n'); time.sleep(600)"
    orphans = [hosts.start(host, [sys.executable, "-c", script], stdout=subprocess.PIPE) for host in (0, 1)]
    assert [len(p.stdout.readline()) for p in orphans] == [2, 2]
    on_hosts = processes_of(hosts)
    assert len(on_hosts) == 2 + 4  # process 1 of each, and two more
    hosts.end(0)
    assert orphans[0].wait(10) == 128 + signal.SIGKILL
    assert orphans[1].poll() is None
    hosts.close()
    assert orphans[1].wait(10) == 128 + signal.SIGKILL
    psutil.wait_procs([psutil.Process(pid) for pid in on_hosts if psutil.pid_exists(pid)], 10)
    assert [pid for pid in on_hosts if psutil.pid_exists(pid)] == []
    with pytest.raises(RuntimeError, match="closed"):
        hosts.sent
    for process in orphans:
        process.stdout.close()


@needs_hosts
def test_a_program_on_a_host_finds_itself_in_proc(hosts):
    """Else it would read about processes of the machine, as the fork server does that looks for its ranks."""
    program = "import os; print(os.readlink('/proc/self') == str(os.getpid()))"
    with hosts.start(1, [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as trial:
        assert trial.stdout.read() == "True\n"


CRASHES = """
import os, signal, subprocess
from collectives.jobs import Hosts
from tests.corpus.host_faults import processes_of
hosts = Hosts(2)
p = hosts.start(1, ["sleep", "600"])
print(hosts._folder, hosts._wire.pid, p.pid, *processes_of(hosts), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_hosts
@pytest.mark.slow
def test_nothing_is_left_when_the_program_is_killed():
    with subprocess.Popen([sys.executable, "-c", CRASHES], stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        folder, *pids = program.stdout.readline().split()
    assert len(pids) >= 4
    psutil.wait_procs([psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))], 10)
    assert [pid for pid in pids if psutil.pid_exists(int(pid))] == []
    assert not Path(folder).exists()


@needs_hosts
@pytest.mark.slow
def test_the_command_line_runs_a_program_on_every_host():
    command = [
        sys.executable,
        "-m",
        "collectives.remote.hosts",
        "--",
        "sh",
        "-c",
        "echo $(hostname) is {host} of {hosts}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert sorted(done.stdout.splitlines()) == ["host0| host0 is 0 of 2", "host1| host1 is 1 of 2"], done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    "kwargs, match",
    [
        (dict(count=0), "from 1 to 64"),
        (dict(count=2.0), "from 1 to 64"),
        (dict(latency=-1), "latency is 0 seconds or more"),
        (dict(bandwidth=0), "bandwidth more than 0"),
    ],
)
def test_hosts_that_cannot_be(kwargs, match):
    with pytest.raises(ValueError, match=match):
        Hosts(**kwargs)


@needs_hosts
@pytest.mark.parametrize("world_size, where", [(1, ["00"]), (3, ["00", "01", "10"]), (4, ["00", "01", "10", "11"])])
def test_ranks_are_shared_out(hosts, world_size, where):
    found = run(lambda: os.environ["GROUP_RANK"] + os.environ["LOCAL_RANK"], hosts, world_size=world_size)
    assert found.results == where


WITHOUT_RIGHTS = """
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0  # while there is one thread only
open("/proc/self/uid_map", "w").write("0 UID 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")  # this user namespace allows none below it
from collectives.jobs import Hosts, HostsUnavailable, run
try:
    Hosts(2)
except HostsUnavailable as error:
    print(error)
"""


@pytest.mark.slow
@needs_hosts
def test_a_system_that_refuses_is_told_at_once():
    script = WITHOUT_RIGHTS.replace("UID", str(os.geteuid()))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "does not let this user make network namespaces" in done.stdout, done.stderr
    assert "stored" in done.stdout


# --- a notebook as a program --------------------------------------------------------------


def test_the_last_expression_of_a_cell_is_shown():
    assert with_last_shown("x = 1\nf(x,\n  'ä')  # why") == "x = 1\n_show(f(x,\n  'ä'))  # why"
    assert with_last_shown("print(1)") == "print(1)"
    assert with_last_shown("x;") == "x;"
    assert with_last_shown("x = 1") == "x = 1"


def notebook(tmp_path):
    import nbformat

    cells = [
        "import torch, socket, sys\nimport torch.distributed as dist\nfrom helpers import run\nprint('cells run once')",
        "def add():\n    x = torch.ones(1)\n    dist.all_reduce(x)\n    return socket.gethostname()\n\nrun(add)",
        "run(lambda: 1 / 0)",
        "print(run(add, world_size=2).results)",
    ]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    made.cells[2].metadata["tags"] = ["raises-exception"]
    nbformat.write(made, tmp_path / "few.ipynb")
    (tmp_path / "few.py").write_text(export(tmp_path / "few.ipynb"))
    return tmp_path / "few.py"


@needs_hosts
@one_in(0, 2)
def test_a_notebook_runs_under_torchrun_on_two_hosts(hosts, tmp_path):
    program = notebook(tmp_path)
    launchers, said = [], [tmp_path / "host0", tmp_path / "host1"]
    for host in (0, 1):
        options = STATIC.format(host=host).split()
        command = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", "2", str(program)]
        with said[host].open("w") as out, (tmp_path / "errors").open("a") as errors:
            launchers.append(hosts.start(host, command, cwd=tmp_path, stdout=out, stderr=errors))
    try:
        ends = [process.wait(timeout=120) for process in launchers]
    except subprocess.TimeoutExpired:
        ends = "not yet"
    first, second = (file.read_text() for file in said)
    assert ends == [0, 0], first + second + (tmp_path / "errors").read_text()
    assert second == ""
    assert first.count("cells run once") == 1
    assert "all_reduce SUM, ranks 0-3" in first and "ZeroDivisionError" in first
    assert re.findall(r"host\d", first) == ["host0", "host0", "host1", "host1", "host0", "host0"]
    assert [path.name for path in (tmp_path / "few-pictures").iterdir()] == ["01.png"]


@pytest.mark.slow
def test_a_notebook_is_an_ordinary_program_too(tmp_path):
    done = subprocess.run(
        [sys.executable, str(notebook(tmp_path))], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0 and "all_reduce SUM, ranks 0-3" in done.stdout, done.stderr


# --- faults -------------------------------------------------------------------------------


@pytest.fixture
def job(hosts, tmp_path):
    """Starts a training job on two hosts and waits until it trains."""

    def start(options=STATIC, training=True, script=TRAIN, **environ):
        (tmp_path / "train.py").write_text(script)
        made = Job(hosts, tmp_path / "train.py", options, environ)
        assert not training or made.wait_for(made.is_training, 90), "\n".join(line for *_, line in made.lines)
        return made

    yield start
    hosts.close()  # ends what still runs, and so the reading threads
    for thread in threading.enumerate():
        if thread.name.startswith("reader"):
            thread.join()


# Each says what happens, and to whom; the sentences stand in chapter 19's table.


@needs_hosts
@pytest.mark.slow
def test_a_killed_rank_is_noticed_at_once(job):
    made = job()
    at = time.monotonic()
    made.kill_rank(3)
    assert made.wait_for(lambda: set(made.ended) == {0, 1}, 60)
    # On its own host, torchrun may end the other rank before that one has said so.
    assert 0 in {host for _, host, _ in made.found("Connection closed by peer|reset by peer", at)}
    assert {host for _, host, _ in made.found(r"exitcode *: -9", at)} == {1}  # only its own host knows


@needs_hosts
@one_in(0, 4)
def test_a_host_that_is_switched_off_is_noticed_by_the_time_out(job):
    made = job()
    at = time.monotonic()
    made.hosts.end(1)
    assert made.wait_for(lambda: 0 in made.ended, 60)
    assert made.ended[1][1] == 128 + signal.SIGKILL
    noticed = made.found("Timed out waiting 10000ms", at)
    assert {host for _, host, _ in noticed} == {0} and min(t for t, *_ in noticed) - at > LIMIT_SECONDS - 1


@needs_hosts
@one_in(1, 4)
def test_a_pulled_cable_is_noticed_by_the_time_out_and_a_short_cut_never(job):
    made = job()
    made.hosts.unplug(1)
    cut = time.monotonic()
    threading.Event().wait(2)  # the cut's length is the fault
    made.hosts.plug(1)
    healed = time.monotonic()
    assert made.wait_for(lambda: len({m[1] for *_, m in made.found(r"^STEP (\d)", healed)}) == 4, 30)
    assert made.found("RuntimeError", cut) == []
    at = time.monotonic()
    made.hosts.unplug(1)
    assert made.wait_for(lambda: len({h for _, h, _ in made.found("Timed out waiting 10000ms", at)}) == 2, 60)


PATIENT = """
with open("/proc/sys/net/ipv4/tcp_retries2", "w") as file:  # this host's own: 15 would take a quarter of an hour
    file.write("4")
"""


@needs_hosts
@pytest.mark.nightly
def test_linux_gives_up_on_a_pulled_cable_and_not_on_a_slow_peer_before_a_long_time_out(job):
    slow = f"if os.environ['RANK'] == '3' and step == 200: time.sleep({2 * LIMIT_SECONDS})  # the peer's slowness is the fault"
    script = TRAIN.replace(f"seconds={LIMIT_SECONDS}", "minutes=30").replace(
        "    if step % 20", f"    {slow}\n    if step % 20"
    )
    made = job(script=PATIENT + script)
    assert made.wait_for(lambda: made.found(r"STEP \d 220 "), 90) and made.found("Error") == []
    at = time.monotonic()
    made.hosts.unplug(1)
    said = r"Read error \[10\.77\.0\.(\d)\]:\d+: Connection timed out"
    assert made.wait_for(lambda: {h for _, h, _ in made.found(said, at)} == {0, 1}, 60)
    assert {(host, match[1]) for _, host, match in made.found(said, at)} == {(0, "2"), (1, "1")}  # whom each has lost


FINDS = """
import os, sys
import torch.distributed as dist

if os.environ["RANK"] == "0":  # whether its own address is in the store before it has written one
    store, *_ = next(dist.rendezvous("env://"))
    found = store.check(["default_pg/0//cpu//0/0"])
    sys.stdout.write(f"FOUND {found}\\n")
"""


@needs_hosts
@pytest.mark.parametrize("own_store", [pytest.param(own, marks=one_in(own, 4)) for own in (False, True)])
def test_a_restart_needs_a_store_of_its_own(job, own_store):
    """Else it finds the last attempt's addresses, and only luck in who comes when spares it from using them.

    torchrun counts as a restart what its own ranks began, so the two hosts' TORCHELASTIC_RESTART_COUNT may differ.
    """
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(own_store))}
    made = job(ELASTIC + " --max-restarts 1", script=FINDS + TRAIN, **environ)
    at = time.monotonic()
    made.kill_rank(3)
    assert made.wait_for(lambda: made.found("FOUND", at), 120)
    assert made.found(r"FOUND (\w+)", at)[0][2][1] == str(not own_store)
    if own_store:  # other ranks' words may precede these in their line
        assert made.wait_for(lambda: {m[1] for *_, m in made.found(r"JOINED (\d)", at)} == set("0123"), 120)


@needs_hosts
@pytest.mark.parametrize(
    "options, environ, says",
    [
        pytest.param(*row, marks=one_in(k, 4), id=what)
        for k, (what, *row) in enumerate([
            ("no such interface", STATIC, {"GLOO_SOCKET_IFNAME": "ib0"}, "Unable to find address for: ib0"),
            ("NCCL's syntax", STATIC, {"GLOO_SOCKET_IFNAME": "^lo"}, r"Unable to find address for: \^lo"),
            ("loopback", STATIC, {"GLOO_SOCKET_IFNAME": "lo"}, r"Connection refused, remote=\[127.0.0.1\]"),
            (
                "unknown master", STATIC.replace("10.77.0.1", "head-node"), {},
                r"network addresses of \(head-node, 29500\) cannot be retrieved",
            ),
        ])
    ],
)  # fmt: skip
def test_wrong_names(job, options, environ, says):
    made = job(options, training=False, **environ)
    # On both, but for loopback: whichever host tries first is refused, and the other one then loses its connection.
    hosts = 1 if environ.get("GLOO_SOCKET_IFNAME") == "lo" else 2
    assert made.wait_for(lambda: len({host for _, host, _ in made.found(says)}) >= hosts, 90)


@needs_hosts
@one_in(2, 4)
def test_a_host_that_cannot_resolve_its_own_name(job, hosts):
    for host in (0, 1):
        hosts.write_etc_hosts(host, "127.0.0.1 localhost\n")
    made = job(ELASTIC.replace("host0", "10.77.0.1"), training=False)
    assert made.wait_for(lambda: {h for _, h, _ in made.found(r"gaierror: .* name resolution")} == {0, 1}, 90)


@needs_hosts
@one_in(3, 4)
def test_a_taken_port(job, hosts):
    hold = (
        "import socket, sys; s = socket.socket(); s.bind(('', 29500)); s.listen(); print(flush=True); sys.stdin.read()"
    )
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with hosts.start(0, [sys.executable, "-c", hold], **pipes) as holder:
        holder.stdout.readline()
        made = job(training=False)
        assert made.wait_for(lambda: bool(made.found("port: 29500.*EADDRINUSE")), 90)
        assert {host for _, host, _ in made.found("EADDRINUSE")} == {0}


# --- job files ----------------------------------------------------------------------------

JOBS = ROOT / "notebooks" / "jobs"


def torchrun_options(line, **variables):
    """What torchrun understands of a command line, with the shell's variables filled in."""
    from torch.distributed.run import get_args_parser

    for name, value in variables.items():
        line = line.replace(f'"${name}"', value)
    words = shlex.split(line.replace("\\\n", " "))
    return get_args_parser().parse_args(words[words.index("torchrun") + 1 :])


def test_the_slurm_file_is_a_script_that_starts_one_torchrun_a_node():
    text = (JOBS / "train.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""
    settings = re.findall(r"^#SBATCH (--[a-z-]+)=(\S+)", text, re.MULTILINE)
    assert dict(settings)["--ntasks-per-node"] == "1"
    line, script = re.search(r"bash -c '(.*?)' (\S+)", text, re.DOTALL).groups()
    given = torchrun_options(line.replace('"$0"', script), SLURM_NNODES="2", SLURM_NODEID="1", MASTER="node7")
    assert (given.nnodes, given.node_rank, given.master_addr) == ("2", 1, "node7")
    assert (JOBS / given.training_script).is_file()


def test_the_kubernetes_file_is_an_indexed_job_whose_pods_have_names():
    import yaml

    service, job = yaml.safe_load_all((JOBS / "train.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    assert job["apiVersion"] == "batch/v1" and job["spec"]["completionMode"] == "Indexed"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    given = torchrun_options(pod["containers"][0]["args"][0], JOB_COMPLETION_INDEX="1")
    assert int(given.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert given.master_addr == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert given.node_rank == 1
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
    assert any(resource.startswith("rdma/") for resource in container["resources"]["limits"])
    (saving,) = [int(each["value"]) for each in container["env"] if each["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert saving < pod["terminationGracePeriodSeconds"]


def trained_until_told(checkpoint, ranks, whom):
    """Exit code and output of jobs/train.py without end, where SIGTERM goes to `whom(torchrun)` as soon as it trains."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{ranks}"]
    command += [str(JOBS / "train.py"), "--steps", f"{10**9}", "--checkpoint", str(checkpoint)]
    environ, lines = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}, []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=environ, text=True, **pipes) as torchrun:
        limit = threading.Timer(240, end_all, [psutil.Process(torchrun.pid)])
        limit.start()
        for line in torchrun.stdout:
            if line.startswith("step ") and not any(said.startswith("step ") for said in lines):
                whom(psutil.Process(torchrun.pid)).terminate()
            lines.append(line)
        limit.cancel()
    return torchrun.returncode, "".join(lines)


def end_all(torchrun):
    for process in [*torchrun.children(recursive=True), torchrun]:
        process.kill()


def rank_2(torchrun):
    (process,) = [child for child in torchrun.children() if child.environ().get("RANK") == "2"]
    return process


@pytest.mark.nightly
def test_a_training_that_is_told_to_stop_is_saved_and_goes_on_from_there(tmp_path):
    checkpoint = tmp_path / "new" / "checkpoint.pt"
    code, said = trained_until_told(checkpoint, 3, rank_2)
    assert code == 0, said  # no rank was left waiting by the one that had the signal
    assert len(re.findall(r"rank \d of 3: cpu of \S+, the sum is right", said)) == 3
    saved = torch.load(checkpoint)
    assert re.findall(r"saved after step (\d+)", said) == [str(saved["steps"])]
    code, said = trained_until_told(checkpoint, 2, lambda torchrun: torchrun)
    begun, *_ = map(int, re.findall(r"^step (\d+)", said, re.MULTILINE))
    again = torch.load(checkpoint)
    assert saved["steps"] < begun <= saved["steps"] + 20 and begun <= again["steps"]
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
