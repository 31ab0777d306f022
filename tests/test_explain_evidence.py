"""Evidence of any kind, explained: how ranks ended, where their stacks are, what hosts and schedulers report.

Lines have the form of torch 2.13, gloo, NCCL 2.30, py-spy 0.4, the kernel, Kubernetes and Slurm, whose sources are named in
the readers.
"""

import io
import json
import logging
import os
import shlex
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from tabulate import tabulate
from torch.distributed.debug._debug_handlers import Collective, FlightRecorderHandler
from torch.distributed.debug._frontend import Response

from collectives.collect.probes import OF_A_HOST
from collectives.watch.explain import evidence
from collectives.watch.explain import text as texts
from collectives.watch.explain.command import explain, main
from collectives.watch.explain.host_map import host_in
from collectives.watch.explain.text import Text, line
from tests import ROOT
from tests.corpus.dumps import STOP, SYNC, WORLD, Do, Played
from tests.test_explain_logs import WORK, lines


def said(folder, **texts: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return explain(folder)


def trace(rank: int, error: str, place: str = "step", at: str = "") -> str:
    frames = (
        f'Traceback (most recent call last):\n  File "/job/train.py", line 37, in {place}\n    work(batch)\n{error}'
    )
    return "\n".join(f"{at}[rank{rank}]: {text}" for text in frames.splitlines()) + "\n"


GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1089"
SUMMARY = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-04_10:02:13
  host      : node48
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 3309)
  error_file: <N/A>
  traceback : {trace}
============================================================
"""

YEAR = datetime.now().year  # of the watchdog's lines, which print none

# --- prefixes -----------------------------------------------------------------------------

PREFIXES = {
    "torchrun": "[rank3]: ",
    "tee": "[default3]:[rank3]: ",
    "kubernetes": "[pod/train-0/main] 2025-03-04T10:02:11.5Z [rank3]: ",
    "srun": "3: [rank3]: ",
    "ray": "\x1b[36m(Worker pid=12, ip=10.0.1.7)\x1b[0m [rank3]: ",
    "containerd": "2025-03-04T10:02:11.123456789Z stderr F [rank3]: ",
}


@pytest.mark.parametrize("kind", PREFIXES)
def test_a_line_without_its_prefixes(kind):
    read = line(f"{PREFIXES[kind]}KeyError: 'x'")
    assert (read.text, read.rank) == ("KeyError: 'x'", 3)
    assert (read.at is None) == ("T10:02" not in PREFIXES[kind])


SHIPPED = {
    "docker": lambda text: {"log": f"{text}\n", "stream": "stderr", "time": "2025-03-04T10:02:11.5Z"},
    "shipper": lambda text: {"@timestamp": "2025-03-04T10:02:11Z", "message": text, "kubernetes": {"host": "node7"}},
    "cloud": lambda text: {"textPayload": text, "timestamp": "2025-03-04T10:02:11Z"},
}


@pytest.mark.parametrize("shipper", SHIPPED)
def test_lines_of_json_and_a_list_of_them(shipper, tmp_path):
    records = [SHIPPED[shipper](text) for text in trace(3, "ValueError: empty batch").splitlines()]
    told = said(tmp_path / "lines", job__log="\n".join(map(json.dumps, records)))
    assert told.startswith("Rank 3") and "raised ValueError: empty batch at 10:02:11, at step, train.py:37." in told
    told = said(tmp_path / "list", job__json=json.dumps(records))
    assert told.startswith("Rank 3 raised ValueError: empty batch"), told


def test_lines_that_a_terminal_broke_are_joined_and_others_are_not(tmp_path):
    whole = "\n".join(lines(rank, 78, 79) for rank in range(1, 8))
    broken = "\n".join(text[k : k + 100] for text in whole.splitlines() for k in range(0, len(text), 100))
    told = said(tmp_path / "broken", job__log=broken)
    assert told.startswith("Rank 0 may hold up the other 7") and "broken at 100 columns" in told, told
    even = "".join(
        f"step {n:04} loss 0.1234 and some words so that a line has more than sixty characters\n" for n in range(99)
    )
    assert len(list(Text(io.BytesIO(even.encode()), [Steps()]))) == 99
    cut = "\n".join(WORK.format(r=r, seq=9, op="ALLREDUCE", n=8)[:120] for r in range(4))
    assert "4 of the watchdog's lines in job.log are cut off" in said(tmp_path / "cut", job__log=f"{cut}\n{whole}")


class Steps:
    marks, inner = (b"step",), ()


def test_a_file_is_read_by_block():
    """A line on the border of two blocks is whole, and a file without an end of line is read."""
    text = b"x" * ((4 << 20) - 7) + b"\nstep 17 of the job\n" + b"step 18"
    assert [each.text for each in Text(io.BytesIO(text), [Steps()])] == ["step 17 of the job", "step 18"]


class Losses:
    marks, inner = (b"step",), (b"loss",)


def test_lines_alike_but_for_numbers_are_looked_at_once_and_again_when_a_reader_has_begun(monkeypatch):
    monkeypatch.setattr(texts, "BLOCK", 16)
    text = b"loss 1\nloss 2\nother 3\nstep 4\nloss 5\r\nother 6\rloss 7"
    assert [each.text for each in Text(io.BytesIO(text), [Losses()])] == ["step 4", "loss 5", "loss 7"]


# --- how ranks ended ----------------------------------------------------------------------


def test_the_first_error_in_time_and_not_its_consequences(tmp_path):
    text = trace(0, f"{GLOO}1", at="2025-03-04 10:02:12 ") + trace(2, "IndexError: 4096", "get", "2025-03-04 10:02:11 ")
    flood = (
        "[rank1]:[W304 10:02:14.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=97): Broken pipe\n" * 1012
    )
    told = said(tmp_path, job__log=text + SUMMARY.format(rank=0, code=1, trace="To enable traceback see") + flood)
    assert told.startswith("Rank 2 raised IndexError: 4096 at 10:02:11, at get, train.py:37.\n"), told
    assert "torchrun names rank 0 as the root cause" in told
    assert 'Consequences: 1,012 lines: "sendBytes failed" (1,012); the error of rank 0' in told


def test_only_consequences_are_no_cause(tmp_path):
    told = said(tmp_path, job__log=trace(0, GLOO) + trace(1, GLOO))
    assert "the first cause isn't in these files" in told and "Rank 0 raised" not in told


def test_a_killed_rank_and_its_host(tmp_path):
    summary = SUMMARY.format(rank=7, code=-9, trace="Signal 9 (SIGKILL) received by PID 3309")
    told = said(tmp_path / "alone", job__log=summary)
    assert told.startswith(
        "Rank 7 on node48 was killed by SIGKILL at 10:02:13.\nIt was killed from outside, most likely"
    ), told
    assert "dmesg" in told and "node48" in told
    kernel = "[Tue Mar  4 10:02:10 2025] Out of memory: Killed process 3309 (python) total-vm:1kB, anon-rss:1kB\n"
    told = said(tmp_path / "both", job__log=summary, dmesg_node48__txt=kernel)
    assert "node48 reported that the kernel killed process 3309 (python) for lack of memory at 10:02:10." in told, told


def test_the_error_file_of_a_rank(tmp_path):
    stack = 'Traceback (most recent call last):\n  File "/job/train.py", line 5, in main\n    f()\nZeroDivisionError: by zero\n'
    extra = {"py_callstack": stack, "timestamp": "1741082531"}
    (tmp_path / "attempt_0" / "3").mkdir(parents=True)
    (tmp_path / "attempt_0" / "3" / "error.json").write_text(
        json.dumps({"message": {"message": "ZeroDivisionError", "extraInfo": extra}})
    )
    where = tmp_path / "attempt_0" / "3" / "error.json"
    assert explain(tmp_path).startswith(f"Local rank 3 (in {where}) raised ZeroDivisionError: by zero at 10:02:11, at main, train.py:5.")


@pytest.mark.parametrize(
    "path, prefix, writer",
    [
        ("logs/1/none_x/attempt_0/1/stderr.log", "", "Local rank 1 (in {path})"),  # torchrun --log-dir
        ("host1/logs_1_none_x_attempt_0_1_stderr.log", "", "Local rank 1 (in {path})"),  # the same, collected
        ("job.log", "[default1]:", "Local rank 1 (default1)"),  # torchrun --tee
        ("job.log", "1: ", "Task 1"),  # srun --label
        ("node16.log", "", "A process (in node16.log)"),
    ],
)
def test_whoever_raised_before_it_had_a_rank_is_named_by_its_file_or_prefix(path, prefix, writer, tmp_path):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["Traceback (most recent call last):", '  File "/job/data.py", line 9, in read_shard', "ValueError: shard 12 is damaged"]
    file.write_text("".join(f"{prefix}{line}\n" for line in lines))
    assert explain(tmp_path).startswith(f"{writer.format(path=file)} raised ValueError: shard 12 is damaged, at read_shard, data.py:9.")
    if prefix == "" and "attempt" in path:  # the same local rank of another host is another process
        other = tmp_path / path.replace("1", "0", 1)
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text(file.read_text().replace("shard 12", "shard 11"))
        assert explain(tmp_path).count("raised ValueError") == 2


def test_the_one_rank_without_an_error_of_its_own_is_the_first_to_look_at(tmp_path):
    """It writes a checkpoint for longer than the others' limit, and torchrun ends it once they have raised."""
    late = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"
    log = "[rank0]: saving checkpoint of step 20\n" + "".join(trace(rank, late) for rank in (2, 3, 1))
    ended = SUMMARY.format(rank=0, code=-15, trace="Signal 15 (SIGTERM) received by PID 3309")
    told = said(tmp_path, job__log=log + ended)
    assert told.startswith("All these errors only mean that another rank was gone or late, and rank 0 raised none in these files: it is the first"), told
    assert "the errors of ranks 1, 2 and 3, " in told and "first cause isn't in these files" not in told, told


def test_the_rank_that_raised_is_named_with_the_dumps_of_the_others(tmp_path):
    steps = [Do("all_reduce", WORLD, line=n) for n in range(4)]
    Played({WORLD: (0, 1, 2, 3)}, [steps, steps, [*steps[:2], STOP], steps]).write(tmp_path, missing=[2])
    told = said(tmp_path, job__log=trace(2, "ValueError: empty batch at 11"))
    assert told.startswith(
        "Rank 2 raised ValueError: empty batch at 11, at step, train.py:37.\nRank 2 may hold up the other 3: "
    ), told
    assert "may have ended" not in told, told  # it has


def test_the_store_the_barrier_and_the_mismatch(tmp_path):
    told = said(
        tmp_path / "store",
        rank0__log="torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/3 clients joined.",
        rank1__log="torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (172.17.0.2, 51217).",
    )
    assert told.startswith("1 of 3 ranks joined the store within 61 s: the other 2 never reached it."), told
    assert "172.17.0.2 is an address inside a container" in told
    told = said(
        tmp_path / "barrier", job__log=trace(0, "RuntimeError: Ranks 2, 3 failed to pass monitoredBarrier in 5000 ms")
    )
    assert told.startswith("Ranks 2 and 3 did not come to a monitored barrier"), told
    retry = "[W] The client socket has failed to connect to [node0]:29400 (errno: 111 - Connection refused).\n"
    complete = "I] [default] Rendezvous complete for workers. Result:\n"
    error = trace(0, "ValueError: no such shard")
    assert "nothing answered" in said(tmp_path / "never", a__log=retry + error, b__log=complete)
    assert "nothing answered" not in said(tmp_path / "later", a__log=retry + complete + error)
    print_ = (
        "CollectiveFingerPrint(SequenceNumber=485, OpType={}, TensorShape=[{}], TensorDtypes={}, TensorDeviceTypes=...)"
    )
    error = f"RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: {print_.format('ALLREDUCE', 25, 'Float')}, but Rank 0 is running collective: {print_.format('BROADCAST', 1, 'Long')}."
    told = said(tmp_path / "mismatch", job__log=trace(1, error, "fit") + trace(0, error, "save"))
    assert told.startswith(
        "Ranks call different collectives as #485: rank 0 calls broadcast [1] int64, and rank 1 calls all_reduce [25] float32."
    ), told
    assert "Rank 0 does so at save, train.py:37." in told


# --- the desync report, NCCL's peers, RAS -------------------------------------------------


def test_the_desync_report_counts(tmp_path):
    report = """[rank0]:[E901 05:20:03.1 ProcessGroupNCCL.cpp:1] [Rank 0] Watchdog reports:
\t - [0] Timeout at collective: ALLREDUCE, #3
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t     [1] finished collective #2, but didn't join collective #3 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #3 started ranks:
\t     [0, 2, 3] started ALLREDUCE
"""
    told = said(tmp_path, job__log=report)
    assert told.startswith("Rank 1 "), told
    assert "none is known to be waiting" not in told and "has not made all_reduce #3" in told, told


def test_the_peer_that_several_hosts_lost_is_named(tmp_path):
    head = "{h}:100:200 [0] transport/net_ib.cc:1238 NCCL WARN NET/IB : "
    using = "node48:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/IB [RO]; OOB eth0:10.3.0.48<0>\n"
    lost = "Got completion from peer 10.3.0.48<{p}> with status={s} opcode=0 len=0 vendor err 129 (Recv)\n"
    texts = [head.format(h=f"node{n}") + lost.format(p=4000 + n, s=12) for n in range(3)]
    texts += [head.format(h="node1") + lost.format(p=5000 + n, s=5) for n in range(3)]
    texts += [using, head.format(h="node48") + "mlx5_2:1 Got async event : port error\n"]
    told = said(tmp_path, nccl__log="".join(texts))
    assert "node48 itself reports: NET/IB : mlx5_2:1 Got async event : port error. Take that host out first." in told, (
        told
    )
    assert "3 hosts (node0, node1, node2) lost contact with node48 (10.3.0.48)" in told, told


def test_a_port_that_was_active_again_long_before_is_no_cause(tmp_path):
    port = f"[{YEAR}-09-01 {{at}}] n3:100:200 [0] NCCL {{level}} NET/IB : mlx5_1:1 Got {{what}}\n"
    job = "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)  # waits since 05:10:03
    error = port.format(at="{at}", level="WARN", what="async error event: port error")
    back = port.format(at="03:00:02", level="INFO", what="non-fatal async event: port active(9)")
    told = said(tmp_path / "healed", job__log=job, nccl__log=error.format(at="03:00:00") + back)
    first, last = told.split("these are hardly the cause:")
    assert "port error" not in first and "Take that host out" not in told and "its port was active again at 03:00:02" in last, told
    told = said(tmp_path / "near", job__log=job, nccl__log=error.format(at="05:10:00"))
    assert "n3 itself reports at 05:10:00: NET/IB : mlx5_1:1 Got async error event: port error. Take that host out first." in told, told


def test_an_interface_that_other_hosts_cannot_reach(tmp_path):
    boot = "{h}:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^lo\n{h}:1:1 [0] NCCL INFO Bootstrap: Using {at}<0>\n"
    hosts = {"n1": "eth0:10.0.0.1", "n2": "docker0:172.17.0.1", "n3": "eth0:10.0.0.3", "n4": "docker0:172.17.0.1"}
    texts = [boot.format(h=host, at=at) for host, at in hosts.items()]
    lost = "n1:1:9 [0] misc/socket.cc:578 NCCL WARN socketPollConnect: connect to {}<4> returned No route to host, exceeded error retry count after 35 attempts\n"
    told = " ".join(said(tmp_path / "two", nccl__log="".join(texts) + lost.format("172.17.0.1")).split())
    assert told.startswith(
        "n2 and n4 announce themselves as 172.17.0.1 (docker0, the same address on each); the other 2 hosts use eth0. So others can't "
        "reach them: set NCCL_SOCKET_IFNAME=eth0 (now ^lo), or remove docker0 there. n1 reports the failure, and is its victim."
    ), told
    assert "announce" not in said(tmp_path / "usual", nccl__log="".join(texts) + lost.format("10.0.0.3"))


def test_versions_are_compared_by_the_parts_that_both_have(tmp_path):
    line_ = "n{}:1:1 [0] NCCL INFO NCCL version {}\n"
    told = said(tmp_path, nccl__log=line_.format(1, "2.27.5+cuda12.9") + line_.format(2, "2.27.5"))
    assert told.startswith("NCCL 2.27.5+cuda12.9: 2 processes") and "differ" not in told, told


RAS = """NCCL version 2.27.3 compiled with CUDA 12.9
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {}

Warnings
========
{}"""


def test_ras_names_the_late_ranks_and_not_the_listed_ones(tmp_path):
    ahead = "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n  30 ranks have launched up to operation 640\n  2 ranks have launched up to operation 641\n  Rank 12 -- GPU 4 managed by process 3 on node 10.0.0.1\n  Rank 13 -- GPU 5 managed by process 4 on node 10.0.0.1\n"
    told = said(tmp_path / "ahead", ras__txt=RAS.format("MISMATCH", ahead))
    assert told.startswith(
        "30 ranks are behind: they have launched all_gather up to 640, and ranks 12 and 13 up to 641."
    ), told
    assert "the smaller group, which is ahead here" in told and "ask again ten seconds later" in told
    late = "#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 64\n  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1 on node node1\n"
    told = said(tmp_path / "late", ras__txt=RAS.format("MISMATCH", late))
    assert told.startswith(
        "Rank 7 is behind: it has launched all_reduce up to 60, and 31 ranks up to 64.\nLook at its host: node1."
    ), told
    dead = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n  Process 34 on node 172.16.64.213 managing GPU 5\n\n#0-0 (cf26) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n"
    told = said(tmp_path / "dead", ras__txt=RAS.format("INCOMPLETE", dead))
    assert (
        told.startswith("NCCL's RAS counts as dead: process 34 on 172.16.64.213, GPU 5.") and "1 rank: rank 21" in told
    ), told
    well = said(tmp_path / "well", ras__txt=RAS.format("OK", ""))
    assert well.startswith("NCCL's RAS reports 32 GPUs on 4 hosts running, with equal counts: no rank is missing.")
    assert "processes on" not in well


def test_ras_in_json(tmp_path):
    ranks = [
        {"rank": r, "host": "node1", "pid": r, "collective_counts": {"AllReduce": 60 if r == 2 else 64, "Broadcast": 1}}
        for r in range(4)
    ]
    missing = [{"rank": 4, "host": "node2", "status": {"unresponsive": True, "considered_dead": True}}]
    comm = {
        "hash": "0x1",
        "size": 5,
        "ranks_count": 4,
        "missing_ranks_count": 1,
        "ranks": ranks,
        "missing_ranks": missing,
    }
    told = said(
        tmp_path, ras__json=json.dumps({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [comm]})
    )
    assert (
        "counts as dead: rank 4 on node2." in told
        and "Rank 2 is behind: it has launched all_reduce up to 60, and ranks 0, 1 and 3 up to 64." in told
    ), told


RAS_JSON = """OK
{{
  "nccl_version": "2.29.1",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53",
  "communicators_count": 2,
  "communicators": [
{}
  ],
  "ras": {{
    "collection_time_sec": 0.000,
    "timeouts_count": 0
  }}
}}
"""


def communicator(name: str, counts: list[int], missing: dict | None = None, error: int = 0) -> str:
    """A communicator as client_support.cc of NCCL 2.30 writes it."""
    status = {"init_state": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {
            "rank": rank, "host": f"172.16.64.{rank // 2}", "pid": 1524344 + rank, "cuda_dev": 0, "nvml_dev": 0,
            "status": status | {"async_error": error * (rank == 0)},
            "collective_counts": {"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": n},
        }
        for rank, n in enumerate(counts)
    ]  # fmt: skip
    lost = [{"rank": len(counts), "host": "172.16.64.9", "pid": 1, "cuda_dev": 1, "nvml_dev": 1, "status": missing}]
    about = {"hash": name, "secondary_hash": "0x1:0x2", "size": len(counts) + bool(missing), "ranks_count": len(counts)}
    about |= {"missing_ranks_count": int(bool(missing)), "ranks": ranks, "missing_ranks": lost if missing else []}
    return json.dumps(about, indent=2)


def test_ras_in_json_as_nccl_writes_it(tmp_path):
    world = communicator("0xa", [64, 64, 60, 64], {"unresponsive": True, "considered_dead": False})
    pair = communicator("0xb", [7, 9], error=2)
    told = said(tmp_path / "both", ras__json=RAS_JSON.format(f"{world},{pair}"))
    assert "got no answer from rank 4 on 172.16.64.9." in told and "dead" not in told, told
    assert "Rank 2 is behind: it has launched all_reduce up to 60, and ranks 0, 1 and 3 up to 64." in told
    assert "'System error', on rank 0 of communicator 0xb." in told
    assert "Rank 0 of communicator 0xb is behind: it has launched all_reduce up to 7" in told  # not the job's rank 0
    well = said(tmp_path / "well", ras__json=RAS_JSON.format(communicator("0xa", [64] * 4)))
    assert well.startswith("NCCL's RAS reports 4 GPUs on 2 hosts running, with equal counts"), well
    command = [sys.executable, "-m", "collectives", "explain", "-"]
    done = subprocess.run(command, input=RAS_JSON.format(world), capture_output=True, text=True, cwd=ROOT)
    assert "Rank 2 is behind" in done.stdout, done


def test_ras_of_several_communicators_and_kinds_of_calls(tmp_path):
    rows = "    0         1         4         8        32        32   RUNNING  MISMATCH\n    1         8         4         1         4        32   RUNNING"
    text = RAS.replace("    0         1         4         8        32        32   RUNNING", rows)
    kinds = "#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllGather operation counts\n  31 ranks have launched up to operation 64\n  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1 on node node1\n"
    kinds += "  Communicator ranks have different AllReduce operation counts\n  30 ranks have launched up to operation 5\n  2 ranks have not launched any operations\n  Rank 7 -- GPU 3 managed by process 1 on node node1\n  Rank 9 -- GPU 3 managed by process 1 on node node1\n"
    kinds += "\n#1-3 (beef) MISMATCH\n  Communicator ranks have different Broadcast operation counts\n  3 ranks have launched up to operation 8\n  Rank 1 has launched up to operation 7 -- GPU 3 managed by process 1 on node node8\n"
    told = said(tmp_path, ras__txt=text.format("MISMATCH", kinds))
    assert "Rank 7 is behind: it has launched all_gather up to 60" in told, told
    assert "Ranks 7 and 9 are behind: they have launched all_reduce up to 0" in told
    assert "Rank 1 of communicator beef is behind: it has launched broadcast up to 7" in told


def test_ras_lacks_ranks_and_does_not_call_them_dead(tmp_path):
    lost = "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 34 on node 172.16.64.213 managing GPU 5\n\n#0-0 (cf26) INCOMPLETE\n  Missing communicator data from {}\n"
    old = lost.format("9 ranks\n  The missing ranks: 16-23, 28")
    told = said(tmp_path / "old", ras__txt=RAS.format("INCOMPLETE", old))
    assert "got no answer from process 34 on 172.16.64.213, GPU 5." in told and "dead" not in told, told
    assert "lacks the data of 9 ranks: ranks 16-23, 28." in told
    new = lost.format("1 rank\n  Rank 21 -- GPU 5 managed by process 34 on node 172.16.64.213")
    told = said(tmp_path / "new", ras__txt=RAS.format("INCOMPLETE", new))
    assert "lacks the data of 1 rank: rank 21." in told, told


DIFFERENT = """#0-0 (fa93) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 7 has status ABORT -- GPU 7 managed by process 8 on node 172.16.64.210
  Rank 9 has status NOCOMM -- GPU 1 managed by process 10 on node 172.16.64.211

"""


def test_ras_names_ranks_whose_communicator_is_gone(tmp_path):
    """As client_support.cc of NCCL 2.30 writes it, and in JSON, which shows it by flags."""
    gone = "ranks whose communicator isn't running: {}rank 9: not a member, or no longer one (NOCOMM)"
    told = " ".join(said(tmp_path / "text", ras__txt=RAS.format("MISMATCH", DIFFERENT)).split())
    assert gone.format("rank 7: aborted (ABORT); ") in told and "no rank is missing" not in told, told
    left = communicator("0xa", [64] * 9, {"unresponsive": False, "considered_dead": False})
    told = " ".join(said(tmp_path / "json", ras__json=RAS_JSON.format(left)).split())
    assert gone.format("") in told and "Look at their hosts" not in told, told


def test_hosts_asked_at_one_moment_are_not_asked_twice(tmp_path):
    """`collect` asks each host, which answers for the whole job."""
    late = "#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 64\n  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1 on node node1\n"
    lost = "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 34 on node node3 managing GPU 5\n\n#0-0 (fa93) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n\n"
    answer = RAS.format("INCOMPLETE,MISMATCH", lost + late)
    once = said(tmp_path / "hang", node0__ras__txt=answer, node1__ras__txt=answer)
    assert once.count("Rank 7 is behind") == 1 and "In both answers" not in once, once
    assert "from process 34 on node3, GPU 5." in once and "the data of 1 rank: rank 21" in once
    assert "RAS was asked once" in once
    said(tmp_path / "hang" / "later", node0__ras__txt=answer, node1__ras__txt=answer)
    assert "In both answers these counts are the same" in explain(tmp_path)


class RasClient(socketserver.StreamRequestHandler):
    """A client of NCCL's RAS socket, served as client_support.cc does: a command in a line, and a status is the last answer."""

    def handle(self):
        for request in self.rfile:
            command = request.decode().rstrip("\r\n").lower()
            if command.startswith("client protocol "):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif command == "set format json" and self.server.has_json:
                self.wfile.write(b"OK\n")
            elif command in ("status", "verbose status"):
                answer = next(self.server.answers, "").encode()
                for start in range(0, len(answer), 1000):  # sent while it is gathered
                    self.wfile.write(answer[start : start + 1000])
                return
            else:
                self.wfile.write(f"ERROR: Unknown command {command}\n".encode())


@contextmanager
def ras_service(*answers: str, has_json: bool):
    with socketserver.ThreadingTCPServer(("localhost", 0), RasClient) as server:
        server.daemon_threads = True
        server.answers, server.has_json = iter(answers), has_json
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_ras_is_asked_twice(monkeypatch):
    """Who launches collectives, and who doesn't; and a job that ends in between has answered once."""
    monkeypatch.setattr(evidence, "SECONDS", 0.1)
    first, second = (
        RAS_JSON.format(communicator("0xa", counts)).removeprefix("OK\n")
        for counts in ([64, 64, 60, 64], [66, 65, 60, 66])
    )
    with ras_service(first, second, has_json=True) as port:
        told = explain(f"ras://localhost:{port}")
    heads = told.splitlines()
    assert (
        heads[0]
        == "Between two answers, 100 ms apart, ranks 0, 1 and 3 launched collectives, and rank 2 launched none."
    ), told
    assert heads[1] == "Rank 2 is behind: it has launched all_reduce up to 60, and ranks 0 and 3 up to 66.", told
    with ras_service(first, first, has_json=True) as port:
        told = explain(f"ras://localhost:{port}")
    assert "no rank launched a collective: it hangs, unless a step takes longer." in told and "asked once" not in told
    all_move = RAS_JSON.format(communicator("0xa", [65, 67, 62, 66])).removeprefix("OK\n")
    with ras_service(first, all_move, has_json=True) as port:
        told = explain(f"ras://localhost:{port}")
    assert "all ranks launched collectives: the job is running" in told and "behind" not in told, told
    with ras_service(first, has_json=True) as port:
        told = explain(f"ras://localhost:{port}")
    assert "Rank 2 is behind" in told and "It answered once, and not again 100 ms later" in told, told


@pytest.mark.parametrize("address", ["ras://", "ras://localhost"])
def test_ras_listens_where_the_jobs_variable_says(address, monkeypatch):
    monkeypatch.setattr(evidence, "SECONDS", 0.1)
    answers = [RAS_JSON.format(communicator("0xa", [64, 60])).removeprefix("OK\n")] * 2
    with ras_service(*answers, has_json=True) as port:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{port}")
        assert "Rank 1 is behind" in explain(address)


def test_ras_of_an_older_nccl_is_asked_for_text(monkeypatch):
    monkeypatch.setattr(evidence, "SECONDS", 0.1)
    late = "#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 64\n  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1 on node node1\n"
    answer = RAS.format("MISMATCH", late)
    with ras_service(answer, answer, has_json=False) as port:
        told = explain(f"ras://localhost:{port}")
    assert told.startswith("Rank 7 is behind: it has launched all_reduce up to 60, and 31 ranks up to 64."), told
    assert "In both answers these counts are the same" in told


@pytest.mark.parametrize("has_json", [True, False])
def test_collect_asks_ras_for_what_it_has(has_json, tmp_path):
    answer = RAS_JSON.format(communicator("0xa", [64, 60])).removeprefix("OK\n") if has_json else RAS.format("OK", "")
    command = next(probe.command for probe in OF_A_HOST if probe.name == "ras")
    with ras_service(answer, has_json=has_json) as port:
        environment = {**os.environ, "NCCL_RAS_ADDR": f"127.0.0.1:{port}"}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment)
    told = said(tmp_path, node0__ras__txt=done.stdout)
    assert ("Rank 1 is behind" if has_json else "with equal counts") in told, (told, done)


def test_an_address_where_something_else_answers(monkeypatch):
    with ras_service(has_json=True) as port, pytest.raises(ValueError, match="no debug server answers at"):
        explain(f"http://localhost:{port}")


# --- stacks -------------------------------------------------------------------------------

SPY = """Process {pid}: python train.py
Python v3.11.7 (/env/bin/python3.11)

Thread {pid} (idle): "MainThread"
{frames}
    main (train.py:140)
Thread 9 (idle): "Thread-1"
    wait (threading.py:331)
"""
IN_CALL = "    all_reduce (torch/distributed/distributed_c10d.py:3068)\n    average (train.py:72)"
IN_LOADER = (
    "    wait (threading.py:359)\n    _try_get_data (torch/utils/data/dataloader.py:1308)\n    train (train.py:96)"
)


def test_stacks_of_py_spy_once_and_twice(tmp_path):
    for rank in range(4):
        frames = IN_LOADER if rank == 2 else IN_CALL
        (tmp_path / f"pass1_rank{rank}.txt").write_text(SPY.format(pid=100 + rank, frames=frames))
    once = explain(tmp_path)
    assert once.startswith(
        "Rank 2 is in no collective: in _try_get_data, dataloader.py:1308, called at train, train.py:96.\n"
    ), once
    assert (
        "Ranks 0, 1 and 3 are waiting in all_reduce, at average, train.py:72" in once
        and "Ask again ten seconds later" in once
    )
    for rank in range(4):
        frames = IN_LOADER if rank == 2 else IN_CALL
        (tmp_path / f"pass2_rank{rank}.txt").write_text(SPY.format(pid=100 + rank, frames=frames))
    assert "train.py:96, in both stacks." in explain(tmp_path)


WAITING = """
import faulthandler, sys, threading, time
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
def load():
    faulthandler.dump_traceback(all_threads=True)
def train():
    load()
train()
"""


def test_stacks_that_faulthandler_writes(tmp_path):
    (tmp_path / "train.py").write_text(WAITING)
    done = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True)
    (tmp_path / "rank_1.txt").write_text(done.stderr)
    assert (
        "is in no collective" not in (told := explain(tmp_path)) and "None of these stacks is in a collective." in told
    )


SERVED = """
import sys, time, torch, torch.distributed as dist
from torch.distributed.debug import start_debug_server
dist.init_process_group("gloo")
start_debug_server(port=int(sys.argv[1]))
def evaluate():
    open(sys.argv[2], "w").close()
    time.sleep(600)
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    evaluate()
dist.all_reduce(torch.ones(8))
"""


@pytest.mark.slow
def test_the_debug_server_of_a_job_that_hangs(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    (tmp_path / "job.py").write_text(SERVED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    job = subprocess.Popen(
        [*torchrun, tmp_path / "job.py", str(port), tmp_path / "here"], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        until(lambda: (tmp_path / "here").exists() and is_open(port))
        monkeypatch.setattr(evidence, "SECONDS", 0.1)
        told = explain(f"http://localhost:{port}")
        page = urllib.request.urlopen(f"http://localhost:{port}/fr_trace_json").read()
    finally:
        job.terminate()
        job.wait()
    assert told.startswith("Rank 1 holds up the other 2: it has not made all_reduce #2."), told
    assert (
        "apart, no rank made a call." in told
        and "Rank 1 is in no collective: in evaluate, job.py:8, in both stacks." in told
    ), told
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "page.html").write_bytes(page)
    assert explain(tmp_path / "saved").startswith("Rank 1 holds up the other 2: it has not made all_reduce #2.")


TP = ("1", "tp")


def test_tables_of_flight_records_as_torch_writes_them(tmp_path, caplog):
    """Of the debug server's files and pages, and of torchfrtrace: torch's own code makes them of played NCCL dumps."""
    steps = [Do("all_reduce", TP if k % 2 else WORLD, line=k) for k in range(6)]
    groups = {WORLD: (0, 1, 2, 3), TP: (0, 1, 2, 3)}
    job = Played(groups, [steps, steps, [*steps[:3], STOP], steps])
    replies = [Response(200, json.dumps(job.dump(rank), default=str)) for rank in range(4)]
    addresses = [f"http://host{rank}:1" for rank in range(4)]
    caplog.set_level(logging.INFO, "Flight Recorder")
    tables = FlightRecorderHandler._build_db(addresses, replies)
    printed = "\n".join(caplog.messages)
    rows, columns = tables.collectives, Collective._fields
    first = "Rank 2 holds up the other 3: it has not made all_reduce #2 of group tp.\n"
    texts = {
        "plain": f"PARTIAL DATA: 3/4 workers responded\n  Rank 3: timed out\n\n=== FR Trace ===\n--- Collectives ---\n{tabulate(rows, headers=columns, tablefmt='plain')}",
        "page": f"<!doctype html><html><h2>Collectives</h2>{tabulate(rows, headers=columns, tablefmt='html')}</html>",
        "printed": printed,
    }
    for kind, text in texts.items():
        told = said(tmp_path / kind, fr_trace_20261129_115044__txt=text)
        assert told.startswith(first), (kind, told)
        assert ("Rank 3 didn't answer the debug server: timed out." in told) is (kind == "plain")


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("localhost", port)) == 0


def until(true, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_an_address_where_nothing_answers():
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
        with pytest.raises(ValueError, match="no debug server answers at http://localhost:"):
            explain(f"http://localhost:{port}")
        with pytest.raises(
            ValueError, match=f"no RAS service answers at ras://localhost:{port}: .*refused.* NCCL_RAS_ADDR"
        ):
            explain(f"ras://localhost:{port}")


# --- hosts and schedulers -----------------------------------------------------------------

HOSTS = {
    "Mar  4 10:02:11 node37 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=3309, GPU has fallen off the bus.": "node37 reported Xid 79 (the GPU has fallen off the bus) at 10:02:11.",
    "node37: [Tue Mar  4 10:02:11 2025] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": "node37 reported Xid 154 (the driver asks for a recovery: Node Reboot Required)",
    "Mar  4 10:02:11 node37 kernel: NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.": "node37 reported that the GPU has fallen off the bus at 10:02:11.",
    "Mar  4 10:02:11 node37 kernel: NVRM: Xid (PCI:0000:3b:00): 7": "node37 reported a line that is cut, and may be a fault's ('NVRM: Xid (PCI:0000:3b:00): 7') at 10:02:11",
    "Mar  4 10:02:11 node37 kernel: NVRM: X": "node37 reported a line that is cut, and may be a fault's ('NVRM: X') at 10:02:11",
    "Mar  4 10:02:11 node37 kernel: Out of memory: Killed process 33 (pyth": "node37 reported a line that is cut, and may be a fault's ('Out of memory: Killed process 33 (pyth') at 10:02:11",
    "Mar  4 10:02:11 node37 kernel: mlx5_core 0000:5e:00.0: Port module event: module 2, Ca": "a line that is cut, and may be a fault's ('Port module event: module 2, Ca')",
    "Mar  4 10:02:11 node37 kernel: mlx5_core 0000:5e:00.0: Port module event: module 2, Cable unplugged": "Cable unplugged at port 2 of a NIC",
    "Mar  4 10:02:11 node37 kernel: mlx5_core 0000:5e:00.0 ib0: Link down": "node37 reported that the link of ib0 went down",
    "Mar  4 10:02:11 node37 kernel: Memory cgroup out of memory: Killed process 33 (python) total-vm:1kB": "killed process 33 (python) for the container's memory limit",
    "2m  Warning  Evicted  pod/train-3  The node was low on resource: memory.": "train-3 reported (Kubernetes) that the pod was evicted",
    "3m  Normal  NodeNotReady  node/gpu-3  Node gpu-3 status is now: NodeNotReady": "gpu-3 reported (Kubernetes) that the node isn't ready",
    "train-3   0/1   OOMKilled   0   3m": "the state OOMKilled of the pod",
    "slurmstepd: error: *** STEP 4711.0 ON node37 CANCELLED AT 2025-03-04T03:02:00 DUE TO TIME LIMIT ***": "node37 reported (Slurm) that the job was canceled: TIME LIMIT",
    "srun: error: node37: task 3: Out Of Memory": "node37 reported (Slurm) the end of task 3: Out Of Memory",
    "srun: error: Node failure on node37": "node37 reported (Slurm) that the node failed",
}  # fmt: skip


@pytest.mark.parametrize("event", HOSTS)
def test_an_event_of_a_host(event, tmp_path):
    assert HOSTS[event] in said(tmp_path, events__log=f"{event}\n")


def test_a_kernels_log_that_ends_within_a_line_is_no_all_clear(tmp_path):
    start = "[Tue Mar  4 10:02:11 2025] nvidia 0000:3b:00.0: enabled\n[Tue Mar  4 10:02:12 2025] "
    whole, cut, known = start + "usb 1-1: new device\n", start + "mlx5_core 0000:5e:00.0: Port mo", start + "NVRM: Xid (PCI:0000:3b"
    told = said(tmp_path, dmesg_n1__txt=whole, dmesg_n2__txt=cut, dmesg_n3__txt=known, job__log=trace(1, "KeyError: 1"))
    assert "No known fault of a GPU, a link or memory is in the kernel's log of n1, n2.\n" in told, told
    assert "The log of n2 ends within a line, which may be a fault's: 'mlx5_core 0000:5e:00.0: Port mo'." in told, told
    assert "n3 reported a line that is cut" in told and "log of n1 ends" not in told, told


def test_the_host_of_the_rank_that_holds_up_all(tmp_path):
    others = "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    where = "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n"
    kernel = "Sep  1 05:09:51 node37 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    told = said(tmp_path, job__log=where + others, dmesg__txt=kernel)
    first, second, *_ = told.splitlines()
    assert first.startswith("Rank 5 may hold up the other 7"), told
    assert (
        second
        == "Its host node37 reported Xid 79 (the GPU has fallen off the bus) at 05:09:51, 12 s before the first wait."
    ), told


NAMES = {
    "fr_cn01_rank0.json": "cn01", "nccl_trace_rank_container-node02_3": "container-node02", "dmesg_f5735d9ffd4f.txt": "f5735d9ffd4f",
    "node17.rank3.log": "node17", "nccl.gpu-a.example.com.4123": "gpu-a.example.com", "alpha.rank3.4711.stack.txt": "alpha",
    "stack_alpha_rank3_1.txt": "alpha", "rank3.log": "", "comm_lib_trace_rank_0": "", "pass1_rank0.txt": "", "slurm-4711.out": "",
    "dmesg-cn07.txt": "cn07", "pyspy-a100-07-1613930.txt": "a100-07", "counters_1.txt": "", "stacks_20261129_115048.txt": "",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_host_in_a_files_name(name):
    assert host_in(f"/somewhere/{name}") == NAMES[name]


@pytest.mark.parametrize("hosts", [("alpha", "beta"), ("r12-s3", "r12-s4"), ("hgx.rack1.example", "hgx.rack2.example")])
def test_hosts_of_any_spelling_are_learned_from_the_files(hosts, tmp_path):
    """Each host's log has its ranks, and the silent one is of the host whose other ranks it is between."""
    for k, host in enumerate(hosts):
        ranks = [rank for rank in range(4 * k, 4 * k + 4) if rank != 5]
        (tmp_path / f"{host}.log").write_text("\n".join(lines(rank, 78, 78) for rank in ranks))
        (tmp_path / f"dmesg_{host}.txt").write_text("[Mon Sep  1 02:00:00 2025] audit: nothing\n")
    xid = "[Mon Sep  1 05:09:51 2025] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    (tmp_path / f"dmesg_{hosts[1]}.txt").write_text(xid)
    told = " ".join(explain(tmp_path).split())
    assert told.startswith("Rank 5 may hold up the other 7"), told
    assert f"Its host {hosts[1]} (by the order of ranks) reported Xid 79" in told, told
    assert f"No known fault of a GPU, a link or memory is in the kernel's log of {hosts[0]}." in told
    assert "isn't in these files" not in told and "Nothing is recognized" not in told


def test_a_word_in_a_files_name_is_no_host(tmp_path):
    xid = "[Mon Sep  1 05:09:51 2025] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    told = said(tmp_path, job__log="\n".join(lines(rank, 78, 78) for rank in (0, 1, 3)), events__log=xid)
    assert "A host that the line does not name reported Xid 79" in told and "ran on" not in told, told


def test_what_happened_to_a_host_hours_before_is_not_next_to_the_cause(tmp_path):
    job = "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n"
    job += "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    link = "Sep  1 02:00:00 node37 kernel: mlx5_core 0000:5e:00.0 ib0: Link down\n"
    told = said(tmp_path, job__log=job, dmesg__txt=link)
    assert "Its host" not in told and "3.2 hours before the first wait, if their clocks have one zone." in told, told


@pytest.mark.parametrize("xid, at, sentence", [
    (79, "05:07:00", "hardly the cause:\nnode37 reported Xid 79 (the GPU has fallen off the bus) at 05:07:00, 183 s before the first wait; the job made steps after it."),
    (79, "05:09:50", "Its host node37 reported Xid 79 (the GPU has fallen off the bus) at 05:09:50, 13 s before the first wait."),
    (74, "05:07:00", "Its host node37 reported Xid 74 (an NVLink error) at 05:07:00, 183 s before the first wait; the job made steps after it."),
])  # fmt: skip
def test_an_xid_after_which_steps_were_made(xid, at, sentence, tmp_path):
    """A GPU that has fallen off the bus makes no more steps, so it wasn't one of this job's."""
    job = "".join(f"{YEAR}-09-01 05:{6 + k // 6:02}:{10 * (k % 6):02} step {900 + k} loss 2.1\n" for k in range(24))
    job += "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n"
    job += "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    kernel = f"[Tue Sep  1 {at} {YEAR}] NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1, x\n"
    told = said(tmp_path, job__log=job, dmesg_node37__txt=kernel)
    assert sentence in told, told


def test_a_host_that_cannot_be_reached(tmp_path):
    texts = {f"node{k}": "\n".join(lines(rank, 78, 78) for rank in range(4 * k, 4 * k + 4)) for k in (0, 2)}
    texts["node1"] = "[rank4] step 12\n"
    gathered = "node1: ssh: connect to host node1 port 22: No route to host\n"
    told = said(tmp_path, collected__txt=gathered, **{f"{host}__log": text for host, text in texts.items()})
    assert told.splitlines()[1:3] == [
        "They ran on node1 (by the order of ranks).", "node1 can't be reached by ssh (No route to host)."
    ], told  # fmt: skip


STILL = "[Sun Nov 29 03:1{n}:05 2026] nfs: server fs03 not responding, still trying\n"
EARLIER = "[Sat Nov 28 22:10:00 2026] nfs: server fs03 not responding, still trying\n[Sat Nov 28 22:10:30 2026] nfs: server fs03 OK\n"
BLOCKED = "[Sun Nov 29 03:14:33 2026] INFO: task python:{n} blocked for more than 122 seconds.\n"
IN_SAVE = (
    "    __exit__ (torch/serialization.py:784)\n    save (torch/serialization.py:967)\n    save_shard (train.py:88)"
)


def dead_file_server(folder, lost: list[str], kernel: bool = True):
    """32 ranks on four hosts, each asked for its stacks twice; the ranks of the hosts that lost fs03 save a checkpoint."""
    folder.mkdir()
    for k, host in enumerate(("c1", "c2", "c3", "c4")):
        ranks = range(8 * k, 8 * k + 8)
        waits = (
            ""
            if host in lost
            else "\n".join(lines(rank, 9001, 9001) for rank in ranks).replace("E901 05:20", "E1129 03:22")
        )
        (folder / f"job_{host}.log").write_text("".join(f"[rank{rank}]: step 9000\n" for rank in ranks) + waits)
        for moment in (1, 2):
            frames = IN_SAVE if host in lost else IN_CALL
            stacks = "".join(SPY.format(pid=4700 + rank, frames=frames) for rank in ranks)
            (folder / f"stacks_{host}-{moment}.txt").write_text(stacks)
        text = EARLIER if host == "c4" else "[Sat Nov 28 21:00:00 2026] mlx5_core 0000:0c:00.0 eth2: Link down\n"
        text += "".join(STILL.format(n=n) for n in range(1, 6)) * (host in lost)
        text += "".join(BLOCKED.format(n=4700 + rank) for rank in ranks[:2]) * (host in lost)
        if kernel:
            (folder / f"dmesg_{host}.txt").write_text(text)


def test_a_file_server_that_does_not_answer(tmp_path):
    """It is the first cause, with the hosts that lost it; an outage that is over isn't. c2-1 is c2's first reading."""
    dead_file_server(tmp_path / "two", ["c2", "c3"])
    told = " ".join(explain(tmp_path / "two").split())
    assert told.startswith("The file server fs03 has not answered c2, c3 (ranks 8-23) since 03:11:05"), told
    assert "No single host is at fault: look at fs03 and the network to it." in told
    assert (
        "16 processes on c2, c3 are in no collective: __exit__, serialization.py:784, at save_shard, train.py:88, in both stacks."
        in told
    )
    assert "c4 reported that the file server fs03 doesn't answer at 22:10:00, until 22:10:30" in told
    assert "c2-1" not in told and "one host, probably" not in told
    dead_file_server(tmp_path / "one", ["c2"])
    told = " ".join(explain(tmp_path / "one").split())
    assert told.startswith("The file server fs03 has not answered c2 (ranks 8-15) since 03:11:05"), told
    assert "Look at fs03, and at the network of c2." in told


def test_a_reading_is_no_host(tmp_path):
    """Without the kernel's log the same processes in both readings show it; nodes named so, with different ones, stay apart."""
    dead_file_server(tmp_path / "readings", ["c2"], kernel=False)
    told = explain(tmp_path / "readings")
    assert "8 processes on c2 are in no collective" in told and "c2-" not in told, told
    for k, host in enumerate(("c2-1", "c2-2")):
        (tmp_path / f"stacks_{host}.txt").write_text(SPY.format(pid=4700 + k, frames=IN_CALL))
    told = explain(tmp_path / "stacks_c2-1.txt", tmp_path / "stacks_c2-2.txt")
    assert "2 processes on c2-1, c2-2 are in all_reduce" in told, told


def test_a_killed_process_is_a_rank_by_its_number(tmp_path):
    """Ray's prefix has both. Last week's Xid comes last, and a link that came back is not torn from its end."""
    lost = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error"
    start = "[I1129 02:40:00.000000001 ProcessGroupNCCL.cpp:100] [PG ID 0 PG GUID 0(default_pg) Rank 0] ProcessGroupNCCL initialization"
    rows = [(rank, start) for rank in range(64)] + [(rank, lost) for rank in range(64) if rank != 12]
    ray = "(TrainWorker pid={pid}, ip=10.9.0.{host}) [rank{rank}]: {text}\n"
    driver = "".join(ray.format(pid=5000 + rank, host=rank // 8 + 1, rank=rank, text=text) for rank, text in rows)
    driver += ray.format(
        pid=5040, host=6, rank=40, text="[E1129 02:58:31.1 ProcessGroupNCCL.cpp:700] remote process exited"
    )
    killed = (
        "[Sun Nov 29 02:58:07 2026] Memory cgroup out of memory: Killed process 5012 (ray::TrainWork) total-vm:9kB\n"
    )
    link = "[Sun Nov 29 02:56:00 2026] mlx5_core 0000:5e:00.0 ib0: Link down\n[Sun Nov 29 02:56:03 2026] mlx5_core 0000:5e:00.0 ib0: Link up\n"
    xid = "[Sun Nov 22 11:00:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    told = said(tmp_path, driver__log=driver, dmesg_n2__txt=killed, dmesg_n5__txt=link, dmesg_n7__txt=xid)
    first, second, *_, last = told.splitlines()
    assert (
        first.startswith("n2 reported that the kernel killed process 5012") and "Process 5012 is rank 12." in first
    ), told
    assert second == "n5 reported that the link of ib0 went down at 02:56:00, until 02:56:03.", told
    assert last.startswith("n7 reported Xid 79") and "160.0 hours before the first error" in last, told


def test_an_xid_of_a_ranks_process_comes_first(tmp_path):
    """No collective is missing, all ranks wait, and the log of a host names a process that a stack has with its rank."""
    for rank in range(4):
        frames = "    item (pipeline.py:77)" if rank == 2 else IN_CALL
        (tmp_path / f"pyspy.rank{rank}.txt").write_text(SPY.format(pid=48900 + rank, frames=frames))
    xid = "kernel: NVRM: Xid (PCI:0000:9b:00): 119, pid={}, name=python, Timeout after 6s of waiting for RPC response from GPU1 GSP!"
    shipped = {"stream": "stdout", "time": "2026-11-29T04:02:11.5Z", "host": "gpu-13"}
    told = said(tmp_path, exporter__jsonl=json.dumps({"log": xid.format(48902), **shipped}) + "\n")
    assert told.startswith(
        "gpu-13 reported Xid 119 (the GPU's system processor doesn't answer) at 04:02:11. Process 48902 is rank 2."
    ), told
    told = said(tmp_path, exporter__jsonl=json.dumps({"log": xid.format(77), **shipped}) + "\n")
    assert "is rank" not in told and told.startswith("Rank 2 is in no collective"), told


def test_a_node_that_is_not_ready_and_the_ranks_of_its_pod(tmp_path):
    """Events of other jobs come last: of a notebook's memory, and of a pod that is no rank's."""
    events = (
        "58m   Warning   OOMKilling   node/ip-10-3-1-9   Memory cgroup out of memory: Killed process 77 (jupyter)\n"
    )
    events += "12m   Normal    NodeNotReady       node/ip-10-3-1-44   Node ip-10-3-1-44 status is now: NodeNotReady\n"
    events += "11m   Normal    TaintManagerEviction pod/llm-train-2   Marking for deletion Pod ml/llm-train-2\n"
    pods = "".join(
        f"llm-train-{k}   1/1   {'Terminating' if k == 2 else 'Running'}   0   3h   10.1.0.{k}   ip-10-3-1-{42 + k}\n"
        for k in range(4)
    )
    pods += "feature-store-0   0/1   OOMKilled   7   9d   10.1.0.9   ip-10-3-1-9\n"
    log = "".join(
        f"[pod/llm-train-{k}/main] {row}\n"
        for k in (0, 1, 3)
        for rank in range(4 * k, 4 * k + 4)
        for row in lines(rank, 120, 121).splitlines()
    )
    log += "".join(f"[pod/llm-train-2/main] [rank{rank}]: step 119 ok\n" for rank in range(8, 12))
    told = said(tmp_path, events__txt=events, pods__txt=pods, logs__txt=log)
    head = told.splitlines()[:4]
    assert head[0].startswith("Ranks 8, 9, 10 and 11 may hold up the other 12"), told
    assert head[1:] == [
        "They ran on llm-train-2.",
        "ip-10-3-1-44 reported (Kubernetes) that the node isn't ready, 12m before it was listed.",
        "llm-train-2 reported (Kubernetes) that the pod was evicted, since its node isn't ready or was tainted, 11m before it was listed.",
    ], told
    assert "one host, probably" not in told and told.index("jupyter") > told.index("llm-train-2 reported")


def test_a_process_that_was_killed_before_the_job_is_not_its_own(tmp_path):
    kernel = f"[Mon Sep  1 {{at}} {YEAR}] Memory cgroup out of memory: Killed process 88213 (python3) total-vm:9kB\n"
    start = f"{YEAR}-09-01 05:00:00 Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    job = start + lines(0, 78, 79)
    for at, is_cause in (("04:50:00", False), ("05:05:00", True)):
        told = said(tmp_path / at[:2], **{"job__log": job, "dmesg-cn07__txt": kernel.format(at=at)})
        assert ("these are hardly the cause:" not in told) == is_cause, told
        assert "cn07 reported that the kernel killed process 88213" in told
    events = "38m  Warning  OOMKilling  node/n1  Memory cgroup out of memory: Killed process 88213 (python3)\n{}m  Normal  Scheduled  pod/w-0  Successfully assigned x/w-0 to n1\n"
    for age, is_cause in ((14, False), (50, True)):
        told = said(tmp_path / f"{age}", job__log=job, events__txt=events.format(age))
        assert ("these are hardly the cause:" not in told) == is_cause, told


EVENTS = "{date}LAST SEEN  TYPE  REASON  OBJECT  MESSAGE\n{age}  Normal  NodeNotReady  node/node37  Node node37 status is now: NodeNotReady\n"
EVENT = {
    "type": "Normal", "reason": "NodeNotReady", "message": "Node node37 status is now: NodeNotReady",
    "involvedObject": {"kind": "Node", "name": "node37"}, "firstTimestamp": f"{YEAR}-09-01T05:09:33Z",
}  # fmt: skip


@pytest.mark.parametrize("events, sentence", [
    (EVENTS.format(date=f"Tue Sep  1 05:15:00 UTC {YEAR}\n", age="5m27s"), " at 05:09:33, 5m27s before it was listed, 30 s before the first wait."),
    (EVENTS.format(date=f"{YEAR}-09-01T05:15:00+00:00\n", age="4m50s"), " at 05:10:10, 4m50s before it was listed, 7 s after the first wait."),
    (EVENTS.format(date=f"Tue Sep  1 05:40:30 AM CET {YEAR}\n", age="30m"), " at about 05:10, 30m before it was listed, within 60 s of the first wait."),
    (EVENTS.format(date=f"Tue Sep  1 05:15:00 UTC {YEAR}\n", age="10s (x9 over 5m27s)"), " at 05:09:33, 5m27s before it was listed, 30 s before the first wait."),
    (EVENTS.format(date="", age="2h"), ", 2h before it was listed.\n"),
    (json.dumps({"items": [EVENT]}), " at 05:09:33, 30 s before the first wait."),
    (json.dumps(EVENT) + "\n", " at 05:09:33, 30 s before the first wait."),
])  # fmt: skip
def test_an_event_has_the_time_that_follows_from_its_age(events, sentence, tmp_path):
    """An age is cut to its last unit. Without the listing's own time, neither a time nor an order follows."""
    job = "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n" + "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    told = said(tmp_path, job__log=job, events__txt=events)
    assert f"\nIts host node37 reported (Kubernetes) that the node isn't ready{sentence}" in told, told
    assert ("print `date` before the events" in told) == ("2h" in sentence), told


def test_a_pod_that_kubectl_describes(tmp_path):
    text = """Name:             train-2
Node:             gpu-3/10.0.0.3
    Last State:     Terminated
      Reason:       OOMKilled
      Finished:     Mon, 30 Nov 2026 03:01:57 +0000
Events:
  Warning  Evicted  4m (x2 over 9m)  kubelet  The node was low on resource: memory.
"""
    told = said(tmp_path, pod__txt=text)
    assert "train-2 reported (Kubernetes) the state OOMKilled of a container at 03:01:57." in told, told
    assert "train-2 reported (Kubernetes) that the pod was evicted: The node was low on resource: memory, 9m before" in told


def test_an_event_that_comes_again_hours_later_is_about_tonight(tmp_path):
    job = "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n"
    job += "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    link = "".join(
        f"Sep  1 {at} node37 kernel: mlx5_core 0000:5e:00.0 ib0: Link down\n" for at in ("02:00:00", "05:09:58")
    )
    told = said(tmp_path, job__log=job, dmesg__txt=link)
    assert (
        "Its host node37 reported that the link of ib0 went down at 05:09:58, 5 s before the first wait." in told
    ), told


PERFQUERY = """{host}  2026-05-19 03:{minute}:02  # perfquery -x, mlx5_3
# Port extended counters: Lid 21 port 1 (CapMask: 0x5A00)
PortXmitData:....................81000000000000
SymbolErrorCounter:..............{symbols}
LinkDownedCounter:...............{downs}

"""


def test_the_port_counters_that_grow(tmp_path):
    """Not the largest ones: they may be of last year."""
    first = PERFQUERY.format(host="alpha", minute="10", symbols=48112, downs=3)
    first += PERFQUERY.format(host="beta", minute="10", symbols=1207, downs=2)
    later = PERFQUERY.format(host="alpha", minute="25", symbols=48112, downs=3)
    later += PERFQUERY.format(host="beta", minute="25", symbols=9833, downs=5)
    once = said(tmp_path / "once", counters__txt=first)
    assert once.startswith("Counters of alpha, mlx5_3: SymbolErrorCounter 48,112") and "read them again" in once, once
    told = said(tmp_path / "twice", counters_1__txt=first, counters_2__txt=later)
    assert told.startswith(
        "Counters of beta, mlx5_3 grew between two readings: SymbolErrorCounter by 8,626 to 9,833, LinkDownedCounter by 3 to 5: "
        "a bad cable, port or NIC.\nThe counters of alpha did not grow"
    ), told  # fmt: skip


COUNTERS = {
    'Errors for "node3 mlx5_0"\n   GUID 0xe41d2d0300abcd port 1: [SymbolErrorCounter == 12] [PortXmitWait == 4096]\n': "Counters of node3, mlx5_0 port 1: SymbolErrorCounter 12.",
    "node3: link mlx5_0/1 rx_write_requests 12 out_of_sequence 77 packet_seq_err 15 local_ack_timeout_err 9 \n": "local_ack_timeout_err 9",
    "/sys/class/net/eth0/statistics/rx_errors:91\n/sys/class/net/eth0/statistics/tx_dropped:0\n": "eth0: rx_errors 91.",
    "node3$ ethtool -S eth5\nNIC statistics:\n     rx_prio3_pause: 123\n     rx_bytes: 9\n": "rx_prio3_pause 123",
    "# Port counters: Lid 2 port 1 (CapMask: 0x00)\nLinkDownedCounter:...............255\n": "at its largest value can't grow (LinkDownedCounter)",
}  # fmt: skip


@pytest.mark.parametrize("text", COUNTERS)
def test_counters_of_other_commands(text, tmp_path):
    told = said(tmp_path, counters__txt=text)
    assert COUNTERS[text] in told and "rx_bytes" not in told and "Nothing is recognized" not in told, told
    assert ("largest value" in told) is ("255" in text), told


def test_the_small_files_that_collect_gathers(tmp_path):
    texts = {
        f"node{k}.rank{k}.9.status__txt": f"Name:\tpython\nState:\t{'T (stopped)' if k == 2 else 'S (sleeping)'}\nPPid:\t1\n"
        for k in range(4)
    }
    texts["missing__txt"] = "Missing:\n" + "".join(
        f"node{k}.rank{k}.9.stack.txt (the line that the rank is at (needs py-spy)): sh: 1: py-spy: not found.\n" for k in range(4)
    ) + "node7: not reachable: ssh: connect to host node7 port 22: No route to host.\n"  # fmt: skip
    texts["node0.network__txt"] = "/sys/class/net/eth0/statistics\n/sys/class/net/eth0/statistics/rx_errors:0\n"
    texts["node0.clock__txt"] = "clock 2026-11-29 03:10:02 +0100\n"
    told = said(tmp_path, **texts)
    assert told.startswith("Rank 2's process is stopped"), told
    assert "node7 can't be reached by ssh (No route to host)." in told
    assert "Not collected: stack of ranks 0-3 (sh: 1: py-spy: not found)." in told
    assert "Nothing is recognized" not in told and "Rank 0's" not in told


# --- clocks -------------------------------------------------------------------------------


def test_clocks_that_are_hours_apart_order_nothing(tmp_path):
    """The first cause is 12 s earlier by true time, and an hour later by its host's clock."""
    first = trace(2, "IndexError: 4096", at="2025-03-04 11:02:01 ")
    told = said(tmp_path / "apart", beta__log=first, alpha__log=trace(0, "KeyError: 7", at="2025-03-04 10:02:13 "))
    assert "The last times in beta.log and alpha.log differ by 1 hour, almost exactly" in told, told
    assert "which came first isn't known" in told
    told = said(tmp_path / "alike", beta__log=first, alpha__log=trace(0, "KeyError: 7", at="2025-03-04 11:02:13 "))
    assert told.startswith("Rank 2 raised IndexError") and "zones" not in told, told
    zones = {
        f"{host}.clock__txt": f"clock 2026-11-29 03:10:02 {zone}\n" for host, zone in (("a", "+0000"), ("b", "+0200"))
    }
    told = said(tmp_path / "collected", job__log=first + trace(0, "KeyError: 7"), **zones)
    assert "different zones (+0000 on a, +0200 on b), so times are not compared" in told, told


def test_an_event_at_the_same_minute_of_a_different_hour(tmp_path):
    job = "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n"
    job += "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    xid = "Sep  1 03:09:51 node37 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    told = said(tmp_path, job__log=job, dmesg__txt=xid)
    assert "at 03:09:51, 2 hours before the first wait, or 12 s from it if their clocks' zones differ." in told, told


@pytest.mark.parametrize(
    "number, sentence",
    [
        ("02", "They part in <module>: rank 6 is at train.py:24, and the others are at train.py:22, in another round of calls that all have "
               "made before. So it left that loop with one round fewer (compare the batches of each rank), or it took a different branch."),
        ("05", "They part in train: rank 5 is at train.py:19, and the others are at train.py:20, in another round of calls that all have "
               "made before. So it took a different branch."),
    ],
)  # fmt: skip
def test_where_ranks_part_that_make_different_calls(number, sentence):
    """Recorded incidents: a rank with one batch fewer, and a branch that a rank took alone. No host is blamed."""
    told = explain(ROOT / "exercises" / "incidents" / number)
    assert sentence in told and "Its host" not in told, told


def test_an_evicted_pod_and_the_errors_of_those_that_lost_it(tmp_path):
    """Its ranks wrote nothing. NCCL's own words after an exception are no exception, and an old OOM kill comes last."""
    events = "LAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n"
    events += (
        "4h12m  Warning  OOMKilling  node/ip-10-2-0-15  Memory cgroup out of memory: Killed process 8123 (python3)\n"
    )
    events += "6m1s   Warning  Evicted     pod/train-3        The node was low on resource: ephemeral-storage.\n"
    error = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version 2.27.5"
    text = "".join(
        trace(rank, error)
        + f"[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        for rank in range(8)
    )  # fmt: skip
    told = said(tmp_path, events__txt=events, job__log=text)
    first, *_, last = told.splitlines()
    assert first.startswith("train-3 reported (Kubernetes) that the pod was evicted") and "6m1s before" in first, told
    assert (
        last.startswith("ip-10-2-0-15 reported that the kernel killed process 8123") and "4h12m before" in last
    ), told
    assert "isn't in these files" not in told



def test_two_runs_in_one_log_are_told_one_after_the_other(tmp_path):
    """The numbers of a rank's calls fall, so its process is a new one. Each run has its own waits, and its own hosts."""
    first = "\n".join(lines(rank, 7800, 7900) for rank in range(4))
    second = "\n".join(lines(rank, 800, 900) for rank in (0, 1)).replace("05:20", "06:50")
    job = f"srun -w n[1-2] torchrun --nnodes=2 --nproc-per-node=4 train.py\n{YEAR}-09-01 05:09:00 step 912 loss 2\n"
    jobs = f"JobID NodeList Start End State\n7 n[1-2] {YEAR}-09-01T01:00:00 {YEAR}-09-01T05:21:00 FAILED\n8 n[2-3] {YEAR}-09-01T06:00:00 {YEAR}-09-01T06:51:00 FAILED\n"
    again = f"{YEAR}-09-01 06:40:00 step 912 loss 2\n"
    told = said(tmp_path / "files", a__log=f"{job}{first}", b__log=f"{again}{second}", sacct__txt=jobs)
    head, one, two = told.split("--- Run ")
    assert head.startswith("These files are of 2 runs, by their failures: until 05:20:03; from 06:50:03 to 06:50:03.\n"), told
    assert "Runs 1 and 2 stopped after the same step, 912, and not on the same hosts (n1, n3 changed): " in head, told
    assert "There are logs of 4 of 8 ranks" in one and "#7800" in one and "#800" not in one
    assert "There are logs of 2 of 8 ranks" in two and "Ranks 0 and 1 timed out in all_reduce #800" in two and "#7800" not in two
    one_file = said(tmp_path / "file", job__log=f"{job}{first}\n{again}{second}")
    assert one_file.split("--- Run ")[2] == two, one_file
    events = "2m11s  Warning  NodeNotReady  node/n2  Node is not ready\n"
    told = said(tmp_path / "ages", a__log=f"{job}{first}", b__log=again + second, events__txt=events)
    assert told.endswith("Which run events.txt is of isn't known, for lack of times: told with this one."), told
    later = "\n".join(lines(rank, 7800, 7900) for rank in (4, 5)).replace("05:20", "05:50")
    assert "runs" not in said(tmp_path / "slow", a__log=f"{job}{first}", b__log=later).split("\n")[0]  # other ranks, half an hour later


def test_a_launcher_that_starts_after_a_failure_begins_a_run(tmp_path):
    start = "W0901 05:40:00.408000 7 torch/distributed/run.py:851] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    failed = trace(3, "ValueError: no such shard", at=f"{YEAR}-09-01 05:41:00 ")
    told = said(tmp_path, a__log=lines(0, 78, 79), b__log=start + failed)
    head, one, two = told.split("--- Run ")
    assert "Rank 0 timed out" in one and "ValueError" not in one and two.startswith("2 ---\n\nRank 3 raised ValueError"), told


def test_stamps_without_a_year_are_of_the_year_of_the_others(tmp_path):
    """Of a log of years ago, the launcher's lines have no year, and the summary has one: it is one run."""
    start = "W0901 05:00:00.408000 7 torch/distributed/run.py:851] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    year = YEAR - 3
    summary = SUMMARY.format(rank=0, code=1, trace="x").replace("2025-03-04_10:02", f"{year}-09-01_05:20")
    told = said(tmp_path / "one", job__log=f"{start}{lines(0, 78, 79)}\n{summary}")
    assert f"{year}-09-01" in summary and "runs" not in told.split("\n")[0], told
    kernel = f"[Mon Sep  1 05:09:51 {year}] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    told = said(tmp_path / "two", job__log=lines(0, 78, 79), dmesg_n1__txt=kernel)  # a file's own are without any
    assert "12 s before the first wait" in told, told


def test_an_error_file_is_of_the_run_whose_log_has_its_text(tmp_path):
    """Its time is UTC, and the log's is not, so that it seems to be from before the launcher's start."""
    start = f"{YEAR}-09-01 05:40:00 Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    failed = trace(3, "ValueError: no such shard", at=f"{YEAR}-09-01 05:41:00 ")
    at = datetime.fromisoformat(f"{YEAR}-09-01T03:41:00+00:00").timestamp()
    stack = trace(3, "ValueError: no such shard").replace("[rank3]: ", "")
    error = json.dumps({"message": {"message": "x", "extraInfo": {"py_callstack": stack, "timestamp": f"{at:.0f}"}}})
    told = said(tmp_path, job__log=start + failed, error__json=error)
    assert told.startswith("Rank 3 raised ValueError: no such shard at 05:41:00") and told.count("ValueError") == 1, told


def test_an_exception_that_a_logger_wrote_is_no_end_and_is_told(tmp_path):
    """Two ranks in one stream, whose tracebacks are mixed; the exception's name has no Error in it."""
    frames = ["Traceback (most recent call last):", '  File "/job/data.py", line 58, in load', "    read(path)"]
    ends = ["lib.Invalid: no footer", "lib.Invalid: no footer"]
    texts = ["WARNING job [rank 1] evaluation failed", *frames[:2], "WARNING job [rank 2] evaluation failed", *frames, *ends]
    log = "".join(f"{YEAR}-09-01 05:10:01,500 {text}\n" for text in texts)
    waits = "\n".join(lines(rank, 78, 78) for rank in range(4))
    told = " ".join(said(tmp_path, trainer__log=log, job__log=waits).split())
    assert "Ranks 1 and 2 caught Invalid: no footer at 05:10:01, at load, data.py:58" in told and "raised" not in told, told
    told = " ".join(said(tmp_path / "cut", trainer__log=log[: log.index(f"{YEAR}-09-01 05:10:01,500 lib.")], job__log=waits).split())
    assert "Ranks 1 and 2 caught an exception, whose own line isn't in the log, at 05:10:01" in told, told


OOM = """Nov 18 02:51:29 n6 kernel: active_anon:133842118 shmem:365431870 pagetables:1310551
Nov 18 02:51:29 n6 kernel: [  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
{rows}Nov 18 02:51:29 n6 kernel: Out of memory: Killed process 3302 (python3) total-vm:9kB, anon-rss:9kB
"""
PEER = "[2026-11-18 02:52:{s}] {host}:9:{s} [4] transport/net_ib.cc:2471 NCCL WARN NET/IB: Got completion from peer 10.4.6.16<44310> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_{nic}\n"


def test_a_kernels_kill_and_the_peers_that_lose_its_host(tmp_path):
    """The kill comes first, with its rank and the memory that was nobody's; the NICs of all rails lose the host, so it isn't a cable."""
    rows = "".join(f"Nov 18 02:51:29 n6 kernel: [{3300 + k}] 20064 {3300 + k} 612 13 12 19 4012 1321 0 0 python3\n" for k in range(4))
    job = "Job 17 on n[5-8]\nsrun torchrun --nnodes=4 --nproc-per-node=4 train.py\nsrun: error: n6: task 1: Exited with exit code 1\nsrun: error: n5: task 0: Exited with exit code 1\n"
    lost = PEER.format(s="08", host="n5", nic=3) + PEER.format(s="09", host="n7", nic=6)
    healed = "[Tue Nov 17 22:49:58 2026] LustreError: 11-0: proj-OST0014-osc-ff3a: operation ost_statfs to node 10.4.9.21@o2ib failed: rc = -107\n"
    healed += "[Tue Nov 17 22:50:03 2026] Lustre: proj-OST0014-osc-ff3a: Connection restored to 10.4.9.21@o2ib (at 10.4.9.21@o2ib)\n"
    told = said(tmp_path, slurm__out=job, job__err=lost, dmesg_n6__txt=OOM.format(rows=rows), dmesg_n5__txt=healed)
    assert told.startswith(
        "n6 reported that the kernel killed process 3302 (python3) for lack of memory at 02:51:29, 39 s before n5, n7 lost contact with 10.4.6.16. "
        "So 10.4.6.16 is an address of n6, it seems: look at n6 (ranks 4, 5, 6 and 7) first, and not at a cable.\n"
        "Process 3302 was the one with local rank 2, by the order of the processes' numbers, so rank 6, probably.\n1394 GiB of its memory was shared"
    ), told
    assert "They lost it on 2 NICs (mlx5_3, mlx5_6), so it isn't one cable" in told
    assert "The first task whose end srun noticed is task 1 on n6 (ranks 4, 5, 6 and 7): exited with exit code 1." in told
    assert "raised" not in told and told.index("(Lustre) doesn't answer at 22:49:58, until 22:50:03") > told.index("hardly the cause:")
    few = "\n".join(lines(rank, 78, 79).replace("E901 05:20:03", "E1118 02:52:09") for rank in (0, 12))
    known = said(tmp_path / "few", slurm__out=job, job__err=lost + few, dmesg_n6__txt=OOM.format(rows=rows))
    assert "There are logs of 2 of 16 ranks.\n" in known and "Collect the lines" not in known, known
    far = OOM.format(rows=rows).replace("02:51:29", "02:32:29")
    assert "lost contact with 10.4.6.16. So" not in said(tmp_path, dmesg_n6__txt=far)


def test_a_stamp_of_whole_seconds_orders_nothing_within_them(tmp_path):
    job = "[rank5]: node37:100:200 [0] NCCL INFO Using network IB\n" + "\n".join(lines(rank, 78, 78) for rank in range(8) if rank != 5)
    for second in ("03", "04"):
        xid = f"Sep  1 05:10:{second} node37 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
        assert "within a second or two of the first wait." in said(tmp_path, job__log=job, dmesg__txt=xid)


FABRIC = """Sep  1 05:00:05 n03 systemd[1]: Starting nvidia-fabricmanager.service - NVIDIA fabric manager service...
Sep  1 05:00:05 n03 nv-fabricmanager[2301]: fabric manager NVIDIA GPU driver interface version 580.105.08 don't match with driver version 580.95.05. Please update with matching NVIDIA driver package.
Sep  1 05:00:05 n03 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.
"""


def test_cuda_that_cannot_start_and_the_fabric_manager_of_the_pods_node(tmp_path):
    """The ranks' one exception is told once and whole; Kubernetes' event leads from their pod to the node, whose daemon failed."""
    error = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
    log = "".join(f"[pod/sft-worker-1/main] {row}\n" for rank in (8, 11) for row in trace(rank, error, "main").splitlines())
    event = "50m  Normal  TaintManagerEviction  pod/sft-worker-1  Marking for deletion Pod research/sft-worker-1\n"
    event += "39m  Normal  Scheduled  pod/sft-worker-1  Successfully assigned research/sft-worker-1 to n03\n"
    told = said(tmp_path, logs__txt=log, events__txt=event, journal_n03__txt=FABRIC)
    first, second, third, fourth, *_ = told.splitlines()
    assert first == f"Ranks 8 and 11 on sft-worker-1 (node n03) raised {error}, at main, train.py:37.", told
    assert second.startswith("On a host with NVSwitches, CUDA can't start before the fabric manager"), told
    assert third == "n03 reported that its fabric manager's version, 580.105.08, isn't the driver's, 580.95.05 at 05:00:05."
    assert fourth == "n03 reported that nvidia-fabricmanager failed at 05:00:05."
    assert "50m before it was listed. It has been started again since, on n03." in told, told


def test_a_switch_is_no_host_and_a_note_is_no_cause(tmp_path):
    kernel = "[Mon Sep  1 05:09:51 2025] pcieport 0000:c0:01.0: DPC: containment event, status:0x1f01 source:0x0000\n"
    kernel += "[Mon Sep  1 05:09:53 2025] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 34 LTSSM Fault Up\n"
    kernel += "[Mon Sep  1 05:09:54 2025] NVRM: Xid (PCI:0000:61:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping\n"
    told = said(tmp_path, job__log="\n".join(lines(rank, 78, 78) for rank in (0, 1, 3)), dmesg_n7__txt=kernel)
    assert "n7 reported that the PCIe port 0000:c0:01.0 cut its device off" in told and "n7 reported SXid 20034" in told, told
    assert "nvswitch0 reported" not in told and told.index("Xid 63 (") > told.index("hardly the cause:")


def test_stacks_with_a_heading_and_all_at_one_line_on_nccl(tmp_path):
    job = Played({WORLD: (0, 1)}, [[Do("all_reduce", WORLD, line=3)], [STOP]])
    job.write(tmp_path)
    stacks = "".join(f"$ ssh n{rank} sudo py-spy dump --pid {70 + rank}   # rank {rank}, 03:24\n" + SPY.format(pid=70 + rank, frames="    step (train.py:77)") for rank in (0, 1))
    told = said(tmp_path, pyspy__txt=stacks)
    assert "Ranks 0 and 1 are all at step, train.py:77: with NCCL, a call returns when it is queued" in told, told
    assert "no collective" not in told and "No file's name" not in told


def test_the_rounds_of_a_loop_are_counted(tmp_path):
    """Rank 1 skips the third of four batches of two calls: it is one round short, and at the call after the loop."""
    inner = [Do("all_gather", WORLD, line=11), Do("reduce_scatter", WORLD, line=12)]
    step = [*inner * 4, Do("all_reduce", WORLD, (1,), line=20), SYNC]
    Played({WORLD: (0, 1, 2)}, [step * 3, [*step * 2, *step[2:]], step * 3]).write(tmp_path)
    told = explain(tmp_path)
    assert "Rank 1 made 3 rounds of 2 calls, and the others 4: look for a `continue`, a `break`, or an empty batch" in told, told


def test_congestion_at_one_host(tmp_path):
    """ethtool on all hosts by pdsh, twice: large counters that stand still are not tonight's."""
    for k in (1, 2):
        row = "{h}: NIC statistics:\n{h}:      rx_packets: 99\n{h}:      rx_prio3_pause: {n}\n"
        rows = row.format(h="hgx-b", n=99120384) + row.format(h="hgx-c", n=5512 + (k - 1) * 3911822)
        (tmp_path / f"ethtool_{k}.txt").write_text(rows)
    told = explain(tmp_path)
    assert told.startswith(
        "Counters of hgx-c grew between two readings: rx_prio3_pause by 3,911,822 to 3,917,334: "
        "congestion, or lost packets, on the path of this host alone.\nThe counters of hgx-b did not grow"
    ), told  # fmt: skip


def test_stacks_of_processes_whose_ranks_are_unknown(tmp_path):
    for moment in (1, 2):
        for host, pid, frames in (("alpha", 41, IN_LOADER), ("beta", 41, IN_CALL), ("beta", 42, IN_CALL)):
            with (tmp_path / f"stack_{host}_{moment}.txt").open("a") as file:
                file.write(SPY.format(pid=pid, frames=frames))
    told = explain(tmp_path)
    assert told.startswith(
        "Process 41 on alpha is in no collective: _try_get_data, dataloader.py:1308, at train, train.py:96, in both stacks.\n"
        "2 processes on beta are in all_reduce, at average, train.py:72, in both stacks."
    ), told  # fmt: skip


def test_stacks_by_process_are_joined_with_ras(tmp_path):
    """RAS numbers the processes of ranks; the files of stacks name hosts alone."""
    for host in range(2):
        frames = [IN_LOADER if rank == 2 else IN_CALL for rank in (2 * host, 2 * host + 1)]
        stacks = "".join(SPY.format(pid=1524344 + 2 * host + k, frames=each) for k, each in enumerate(frames))
        (tmp_path / f"pyspy-gpu{host}.txt").write_text(stacks)
    told = said(tmp_path, ras__json=RAS_JSON.format(communicator("0xa", [64, 64, 60, 64])))
    assert "Rank 2 is in no collective: in _try_get_data" in told and "Ranks 0, 1 and 3 are waiting in all_reduce" in told, told
    late = "#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  31 ranks have launched up to operation 64\n  Rank 2 has launched up to operation 60 -- GPU 0 managed by process 1524346 on node 172.16.64.1\n"
    (tmp_path / "ras.json").unlink()
    told = said(tmp_path, ras__txt=RAS.format("MISMATCH", late))
    assert "Rank 2 is in no collective: in _try_get_data" in told and "3 processes on gpu0, gpu1 are in all_reduce" in told, told


def test_ranks_that_wait_in_a_communicator_are_not_where_to_start(tmp_path):
    world = json.loads(communicator("0xa", [64, 64, 60, 60]))
    pair = world | {"hash": "0xb", "size": 2, "ranks": [rank | {"rank": k} for k, rank in enumerate(world["ranks"][2:])]}
    pair["ranks"][0]["collective_counts"] = {"AllReduce": 900}
    pair["ranks"][1]["collective_counts"] = {"AllReduce": 899}
    told = said(tmp_path, ras__json=RAS_JSON.format(f"{json.dumps(world)},{json.dumps(pair)}"))
    assert told.startswith(
        "Start with rank 3, on 172.16.64.1: rank 2, late as well, is ahead in communicator 0xb, and waiting there, it seems."
    ), told


def test_ranks_that_launch_different_collectives_are_not_late(tmp_path):
    comm = json.loads(communicator("0xa", [64, 64, 63, 64]))
    comm["ranks"][2]["collective_counts"]["AllGather"] = 1
    told = said(tmp_path, ras__json=RAS_JSON.format(json.dumps(comm)))
    assert told.startswith("Rank 2 launched all_gather once more than the others, and all_reduce once less: they call different"), told
    assert "behind" not in told


WORKER = """    read_shard (data.py:88)
    _worker_loop (torch/utils/data/_utils/worker.py:349)
    BaseProcess.run (multiprocessing/process.py:108)
    BaseProcess._bootstrap (multiprocessing/process.py:314)
    train (train.py:90)"""
IDLE_WORKER = WORKER.replace("read_shard (data.py:88)", "Queue.get (multiprocessing/queues.py:113)")


def test_a_worker_of_a_data_loader_is_no_rank(tmp_path):
    """With py-spy's --subprocesses, a rank's file has its workers' stacks, too."""
    for rank in range(3):
        own = SPY.format(pid=10 * rank + 1, frames=IN_LOADER if rank == 1 else IN_CALL)
        workers = [SPY.format(pid=10 * rank + k, frames=WORKER if (rank, k) == (1, 3) else IDLE_WORKER) for k in (2, 3)]
        workers = [text.replace("\nThread", f"\nParent Process {10 * rank + 1}: python train.py\nThread", 1) for text in workers]
        (tmp_path / f"rank{rank}.txt").write_text("\n".join([own, *workers]))
    told = explain(tmp_path)
    assert told.startswith(
        "Rank 1 is in no collective: in _try_get_data, dataloader.py:1308, called at train, train.py:96.\n"
        "A worker of rank 1's data loader, process 13, is in read_shard, data.py:88.\n"
        "Ranks 0 and 2 are waiting in all_reduce, at average, train.py:72, apparently for rank 1."
    ), told
    assert "in both stacks" not in told and "have moved" not in told


def test_ranks_in_ddps_backward_wait_there_for_the_one_elsewhere_whose_caught_exception_is_shown(tmp_path):
    """DDP's waits are in C++, below a backward that runs nothing; who computes in it is active."""
    backward = "    _engine_run_backward (torch/autograd/graph.py:979)\n    Tensor.backward (torch/_tensor.py:623)\n    train_step (train.py:37)"
    for rank in range(4):
        stack = SPY.format(pid=10 + rank, frames="    Metrics.add (metrics.py:14)" if rank == 2 else backward)
        (tmp_path / f"rank{rank}.txt").write_text(stack.replace("(idle)", "(active)") if rank == 3 else stack)
    error = "2026-11-30 13:48:0{k},567 ERROR [rank {rank}] train: not {what}\nTraceback (most recent call last):\n  File \"/job/metrics.py\", line 19, in upload\n    row\nValueError: {what}\n"
    told = said(tmp_path, job__log=error.format(k=3, rank=2, what="a number") + error.format(k=5, rank=1, what="a file"))
    assert told.startswith("Rank 2 caught ValueError: a number at 13:48:03, at upload, metrics.py:19.\n"), told
    assert "Ranks 0 and 1 are waiting in backward, in which DDP waits for its calls in C++, at train_step, train.py:37, apparently for ranks 2 and 3." in told, told
    assert "a file" not in told, told


def test_of_a_watched_job_the_program_is_shown_and_its_collector_is_no_rank(tmp_path):
    """The collector is forked from a rank, with its environment and command."""
    wait = "    TracedWork.wait (collectives/rank/traced.py:85)\n    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    average (train.py:72)"
    serve = "    Host.look (collectives/watch/rings.py:77)\n    Collector.serve (collectives/watch/collector.py:117)\n    collect (collectives/watch/collector.py:69)"
    for rank in range(3):
        (tmp_path / f"host0.rank{rank}.5{rank}.stack.txt").write_text(SPY.format(pid=50 + rank, frames=IN_LOADER if rank == 2 else wait))
    (tmp_path / "host0.rank0.60.stack.txt").write_text(SPY.format(pid=60, frames=serve))
    told = explain(tmp_path)
    assert told.startswith("Rank 2 is in no collective: in _try_get_data"), told
    assert "Ranks 0 and 1 are waiting in all_reduce, at average, train.py:72, apparently for rank 2." in told, told


@pytest.mark.parametrize("frames", ["    synchronize (torch/cuda/__init__.py:954)\n", "    cuStreamSynchronize (libcuda.so.1)\n", ""])
def test_a_rank_that_waits_for_its_gpu_is_not_elsewhere(frames, tmp_path):
    for rank in range(4):
        own = IN_LOADER if rank == 3 else f"{frames}    step (train.py:77)"
        (tmp_path / f"rank{rank}.txt").write_text(SPY.format(pid=100 + rank, frames=own))
    told = explain(tmp_path)
    if frames:
        assert "Ranks 0, 1 and 2 are waiting in a GPU synchronization, at step, train.py:77, apparently for rank 3." in told, told
    else:
        assert "None of these stacks is in a collective. With NCCL, a rank that waits for a collective shows" in told, told
        (tmp_path / "rank3.txt").write_text(SPY.format(pid=103, frames=IN_CALL))
        assert "Ranks 0, 1 and 2 are in no collective, or in a wait for the GPU: in step, train.py:77." in explain(tmp_path)


IN_USE = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
INVALID = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"


@pytest.mark.parametrize("error, sentence", [
    (IN_USE, "EADDRINUSE, message: address already in use, at step, train.py:37.\nThat port is taken, by a second job or by a process"),
    (INVALID, "NCCL version 2.21.5 Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000, at step, train.py:37."),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "Launchers waited in vain for the other hosts to join (job.log): look for a host"),
])  # fmt: skip
def test_a_job_that_did_not_start(error, sentence, tmp_path):
    text = trace(1, error)
    if "Rendezvous" in error:  # of the launcher, which is no rank
        text = text.replace("[rank1]: ", "")
    told = said(tmp_path, job__log=text.rstrip())  # the last line has no end
    assert sentence in told and "first cause isn't" not in told, told


HALF = "NCCL version 2.27.3 compiled with CUDA 12.9\nJob summary\n===========\n"


@pytest.mark.parametrize("text, sentence", [
    (HALF, "The answer of NCCL's RAS ends, before it names ranks: it is cut short."),
    (RAS.format("MISMATCH", "")[:-12], "The answer of NCCL's RAS ends after RUNNING MISMATCH, before it names ranks"),
    (trace(3, "").rstrip("\n"), "job.txt ends in a traceback, before its exception: the last line is at step, train.py:37."),
    (SUMMARY.format(rank=3, code=-9, trace="").partition("  exitcode")[0], "job.txt ends in torchrun's summary, before the exit code of rank 3."),
])  # fmt: skip
def test_a_text_that_is_cut_short_is_told_as_one(text, sentence, tmp_path):
    assert sentence in said(tmp_path, job__txt=text)


@pytest.mark.parametrize("code", ["utf-16", "utf-8-sig"])
def test_texts_that_a_shell_of_windows_wrote(code, tmp_path):
    """And a kernel's log that is no text isn't one without faults."""
    (tmp_path / "ras.json").write_bytes(RAS_JSON.format(communicator("0xa", [64, 64, 60, 64])).encode(code))
    (tmp_path / "dmesg_n1.txt").write_bytes(b"\0\1binary")
    told = explain(tmp_path)
    assert "Rank 2 is behind" in told and "Nothing is recognized in dmesg_n1.txt (binary)." in told and "No fault" not in told, told


def test_json_in_colors(tmp_path):
    text = RAS_JSON.format(communicator("0xa", [64, 64, 60, 64])).removeprefix("OK\n").replace("{", "\x1b[1;39m{\x1b[0m")
    assert "Rank 2 is behind" in said(tmp_path, ras__json=text)


# --- as many columns as a terminal has ----------------------------------------------------


def test_512_ranks_fit_a_terminal(tmp_path, capsys, monkeypatch):
    """Every kind of evidence at once, of 64 hosts with long names, is readable on 100 columns and a screen or two."""
    hosts = [f"gpu-{k:03}.rack{k // 8}.cluster.example.com" for k in range(64)]
    for k, host in enumerate(hosts):
        ranks = [rank for rank in range(8 * k, 8 * k + 8) if rank % 37]
        text = "\n".join(lines(rank, 78, 78) for rank in ranks) + "\n"
        text += "".join(trace(rank, GLOO + "9" * 200) for rank in ranks[::3])
        (tmp_path / f"{host}.log").write_text(text)
        xids = "".join(
            f"[Mon Sep  1 05:09:51 2025] NVRM: Xid (PCI:0000:{n:02}:00): {n}, pid=1, GPU has fallen off the bus.\n"
            for n in (79, 48)
        )
        (tmp_path / f"dmesg_{host}.txt").write_text(xids if k % 5 == 0 else "nothing\n")
        (tmp_path / f"{host}.rank{8 * k}.7.status.txt").write_text(f"Name:\tpython\nState:\t{'TD'[k % 2]} (x)\n")
        (tmp_path / f"{host}.rdma.txt").write_text(
            f"link mlx5_0/1 rx_write_requests 1 out_of_sequence {k * k} packet_seq_err {k} \n"
        )
        for rank in ranks[:4]:
            frames = IN_LOADER.replace("train.py", f"a_long_name_of_a_file_{rank % 9}.py") if rank % 5 else IN_CALL
            (tmp_path / f"{host}.rank{rank}.9.stack.txt").write_text(SPY.format(pid=rank, frames=frames))
    late = "".join(
        f"  Rank {rank} -- GPU 4 managed by process {rank} on node 10.0.{rank // 8}.1\n" for rank in range(0, 512, 3)
    )
    kinds = f"#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n  341 ranks have launched up to operation 640\n  171 ranks have launched up to operation 641\n{late}"
    (tmp_path / "ras.txt").write_text(RAS.format("MISMATCH", kinds).replace("32        32", "512       512"))
    missing = "".join(
        f"{host}.rank{8 * k}.9.stack.txt (the line that the rank is at): no answer within {k} s.\n"
        for k, host in enumerate(hosts)
    )
    (tmp_path / "missing.txt").write_text(f"Missing:\n{missing}")
    monkeypatch.setattr(sys, "argv", ["explain", str(tmp_path)])
    handler = signal.getsignal(signal.SIGPIPE)
    try:
        main()
    finally:
        signal.signal(signal.SIGPIPE, handler)
    told = capsys.readouterr().out.splitlines()
    assert max(map(len, told)) <= 100, max(told, key=len)
    assert len(told) <= 120, len(told)


# --- the command --------------------------------------------------------------------------


def test_standard_input_and_inputs_that_cannot_be_read(tmp_path):
    command = [sys.executable, "-m", "collectives", "explain"]
    done = subprocess.run([*command, "-"], input=trace(2, "ValueError: x"), capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("Rank 2 raised ValueError: x"), done
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "cut.log.gz").write_bytes(b"\x1f\x8b\x08\x00\x00")
    (tmp_path / "notes.txt").write_text("nothing of interest\n")
    (tmp_path / "broken.json").write_text('{"communicators": [')
    with pytest.raises(ValueError) as error:
        explain(tmp_path)
    for words in (
        "empty.log is empty",
        "cut.log.gz is compressed and cut short",
        "Nothing is recognized in notes.txt",
        "broken.json is cut short",
    ):
        assert words in str(error.value), error.value


@contextmanager
def no_superuser():
    """Files have their permissions for root too."""
    if is_root := os.geteuid() == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_what_may_not_be_read_or_is_no_file_is_named_and_the_rest_is_judged():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "job.log").write_text(trace(2, "ValueError: x"))
        for place, right in (("shut", 0), ("listed", 0o744)):
            (folder / place).mkdir()
            (folder / place / "node1.log").write_text("x\n")
            (folder / place).chmod(right)
        (folder / "secret.log").touch(0)
        (folder / "all.tar").write_bytes(b"job.log".ljust(257, b"\0") + b"ustar")
        os.mkfifo(folder / "pipe")
        (folder / "latest").symlink_to("nowhere")
        (folder / "empty").mkdir()
        with no_superuser():
            told = explain(folder)
            told += explain(folder / "job.log", folder / "shut" / "node1.log", folder / "empty")
    assert told.startswith("Rank 2 raised ValueError: x"), told
    for path, why in {
        "shut": "could not be read: Permission denied", "secret.log": "could not be read: Permission denied",
        "shut/node1.log": "could not be read: Permission denied", "listed/node1.log": "was not read: it isn't a file, or can't be reached",
        "pipe": "was not read: it isn't a file", "latest": "was not read: it isn't a file", "all.tar": "is packed (tar)", "empty": "is an empty folder",
    }.items():  # fmt: skip
        assert f"{folder / path} {why}" in told, told


def test_a_pipe_is_read_once():
    command = [sys.executable, "-m", "collectives", "explain"]
    script = f'{" ".join(map(shlex.quote, command))} <(cat)'
    done = subprocess.run(["bash", "-c", script], input=trace(2, "ValueError: x"), capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("Rank 2 raised ValueError: x"), done
