"""A real Slurm of two nodes, which are hosts of namespaces: with Slurm(folder) as slurm: slurm.start("srun", "-N2", "hostname")

Its daemons and jobs run as `daemon`, who is whoever starts them: of the users on such a host, only one exists, and as root Slurm would
change to others.  Its ports are the hosts' own.
"""

import os
import secrets
import shutil
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from collectives.jobs import Hosts, HostsUnavailable

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "unshare")
AS_DAEMON = ("unshare", "--user", "--map-user=1", "--map-group=1")
PATH = f"{os.environ['PATH']}:/usr/sbin"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}
SlurmUser=daemon
SlurmdUser=daemon
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
MpiDefault=none
NodeName={names} NodeAddr={addresses} CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES
"""
LIMIT_SECONDS = 60.0


class SlurmUnavailable(RuntimeError):
    """Slurm can't run here. The message has the reason."""


class Slurm(AbstractContextManager):
    """A controller and a node on host0, a second node on host1.  They end with the block.  Raises SlurmUnavailable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if missing := [name for name in NEEDED if not shutil.which(name, path=PATH)]:
            raise SlurmUnavailable(f"{', '.join(missing)} not found (in Debian, slurm-wlm and munge)")
        try:
            self.hosts = Hosts(2)
        except HostsUnavailable as reason:
            raise SlurmUnavailable(str(reason)) from None
        try:
            self._begin()
        except BaseException:
            self.hosts.close()
            raise

    def start(self, *command: Any, host: int = 0, env: dict[str, str] = {}, **options: Any) -> subprocess.Popen:
        """A process on a host, by default the one of the controller."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        settings = outside | {"PATH": PATH, "SLURM_CONF": str(self._folder / "slurm.conf")} | env
        return self.hosts.start(host, [*AS_DAEMON, *map(str, command)], env=settings, **options)

    def output(self, *command: Any, **options: Any) -> subprocess.CompletedProcess:
        """A command's end."""
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        stdout, stderr = process.communicate(timeout=10 * LIMIT_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def _begin(self) -> None:
        (self._folder / "state").mkdir(parents=True)
        (self._folder / "key").write_bytes(secrets.token_bytes(128))
        (self._folder / "key").chmod(0o600)
        values = dict(controller=self.hosts.names[0], folder=self._folder, cpus=os.cpu_count())
        lists = dict(names=",".join(self.hosts.names), addresses=",".join(self.hosts.addresses))
        (self._folder / "slurm.conf").write_text(CONFIGURATION.format(**values, **lists))
        (self._folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        files = {"socket": "munge", "key-file": "key", "pid-file": "munged.pid", "seed-file": "seed"}
        with open(self._folder / "log", "w") as log:
            munged = ["munged", "--foreground", "--force", *(f"--{name}={self._folder / file}" for name, file in files.items())]
            self._daemon(log, *munged)
            self._until((self._folder / "munge").exists)
            self._daemon(log, "slurmctld", "-D")
            for host, name in enumerate(self.hosts.names):
                self._daemon(log, "slurmd", "-D", "-N", name, host=host)
        self._until(lambda: self.output("sinfo", "-h", "-o", "%t %D").stdout == "idle 2\n")

    def _daemon(self, log: Any, *command: str, host: int = 0) -> None:
        self.start(*command, host=host, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _until(self, is_so: Any) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not is_so():
            if time.monotonic() > end or any(daemon.poll() for daemon in self.hosts._started[:4]):
                raise SlurmUnavailable(f"its daemons don't run here:\n{(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def __exit__(self, *_: Any) -> None:
        self.hosts.close()
