"""Jobs that torchrun started: recorded, judged while they run, opened afterwards. The scripts are corpus/jobs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
import torch

from collectives import __version__
from collectives.jobs import Hosts, HostsUnavailable, load
from collectives.judge import wording
from collectives.log.event import Event, Failure, Line, Summary
from collectives.log.messages import (
    Called,
    Caught,
    Completed,
    Failed,
    Grouped,
    Misused,
    Resumed,
    Returned,
    Ungrouped,
    Waiting,
    WorkBegan,
)
from collectives.machines import rails
from collectives.watch import report
from collectives.watch.job_judge import ENDING_SECONDS, KEPT_CALLS, Judge
from collectives.watch.lines import RETURN_MESSAGE, Reader, decode_line
from collectives.watch.message_decoder import MessageDecoder
from collectives.watch.message_encoder import MessageEncoder
from collectives.watch.ring import RingReader, RingWriter
from tests import ROOT
from tests.corpus.host_faults import STATIC
from tests.sampling import one_in, is_taken, when

JOBS = ROOT / "tests" / "corpus" / "jobs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def start(folder, script, *arguments, options=(), ranks=4, launcher=("--standalone",), within=()):
    """Start a script of the corpus as a job, whose record will be in folder / "r"."""
    command = [*within, *TORCHRUN, *launcher, "--nproc-per-node", ranks, "-m", "collectives.watch"]
    command += ["--record", folder / "r", *options, JOBS / f"{script}.py", *arguments]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(list(map(str, command)), cwd=folder, env=environ, text=True, **pipes)


def job(folder, *script, **how):
    """Run a script of the corpus as a job. Returns exit code, output, and its record."""
    with start(folder, *script, **how) as process:
        said, _ = process.communicate(timeout=240)
    return process.returncode, said, folder / "r"


def ops(record, rank=0):
    return [e.op for e in record.events[rank]]


LEFT_EARLY = "Stuck: ranks 1, 2 and 3 are waiting in all_reduce #4; rank 0 returned after 3 calls. This can never finish.\n"
VERDICTS = {
    "deadlock": """Stuck: ranks 0, 1 and 3 are waiting in all_reduce #4; rank 2 is waiting in recv #4 from 1. This can never finish.
  ranks 0, 1 and 3  waiting in all_reduce #4   deadlock, line N:  dist.all_reduce(torch.ones(4))
  rank 2            waiting in recv #4 from 1  deadlock, line N:  dist.recv(torch.ones(4), 1)
""",
    "shapes": """Mismatch: ranks disagree on the shape of all_reduce in call #4.
  ranks 0, 1 and 3  all_reduce SUM float32 [4]  shapes, line N:  dist.all_reduce(torch.ones(5 if rank == 2 else 4))
  rank 2            all_reduce SUM float32 [5]  shapes, line N:  dist.all_reduce(torch.ones(5 if rank == 2 else 4))
""",
    "killed 2": "RankFailed: rank 2 was killed by SIGKILL after 3 calls.\n",
    "killed 0": "RankFailed: rank 0 was killed by SIGKILL after 3 calls.\n",
    "forks": "RankFailed: rank 1 was killed by SIGKILL after 6 calls.\n",
    "exits segfault": "RankFailed: rank 1 was killed by SIGSEGV after 3 calls.\n",
    "exits os._exit": """RankFailed: rank 1 raised SystemExit: it called os._exit(3)
    <module>, line N:  main()
    main, line N:  globals()[sys.argv[1]](dist.get_rank())
    exits, line N:  ENDS[sys.argv[2]]()
    <lambda>, line N:  "os._exit": lambda: os._exit(3),
""",
    "exits cleanly": "; rank 1 returned after 3 calls. This can never finish.\n",
    "stops_early": "Stuck: ranks 0, 1 and 3 are waiting in all_reduce #9; rank 2 returned after 8 calls. This can never finish.\n",
    "raises": """RankFailed: rank 1 raised ValueError: no such layer
    <module>, line N:  main()
    main, line N:  globals()[sys.argv[1]](dist.get_rank())
    raises, line N:  raise ValueError("no such layer")
As a consequence, ranks 0, 2 and 3 couldn't finish barrier #4.
""",
    "early": "Stuck: ranks 1, 2 and 3 are waiting in all_reduce #4; rank 0 returned after 3 calls. This can never finish.\n",
    "leaves raised": LEFT_EARLY + "  rank 0            returned after 3 calls\n",
    "leaves renamed": LEFT_EARLY,
    "leaves noted": LEFT_EARLY,
    "drops": """Stuck: rank 1 is waiting in recv #4 from 0; rank 0 returned after 4 calls. This can never finish.
  rank 0         returned after 4 calls
  rank 1         waiting in recv #4 from 0  drops, line N:  dist.recv(torch.empty(4), 0)
  ranks 2 and 3  returned after 3 calls
Rank 0 dropped the handle of isend #4 (drops, line N:  dist.isend(torch.ones(4), 1)) before it was complete, and gloo may \
lose such a message: keep the Work that isend returns, and wait() for it.
""",
    "sleeper": """Standstill: no rank has started or finished a call for 2 s. That could be normal, or it could be a hang.
Rank 2 holds up the other 3: it has not made all_reduce #4.
  ranks 0, 1 and 3  waiting in all_reduce #4          sleeper, line N:  dist.all_reduce(torch.ones(4))
  rank 2            running your code, after 3 calls  data_that_never_comes, line N:  time.sleep(1000)
all_reduce #4 of ranks 0, 1 and 3 lacks rank 2.
""",
    "never_comes": """Standstill: no rank has started or finished a call for 2 s. That could be normal, or it could be a hang.
  ranks 0, 1 and 2  waiting in init_process_group, before any call  main, line N:  dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
  rank 3            running your code, before any call              data_that_never_comes, line N:  time.sleep(1000)
init_process_group of ranks 0, 1 and 2 lacks rank 3.
""",
    "other_groups": """Mismatch: ranks make different groups in call #1 of new_group.
  rank 0            a group of ranks 0 and 3     other_groups, line N:  dist.barrier(group=dist.new_group(ranks, timeout=datetime.timedelta(seconds=5)))
  ranks 1, 2 and 3  a group of ranks 1, 2 and 3  other_groups, line N:  dist.barrier(group=dist.new_group(ranks, timeout=datetime.timedelta(seconds=5)))
Every rank must call new_group, even one that won't be a member, in the same order and with the same ranks.""",
    "other_names": """Mismatch: the members of the group of ranks 0, 1, 2 and 3 look for each other under different names.
  ranks 0 and 2  in 2 groups  other_names, line N:  dist.new_group(timeout=datetime.timedelta(seconds=5), use_local_synchronization=True)
  ranks 1 and 3  in 1 group   other_names, line N:  dist.new_group(timeout=datetime.timedelta(seconds=5), use_local_synchronization=True)
With use_local_synchronization=True, torch puts into the group's name how many groups the process is in""",
    "member_elsewhere": """
new_group of ranks 0 and 2 lacks rank 1. With use_local_synchronization=True only members have to call it, but every one of them.
""",
    "dtype_differs": "Mismatch: ranks disagree on the dtype of all_reduce in call #4.",
}
AT_EACH_PUSH = ("deadlock", "killed 2")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=when(False, n in AT_EACH_PUSH or is_taken(k, 24))) for k, n in enumerate(VERDICTS)],
)
def test_a_job_that_goes_wrong_is_explained_and_left_to_its_end(name, tmp_path):
    code, said, folder = job(tmp_path, "faulty", *name.split(), options=["--patience", "2"])
    said = re.sub(r"line \d+", "line N", said)
    assert VERDICTS[name] in said
    assert code == 1  # as without the recorder: the time-out, the abort, the launcher
    record = load(folder)
    assert VERDICTS[name] in re.sub(r"line \d+", "line N", record.verdict)
    made = 0 if name == "never_comes" else 3
    assert all(len(ops(record, rank)) >= made and ops(record, rank)[:3] == ops(record)[:3] for rank in range(4))
    assert re.search(r"rank 3, host \S+, process \d+\n", said)
    if name == "deadlock":
        assert re.search(
            r"rank 2, host .*\n    .*faulty.py:\d+ in <module>:  main\(\)\n(    .*\n)*    .* in recv:  ", said
        )
    if name == "leaves raised":
        assert re.search(r"rank 0, host \S+, process \d+\n    returned\n", said)
        assert said.count("    raised RuntimeError at line N\n") >= 1 and "end of its script" not in said
    if name == "killed 2":
        assert re.search(r"rank 2, host \S+, process \d+\n    was killed by SIGKILL\n", said)


@pytest.mark.nightly
def test_ranks_that_are_others_in_a_world_of_the_programs_own_are_not_recorded(tmp_path):
    code, said, folder = job(tmp_path, "faulty", "worlds", options=["--patience", "1"])
    assert code == 0 and load(folder).verdict == ""
    assert "rank 3 is not recorded: the program made it rank 1 of 2, in a default group of its own." in said
    assert "rank 2 is not recorded: the program made it rank 0 of 2" in said and "Standstill" not in said


MORE = {
    "hides": "Rank 1 made barrier #4 while it handled RuntimeError: out of memory on this card",
    "skips": r"rank 1 returned after 2 calls.*\n(.*\n)*Earlier, after 1 call, rank 1 caught TypeError: .*\n  skips, line N:  dist",
    "parts": r"Stuck: .*\n(.*\n)*Earlier, ranks made calls #2 and #3 from different lines, .*\n  #2  rank 0 +evaluates, line N: .*\n  #2  ranks 1, 2 and 3 +parts",
    "drifts": r"^the parameters of replicas differ after step 4: ranks 0, 1 and 3; rank 2. After step 2 they were the same.\n?$",
    "never_alike": r"^ranks 0, 1, 2 and 3 take the same gradients, and their parameters differ from the first step on: these .*alike",
    "divided": r"^no two ranks had the same parameters after the first step: divided, or never alike\? `python -m ",
    "drops_by_luck": r"^Rank 0 dropped the handle of isend #2 \(drops_by_luck, line N: .*\), and of 1 more, before it was",
    "loses": r"^Ranks 0, 1, 2 and 3 got the result of all_reduce #1 \(loses, line N: .*\) in x.contiguous\(\), a copy that nothing keeps, so it is lost",
    "no_number": r"^rank 2 passes a NaN or an infinity to all_reduce #3, the first: no_number, line N",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=one_in(k, 2)) for k, n in enumerate(("over", "caught"))])
def test_a_job_that_ends_well_in_its_own_way_is_not_accused(name, tmp_path):
    code, said, folder = job(tmp_path, "faulty", name)
    assert code == 0, said
    assert load(folder).verdict == "" and "Stuck" not in said and "RankFailed" not in said


@pytest.mark.parametrize("name", [pytest.param(n, marks=one_in(k + 2, 8)) for k, n in enumerate(MORE)])
def test_what_is_told_beside_a_verdict(name, tmp_path):
    _, said, folder = job(tmp_path, "faulty", name, options=["--nan", "--replicas", "2"])
    assert re.search(MORE[name], re.sub(r"line \d+", "line N", load(folder).verdict)), said


@one_in(0, 2)
def test_an_alarm_reads_the_verdict(tmp_path):
    ends = "for s in INT TERM HUP; do sh -c 'kill -$0 $$; echo survived $0' $s; done"  # unlike the collector
    alarm = tmp_path / "alarm.sh"  # torchrun would replace the $ in an argument
    alarm.write_text(f"(cat; basename $COLLECTIVES_RECORD; {ends}) > {tmp_path / 'rung'}; touch {tmp_path / 'over'}")
    job(tmp_path, "faulty", "raises", options=["--alarm", f"sh {alarm}"])
    until((tmp_path / "over").exists)
    assert "survived" not in (tmp_path / "rung").read_text()
    assert re.search(r"RankFailed: rank 1 raised ValueError(.*\n)*r\n", (tmp_path / "rung").read_text())
    verdict = json.loads((tmp_path / "r" / "verdict.json").read_text())
    assert verdict["version"] == __version__
    assert (verdict["kind"], verdict["ranks"]) == ("Raised", [1])


@one_in(1, 2)
def test_ddps_errors_read_as_without_the_recorder(tmp_path):
    _, said, _ = job(tmp_path, "faulty", "shows_its_error")
    assert re.search(r"SAID RuntimeError\(.\[.*(Connection closed by peer|reset by peer|Broken pipe)", said), said
    assert "callback" not in said and f"{ROOT}/collectives/" not in said


TRAINED = {  # two ranks, four steps: what one rank calls
    "ddp": {"all_reduce": 4, "broadcast": 4, "all_gather": 1},
    "workers": {"all_reduce": 4, "broadcast": 4, "all_gather": 1},
    "fsdp2": {"all_gather_single": 16, "reduce_scatter_single": 8},
    "twice": {"all_reduce": 2},
    "fabric": {"all_reduce": 2, "broadcast": 4, "all_gather": 2, "barrier": 1},
    "accelerate": {"all_reduce": 2, "broadcast": 4, "all_gather": 2, "barrier": 1},
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=one_in(k)) for k, n in enumerate(TRAINED)])
def test_a_training_script_runs_unchanged_and_is_seen_whole(name, tmp_path):
    if name in ("fabric", "accelerate"):
        pytest.importorskip({"fabric": "lightning"}.get(name, name))
    code, said, folder = job(tmp_path, "train", name, ranks=2)
    assert (code, said.count("trained")) == (0, 2), said
    record = load(folder)
    assert Counter(ops(record, 0)) == Counter(ops(record, 1)) == TRAINED[name]
    assert record.verdict == "" and record.dropped == 0
    assert all(call.is_complete for call in record.calls)


@pytest.mark.slow
def test_a_record_is_a_run(tmp_path):
    code, said, folder = job(tmp_path, "train", "grid", options=["--values"])
    assert code == 0, said
    record = load(folder)
    assert record.world_size == 4 and record.name == "train.py" and len(set(record.hosts)) == 1
    groups = Counter((call.op, call.group) for call in record.calls)
    assert groups["all_reduce", (0, 1)] == groups["all_reduce", (2, 3)] == 8
    assert sum(call.is_message for call in record.calls) == 16  # to and fro, four steps, two pipelines
    assert "all_reduce SUM, ranks 0, 1, float32 [16], 64 B per rank" in record.table(slice(None))
    gradient = next(call for call in record.calls if call.op == "all_reduce" and len(call.events[0].shape) == 1)
    assert torch.allclose(gradient.events[0].after, gradient.events[0].before + gradient.events[1].before)
    assert record.traffic.ops["send"] == 16
    assert record.totals["send", 4, "float32"].nbytes == 16 * 8 * 16 * 4
    assert record.bill(rails(64), grid={"pp": 2, "dp": 2}).seconds > 0
    assert record.draw(0) is not None
    assert len(record.table().splitlines()) < 80 and "before these; .table(slice(0, 10))" in record.table()
    part = record.part(slice(3, 5))
    assert len(part.calls) == 2 and part.table() == record.table(slice(3, 5)) and part.dropped == 68 - 4
    trace = json.loads(record.timeline().save(tmp_path / "trace.json").read_text())
    assert len({(e["pid"], e["args"]["call"]) for e in trace["traceEvents"] if "call" in e.get("args", {})}) == 68


@one_in(0, 2)
def test_who_held_up_a_job_is_said_on_the_command_line(tmp_path):
    code, said, folder = job(tmp_path, "train", "late", ranks=3)
    assert code == 0, said
    files = [tmp_path / "steps.png", tmp_path / "trace.json.gz"]
    command = [sys.executable, "-m", "collectives", "steps", folder, "--machine", "DGX H100", "--picture", files[0]]
    done = subprocess.run([*command, "--trace", files[1]], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("train.py, 3 ranks: 10 training steps (0 to 9)"), done.stdout + done.stderr
    assert "\nRank 2 held up the others: of " in done.stdout and "\nmodel: NCCL on " in done.stdout
    assert files[0].read_bytes()[:4] == b"\x89PNG" and files[1].read_bytes()[:2] == b"\x1f\x8b"
    steps = load(folder).training_steps()
    for step in steps[1:]:
        assert step.late == 2 and step.ranks[0].waited > 0.1 and step.ranks[0].worked < 0.1


@one_in(1, 2)
def test_a_restart_begins_a_record_of_its_own(tmp_path):
    launcher = "--standalone", "--max-restarts", "1"
    code, said, folder = job(tmp_path, "train", "restarted", ranks=2, launcher=launcher)
    assert code == 0, said
    assert "rank 1 raised ValueError: the first attempt" in load(folder).verdict
    assert load(f"{folder}-restart1").verdict == ""


@pytest.mark.nightly
def test_two_hosts_whose_clocks_differ(tmp_path):
    other_clock = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", "5000", "--fork"]
    if subprocess.run([*other_clock, "true"], capture_output=True).returncode:
        pytest.skip("this system gives no process another clock")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "--master-addr", "127.0.0.1", "--master-port", free.getsockname()[1]
    hosts = [
        start(
            tmp_path,
            "train",
            "grid",
            ranks=2,
            launcher=("--nnodes", 2, "--node-rank", n, *address),
            within=other_clock * n,
        )
        for n in range(2)
    ]
    said = [process.communicate(timeout=240)[0] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0], said
    record = load(tmp_path / "r")
    met = [call for call in record.calls if call.op == "barrier" or call.is_message]
    assert len(met) == 17
    for call in met:  # on one clock, nobody ends a call before all have made it
        assert max(e.start for e in call) < min(e.end for e in call) + 0.05, call.events


@pytest.fixture
def hosts():
    try:
        made = Hosts(2)
    except HostsUnavailable as error:
        pytest.skip(str(error))
    made.started = []
    with made:
        yield made
    for process in made.started:
        process.wait()


def on_hosts(hosts, folder, *script):
    """A script of the corpus as a job of two ranks on each host, whose output goes to files."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
    for host in (0, 1):
        command = [*TORCHRUN, *STATIC.format(host=host).split(), "--nproc-per-node", "2", "-m", "collectives.watch"]
        command += ["--record", str(folder / "r"), str(JOBS / f"{script[0]}.py"), *script[1:]]
        with open(folder / str(host), "wb") as file:
            process = hosts.start(host, command, cwd=folder, env=environ, stdout=file, stderr=subprocess.STDOUT)
        hosts.started.append(process)


@pytest.mark.slow
def test_a_deadlock_between_hosts_is_explained(hosts, tmp_path):
    on_hosts(hosts, tmp_path, "faulty", "deadlock")
    until(lambda: (tmp_path / "r" / "verdict.txt").exists())
    said = re.sub(r"line \d+", "line N", (tmp_path / "r" / "verdict.txt").read_text())
    assert VERDICTS["deadlock"] in said
    assert "rank 1, host host0" in said and "rank 2, host host1" in said
    assert load(tmp_path / "r").hosts == ["host0", "host0", "host1", "host1"]


@pytest.mark.nightly
def test_a_host_that_goes_dark_is_named(hosts, tmp_path):
    on_hosts(hosts, tmp_path, "train", "tiny", "1000000")
    until(grown(tmp_path / "r"))
    hosts.end(1)
    until(lambda: (tmp_path / "r" / "verdict.txt").exists())
    said = (tmp_path / "r" / "verdict.txt").read_text()
    assert "RankFailed: host host1 no longer answers, and ranks 2 and 3 with it" in said
    assert re.search(r"rank 2, host host1.*\nrank 3, host host1.*\n    has ended\n", said)


# --- for as long as it takes --------------------------------------------------------------


@pytest.mark.slow
def test_a_long_job_keeps_its_beginning_its_end_and_its_totals(tmp_path):
    code, said, folder = job(tmp_path, "train", "tiny", 5000, options=["--last", "500"], ranks=2)
    assert code == 0, said
    record, beginning = load(folder), load(folder, beginning=True)
    assert len(list(folder.glob("*.jsonl"))) == 1 + 3  # ranks.jsonl; the first and the last two
    assert 100 <= len(record.events[0]) == len(record.events[1]) < 2000
    assert record.events[1][-1].index == 5001 and all(call.is_complete for call in record.calls)
    assert record.dropped == 2 * 5002 - 2 * len(record.calls)
    assert ops(beginning)[:3] == ["broadcast", "barrier", "all_reduce"]
    made = {kind[0]: total.calls for kind, total in record.totals.items()}
    assert made == {"broadcast": 2, "barrier": 2, "all_reduce": 10_000}


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_calls(tmp_path):
    """Of the ranks, and of the collector beside them: what keeps something of each call takes more with every 10,000.

    Their own memory: the rings between them have a size of their own, of which more is used until they are full.
    """
    memory, goals = [], (1000, 2000, 3000, 4000, 5000)  # steps of five calls a rank
    record = tmp_path / "r"
    with start(tmp_path, "train", "steady", *goals, options=["--last", "50000"], ranks=2) as process:
        for steps in goals:
            until(lambda: all((tmp_path / f"at-{steps}-{rank}").exists() for rank in range(2)))
            until(lambda: sum(total.calls for total in load(record).totals.values()) == 2 * 5 * steps)  # all have come
            ranks = [json.loads(line)[2] for line in (record / "ranks.jsonl").read_text().splitlines()]
            pids = load(record).about["collector"], *ranks
            memory.append([psutil.Process(pid).memory_full_info().uss for pid in pids])
            (tmp_path / f"go-{steps}").touch()
        process.communicate(timeout=60)
    assert process.returncode == 0
    # A collector that was behind for a moment has grown once or twice; what is kept of each call shows every time.
    grown = [min(b - a for a, b in zip(of, of[1:])) for of in zip(*memory)]
    assert all(nbytes < 500_000 for nbytes in grown), memory  # 50 bytes per call; an Event kept would be 20 times that


def test_the_judge_forgets_what_is_over():
    judge = Judge(2, patience=60)
    for k in range(10 * KEPT_CALLS):
        for rank in range(2):
            judge.take(rank, Called(event(rank, k)))
            judge.take(rank, Waiting(k, 0.0, False, "main"))
        for rank in range(2):
            judge.take(rank, Completed(k, None, 1.0, True, None))
    held = judge._monitor
    assert list(map(len, held.events)) == [KEPT_CALLS] * 2 and len(held._matcher.of) == 2 * KEPT_CALLS
    judge.take(0, Called(event(0, 10 * KEPT_CALLS)))
    judge.take(0, Waiting(10 * KEPT_CALLS, 0.0, False, "main"))
    assert not judge.is_due
    judge.take(1, Returned(b"", (None, None), None, []))
    assert judge.is_due
    assert f"rank 0 is waiting in all_reduce #{10 * KEPT_CALLS + 1}" in wording.words(judge.conclude())


@pytest.mark.parametrize("status, how", [(None, "disappeared without an error"), (-9, "was killed by SIGKILL")])
def test_a_rank_that_is_gone_leads_its_consequences_in_whatever_order_they_arrive(status, how):
    judge = Judge(3, patience=60)
    for rank in (0, 1):
        judge.take(rank, Called(Event(rank, 0, "all_reduce", (0, 1, 2), group_name="0")))
        judge.take(rank, Waiting(0, 0.0, False, "main"))
        judge.take(rank, Failed(Failure("RuntimeError", "Connection closed by peer [127.0.0.1]:1", [], True)))
    judge.ended(2, time.monotonic(), status)
    judge.nothing_more()
    assert judge.is_due
    assert wording.words(judge.conclude()).startswith(f"rank 2 {how}")


def test_of_ranks_that_are_gone_the_first_is_the_cause():
    """The launcher ends the others within a tenth of a second, those with a lower number too."""
    judge = Judge(3, patience=60)
    for rank, status in enumerate((-signal.SIGTERM, -signal.SIGTERM, -signal.SIGSEGV)):
        judge.ended(rank, time.monotonic(), status)
    judge.nothing_more()
    assert wording.words(judge.conclude()).startswith("rank 2 was killed by SIGSEGV")
    assert judge.conclude() is None  # it is told once


def left_by(returned, *failed, ended=()):
    """A judge of four ranks, of which one returned and others failed, then were ended, in a call that it did not make."""
    judge = Judge(4, patience=60)
    for rank in range(4):
        if rank != returned:
            judge.take(rank, Called(Event(rank, 0, "all_reduce", (0, 1, 2, 3), group_name="0")))
    for rank in failed:
        judge.take(rank, Failed(Failure("RuntimeError", "Connection closed by peer [127.0.0.1]:1", [], True)))
    judge.take(returned, Returned(b"", (None, None), None, []))
    for rank, status in ended:
        judge.ended(rank, time.monotonic(), status)
    judge.nothing_more()
    return wording.words(judge.conclude())


@pytest.mark.parametrize("ended", [(), ((2, -signal.SIGABRT),), ((2, None), (3, -signal.SIGTERM))])
def test_who_left_early_is_named_and_none_of_those_that_failed_for_it(ended):
    failed = {0, 2, 3} - {rank for rank, _ in ended}
    assert "rank 1 returned before any call. This can never finish" in left_by(1, *failed, ended=ended)


TIMED_OUT = "Timed out waiting 20000ms for recv operation to complete"


@pytest.mark.parametrize("caught", [False, True])
def test_a_limit_that_ends_the_wait_for_a_late_rank_leads_to_that_rank(caught, monkeypatch):
    """In a group with a short limit, whose error may be caught: those that ran into it are the late one's victims."""
    judge, began = Judge(4, patience=60), time.monotonic()
    for rank in (0, 2, 3):
        judge.take(rank, Called(Event(rank, 0, "all_reduce", (0, 1, 2, 3), group_name="7")))
        judge.take(rank, Waiting(0, 0.0, True, "main"))
    monkeypatch.setattr(time, "monotonic", lambda: began + 20)
    judge.take(0, Caught(f"RuntimeError: {TIMED_OUT}", Line("train.py", 7, "step"), 1, 1))
    if caught:  # and the ranks go on
        judge.take(0, Completed(0, None, None, False, None))
        judge.take(0, Called(Event(0, 1, "barrier", (0, 1, 2, 3), group_name="0")))
        judge.take(0, Failed(Failure("ValueError", "no such layer", [], True)))
    else:
        for rank in (0, 2, 3):
            judge.take(rank, Failed(Failure("RuntimeError", TIMED_OUT, [], True)))
            judge.take(rank, Completed(0, None, None, False, None))
    judge.nothing_more()
    verdict = judge.conclude()
    assert ("Rank 1 may hold up the other 3" in wording.words(verdict)) != caught, wording.words(verdict)
    assert report.culprits(verdict, 4) == ((0,) if caught else (1,))


def test_what_ends_all_ranks_is_told_as_that():
    judge = Judge(3, patience=60)
    judge.ended(1, time.monotonic(), -signal.SIGTERM)
    judge.take(0, Failed(Failure("RuntimeError", "Connection closed by peer [127.0.0.1]:1", [], True)))
    judge.ended(2, time.monotonic(), -signal.SIGTERM)
    assert judge.is_due
    said = wording.headline(judge.conclude())
    assert said.startswith("Ended: ranks 0, 1 and 2 were ended from outside, by SIGTERM: a scheduler")


def test_what_is_about_to_end_all_ranks_is_not_told_of_the_first(monkeypatch):
    """On a busy machine a launcher's signal ends ranks seconds apart; one that goes on is the only one in the end."""
    judge = Judge(2, patience=60)
    judge.ended(1, began := time.monotonic(), -signal.SIGTERM)
    assert not judge.is_due  # it is in trouble from now on
    monkeypatch.setattr(time, "monotonic", lambda: began + ENDING_SECONDS - 1)
    assert not judge.is_due
    monkeypatch.setattr(time, "monotonic", lambda: began + ENDING_SECONDS + 1)
    assert judge.is_due and wording.words(judge.conclude()).startswith("rank 1 was killed by SIGTERM")


def test_a_rank_that_the_launcher_ends_after_a_failure_is_not_the_cause():
    judge = Judge(2, patience=60)
    judge.take(0, Failed(Failure("ValueError", "no such layer", [], True)))
    judge.ended(1, time.monotonic(), -signal.SIGTERM)
    assert wording.words(judge.conclude()).startswith("rank 0 raised ValueError")


@pytest.mark.parametrize(
    "end", [RETURN_MESSAGE, Failed(Failure("RuntimeError", "Connection closed by peer", [], True))]
)
def test_a_job_that_goes_on_without_the_rank_that_left_is_said_to_have_ended_well(end):
    """As under torchft: the others catch the error, and form a group without it."""
    judge = Judge(2, patience=60)
    judge.take(0, Called(Event(0, 0, "all_reduce", (0, 1), group_name="0")))
    judge.take(0, Waiting(0, 0.0, False, "main"))
    judge.take(1, RETURN_MESSAGE)
    assert "This can never finish" in wording.words(judge.conclude()) and judge.notes() == []
    judge.take(0, end)
    judge.nothing_more()
    assert [note.startswith("all ranks have returned") for note in judge.notes()] == [True] * (end is RETURN_MESSAGE)
    assert judge.notes() == []


def test_an_error_after_a_stuck_that_the_program_caught_is_told_too():
    judge = Judge(2, patience=60)
    judge.take(0, Called(Event(0, 0, "all_reduce", (0, 1), group_name="0")))
    judge.take(0, Waiting(0, 0.0, False, "main"))
    judge.take(1, RETURN_MESSAGE)
    assert "This can never finish" in wording.words(judge.conclude())
    judge.take(0, Failed(Failure("ValueError", "no such layer", [Line("train.py", 7, "save", "f()")], True)))
    assert judge.notes() == ["after that, rank 0 raised ValueError: no such layer, save, line 7:  f()"]
    assert not judge.is_due and judge.conclude() is None


def waits(judge, rank, index, group):
    judge.take(rank, Called(Event(rank, index, "all_reduce", (0, 1, 2), group_name=group)))
    judge.take(rank, Waiting(index, 0.0, False, "main"))


def test_a_stuck_after_one_that_the_program_caught_is_told_too():
    """Once nobody waits in the first group any more: until then, and once a rank has failed, it may be a consequence."""
    judge = Judge(3, patience=60)
    waits(judge, 0, 0, "0")
    waits(judge, 2, 0, "0")
    judge.take(1, RETURN_MESSAGE)
    assert "ranks 0 and 2 are waiting in all_reduce #1" in wording.words(judge.conclude())
    judge.take(2, Resumed())
    waits(judge, 2, 1, "1")
    assert not judge.is_due
    judge.take(0, Resumed())
    assert judge.is_due and "rank 2 is waiting in all_reduce #2" in wording.words(judge.conclude()) and not judge.is_due
    waits(judge, 0, 1, "0")
    judge.take(2, Resumed())
    assert not judge.is_due and judge.conclude() is None  # who knows which calls are paired in a group that failed
    judge.take(0, Resumed())
    waits(judge, 0, 2, "2")
    assert judge.is_due
    judge.take(2, Failed(Failure("RuntimeError", "Connection closed by peer", [], True)))
    assert not judge.is_due


def test_a_rank_that_ends_well_without_a_word_has_returned():
    judge = Judge(2, patience=60)
    for rank in range(2):
        judge.ended(rank, time.monotonic(), 0)
    judge.nothing_more()
    assert not judge.is_due and judge.conclude() is None


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def grown(folder):
    return lambda: (folder / "00000.jsonl").exists() and (folder / "00000.jsonl").stat().st_size > 10_000


@one_in(0, 2)
def test_training_goes_on_without_a_collector(tmp_path):
    with start(tmp_path, "train", "tiny", 20_000, ranks=2) as process:
        until(grown(tmp_path / "r"))
        os.kill(load(tmp_path / "r").about["collector"], signal.SIGKILL)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and said.count("trained") == 2, said
    assert len(re.findall(r"rank [01] is not recorded: the collector is not reachable .* Training goes on.", said)) == 2
    assert load(tmp_path / "r").calls


@pytest.mark.nightly
def test_what_a_stopped_collector_missed_is_read_once_it_goes_on(tmp_path):
    with start(tmp_path, "train", "tiny", 10_000, ranks=2) as process:
        until(grown(tmp_path / "r"))
        collector = load(tmp_path / "r").about["collector"]
        os.kill(collector, signal.SIGSTOP)
        try:
            assert process.wait(timeout=240) == 0  # training goes on, and ends
        finally:
            os.kill(collector, signal.SIGCONT)
        said = process.stdout.read()  # to the collector's end
    record = load(tmp_path / "r")
    assert record.verdict == "" and "RankFailed" not in said
    assert [(len(mine), mine[-1].end is not None) for mine in record.events] == [(10_002, True)] * 2
    assert said.count("trained") == 2 and "20,004 calls in" in said


@pytest.mark.slow
def test_a_job_that_is_killed_whole_leaves_a_record(tmp_path):
    with start(tmp_path, "train", "tiny", 1_000_000, ranks=2) as process:
        until(grown(tmp_path / "r"))
        process.kill()
        ranks = [json.loads(line)[2] for line in (tmp_path / "r" / "ranks.jsonl").read_text().splitlines()]
        for pid in (load(tmp_path / "r").about["collector"], *ranks):
            os.kill(pid, signal.SIGKILL)
    assert ops(load(tmp_path / "r", beginning=True))[:3] == ["broadcast", "barrier", "all_reduce"]


# --- lines --------------------------------------------------------------------------------


def event(rank, index, **rest):
    about = {"reduce_op": "SUM", "group_name": "0", "dtype": torch.float32, "shape": (2,), "nbytes": 8}
    return Event(rank, index, "all_reduce", (0, 1), **about | rest)


VALUES = [
    None,
    torch.tensor([[1.5, float("inf")], [0.1, -0.0]]),
    torch.tensor([1, 3], dtype=torch.bfloat16),
    torch.tensor([1 + 2j]),
    torch.tensor([2**62 + 1]),
    torch.tensor(True),
    [torch.ones(2), torch.zeros(0)],
    Summary((5000,), torch.float32, 20_000, 17, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0)),
    Summary((2,), torch.float32, 8, 0, (), ()),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("values", [True, False])
def test_what_is_told_is_heard_and_read_again(value, values):
    """Each way: what a rank writes into its ring is heard by the collector, and read from the record's lines."""
    line = Line("train.py", 3, "main", "dist.all_reduce(x)")
    ring = RingWriter(1 << 16)
    teller, hearer = MessageEncoder(ring, 1, values), MessageDecoder(1, 10.0)
    told = [Waiting(0, 1.5, False, "main"), Completed(0, value, 2.0, True, None), Misused(0, "read", line)]
    told = [Called(event(1, 0, before=value, line=line, start=1.0)), *told, WorkBegan(("future", 0, 7), 0)]
    told += [Grouped(0, (0, 1, 2, 3), line), Grouped(0, (1, 3), line, "name", 2), Ungrouped(0)]
    for message in told:
        teller.tell(message)
    ((piece, lost),) = RingReader(ring.descriptor).read()
    heard = list(hearer.hear(piece, lost))
    reader = Reader(1)
    read = [m for line in [hearer.clock(), *(line for line, _ in heard)] for m in reader.read(*decode_line(line)[1:])]
    for messages in ([message for _, message in heard if message], read):
        assert list(map(type, messages)) == list(map(type, told))
        e = messages[0].event
        assert (e.op, e.group, e.start, e.line, e.reduce_op) == ("all_reduce", (0, 1), 11.0, line, "SUM")
        assert messages[1] == Waiting(0, 11.5, False, "main") and messages[2].end == 12.0
        assert messages[3:] == told[3:]
        assert all(str(v) == str(value) and type(v) is type(value) for v in (e.before, messages[2].after))


NO_LINES = [b"[0]", b"{}", b'[0, "exec"]', b"not json", b'[0, "call", 1, "x", 0.0, {"group": [0], "dtype": "load"}]']


@pytest.mark.parametrize("line", NO_LINES)
def test_what_is_no_line_is_refused(line):
    with pytest.raises(ValueError):
        Reader(0).read(*decode_line(line)[1:])


OLD = """{"before": {"made": [], "totals": [], "calls": [0, 0]}}
[0,"call",0,"all_reduce",0.25,{"group":[0,1],"reduce_op":"SUM","nbytes":8,"dtype":"float32","shape":[2],"line":["a.py",1,"f","g()"],"before":true,"waiting":0.5,"end":0.75,"waited":true,"after":true}]
[1,"call",0,"all_reduce",0.25,{"group":[0,1],"reduce_op":"SUM","nbytes":8,"dtype":"float32","shape":[2]}]
[1,"done",0,0.75,true,null,null]
"""


def test_a_record_of_format_1_is_read(tmp_path):
    (tmp_path / "about.json").write_text('{"format": 1, "script": "a.py", "world_size": 2, "began": 1.0}')
    (tmp_path / "00000.jsonl").write_text(OLD)
    record = load(tmp_path)
    a, b = record.events[0] + record.events[1]
    assert (a.start, a.waiting, a.end, a.waited, a.shape, a.line.text, b.end) == (
        0.25,
        0.5,
        0.75,
        True,
        (2,),
        "g()",
        0.75,
    )
    assert (
        isinstance(a.before, Summary)
        and isinstance(a.after, Summary)
        and record.totals["all_reduce", 2, "float32"].calls == 2
    )
    (tmp_path / "about.json").write_text('{"format": 3, "script": "a.py", "world_size": 2, "began": 1.0}')
    with pytest.raises(ValueError, match="is in format 3; this version reads formats 1 to 2"):
        load(tmp_path)


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no record"):
        load(tmp_path)
