"""Faults between hosts: what is done to a torchrun job on two hosts with two ranks each, and how to watch it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable

from collectives.jobs import Hosts

LIMIT_SECONDS = 10  # the process group's time-out
TRAIN = f"""
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds={LIMIT_SECONDS}))

def say(*words):  # torchrun's ranks are unbuffered: print would write each word by itself, between those of other ranks
    sys.stdout.write(" ".join(map(str, words)) + "\\n")

say("JOINED", os.environ["RANK"], os.getpid())
x = torch.ones(1000)
for step in range(10**9):
    dist.all_reduce(x.fill_(1.0))
    if step % 20 == 0:
        say("STEP", os.environ["RANK"], step, dist.get_world_size())
    if step == int(os.environ.get("STEPS", 10**9)):
        break
dist.destroy_process_group()
"""
STATIC = "--nnodes 2 --node-rank {host} --master-addr 10.77.0.1"
ELASTIC = "--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint host0:29400 --rdzv-id job"


class Job:
    """A torchrun on each host, and all that they print, line by line with the time."""

    def __init__(
        self, hosts: Hosts, script: Path, options: str = STATIC, environ: dict[str, str] | None = None
    ) -> None:
        self.hosts, self.lines, self._came = hosts, [], threading.Condition()
        self.began = time.monotonic()
        self.ended: dict[int, tuple[float, int]] = {}  # host -> seconds after the fault, exit code
        settings = [
            f"{k}={v}" for k, v in {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **(environ or {})}.items()
        ]
        self.processes = [
            hosts.start(
                host,
                ["env", *settings, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
                + [*options.format(host=host, nodes=2).split(), str(script)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for host in range(hosts.count)
        ]  # fmt: skip
        self._readers = [
            threading.Thread(target=self._read, args=(h,), daemon=True, name=f"reader{h}") for h in range(hosts.count)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, host: int) -> None:
        with self.processes[host].stdout as printed:
            for line in printed:
                with self._came:
                    self.lines.append((time.monotonic(), host, line.rstrip()))
                    self._came.notify_all()
        code = self.processes[host].wait()
        with self._came:
            self.ended[host] = time.monotonic(), code
            self._came.notify_all()

    def wait_for(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Whether it became true within that time."""
        with self._came:
            return self._came.wait_for(enough, seconds)

    def found(self, pattern: str, since: float = 0.0) -> list[tuple[float, int, re.Match]]:
        """(time, host, match) of the lines that hold a pattern."""
        return [(at, host, m) for at, host, line in list(self.lines) if at >= since and (m := re.search(pattern, line))]

    def is_training(self) -> bool:
        return {m[1] for *_, m in self.found(r"^STEP (\d) (?!0 )")} >= set("0123")

    def pid(self, rank: int) -> int:
        return int(self.found(rf"JOINED {rank} (\d+)")[-1][2][1])

    def kill_rank(self, rank: int) -> None:
        self.hosts.start(rank // 2, ["kill", "-KILL", str(self.pid(rank))]).wait()


def processes_of(hosts: Hosts) -> list[int]:
    """Those that run on hosts, by their ids outside."""
    spaces = {Path(f"/proc/{one}/ns/pid").resolve().name for one in hosts._ones}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "ns" / "pid").readlink().name in spaces:
                found.append(int(folder.name))
        except OSError:
            pass
    return found
