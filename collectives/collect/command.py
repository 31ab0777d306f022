"""Gathers the evidence on a hanging job from all its hosts into one folder, which `collectives explain` reads.

python -m collectives collect hang/                                   the ranks of this host
python -m collectives collect hang/ --by ssh node0 node1              over ssh; or srun, pdsh, kubectl (names of pods)
python -m collectives collect hang/ --by srun --job 4711 --files '/tmp/nccl_trace_rank_*' --files "$PWD/logs/*.err"
"""

import argparse
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from .probes import OF_A_HOST, OF_A_RANK, RANKS
from .transports import TRANSPORTS, slurm_hosts

HOSTS_AT_ONCE = 16
SHARED = "shared"  # the folder of files on a disk that hosts share
PACK = "tar cf - --ignore-failed-read {files} 2>/dev/null; true"


class HostError(Exception):
    """A host on which commands fail, with the reason."""


class Gathering:
    """The evidence of some hosts, in a new folder.  missing: sentences on evidence that it lacks."""

    def __init__(self, folder: Path, transport: str, files: list[str], limit: float) -> None:
        self.folder, self.missing = folder, []
        self._hosts: dict[tuple[str, bytes], str] = {}  # by a file's name and content, the first that has it
        self._lock = threading.Lock()
        self._transport, self._files, self._limit = TRANSPORTS[transport], files, limit

    def commands(self, host: str) -> list[list[str]]:
        """The commands for a host; PID replaces a rank's process."""
        shell = [
            RANKS,
            *(probe.command.format(pid="PID") for probe in OF_A_RANK),
            *(probe.command for probe in OF_A_HOST),
        ]
        return [self._transport(host, command) for command in [*shell, *self._packing()]]

    def gather(self, host: str) -> None:
        """Gather from one host."""
        try:
            listed = self._run(host, RANKS, reach=True).decode(errors="replace")
            processes = re.findall(r"^(\d+) (\d+) (\d+) (\S*)$", listed, re.MULTILINE)
            ranks: dict[tuple[str, str], str] = {}  # a rank of a job -> its process: what it starts itself is younger
            for rank, pid, _, job in sorted(processes, key=lambda process: int(process[2])):
                ranks.setdefault((rank, job), pid)
            if not ranks:
                self.missing.append(f"{host}: no process with RANK, or a launcher's number, in its environment that this user may read.")
            for (rank, _), pid in ranks.items():
                for probe in OF_A_RANK:  # the process, too, as two jobs on a host may have the same ranks
                    name = f"{host}.rank{rank}.{pid}.{probe.name}.txt"
                    self._keep(host, name, probe.command.format(pid=pid), probe.purpose)
            for probe in OF_A_HOST:
                self._keep(host, f"{host}.{probe.name}.txt", probe.command, probe.purpose)
            for command in self._packing():
                try:
                    self._unpack(host, self._run(host, command))
                except ChildProcessError as error:
                    self.missing.append(f"{host} ({' '.join(self._files)}): {error}.")
        except HostError as error:
            self.missing.append(f"{host}: not reachable: {error}.")

    def _packing(self) -> list[str]:
        return [PACK.format(files=" ".join(self._files))] if self._files else []

    def _run(self, host: str, command: str, reach: bool = False) -> bytes:
        """A command's output.  Raises ChildProcessError if it fails, or HostError if it is the one that must `reach`."""
        failure = HostError if reach else ChildProcessError
        try:
            job = subprocess.run(
                self._transport(host, command), stdin=subprocess.DEVNULL, capture_output=True, timeout=self._limit
            )
        except subprocess.TimeoutExpired:
            raise failure(f"no answer within {self._limit:g} s") from None
        except OSError as error:
            raise HostError(str(error)) from None
        if job.returncode:
            words = job.stderr.decode(errors="replace").strip().splitlines()
            words = [text for text in words if not re.match(r"srun: |pdsh@|command terminated", text)] or words
            raise failure(words[-1][:160].rstrip(".") if words else f"exit code {job.returncode}")
        return job.stdout

    def _keep(self, host: str, name: str, command: str, purpose: str) -> None:
        try:
            output = self._run(host, command)
        except ChildProcessError as error:
            self.missing.append(f"{name} ({purpose}): {error}.")
        else:
            (self.folder / name.replace("/", "_")).write_bytes(output)

    def _unpack(self, host: str, data: bytes) -> None:
        """Write files under a folder of their host's, by their own names; those that several hosts have alike under "shared", once."""
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                files = [member for member in archive if member.isfile()]
                for member in files:
                    name, content = member.name.replace("/", "_").replace("..", "_"), archive.extractfile(member).read()
                    with self._lock:
                        self._write(name, host.replace("/", "_"), content)
        except tarfile.TarError:
            files = []
        if not files:
            self.missing.append(f"{host}: no file is like {' or '.join(self._files)}.")

    def _write(self, name: str, host: str, content: bytes) -> None:
        first = self._hosts.setdefault((name, sha256(content).digest()), host)
        target = self.folder / (host if host == first else SHARED) / name
        target.parent.mkdir(exist_ok=True)
        if host == first:
            target.write_bytes(content)
        elif not target.exists():
            (self.folder / first / name).rename(target)


def _hosts_of(job: str) -> list[str]:
    try:
        return slurm_hosts(job)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"Slurm does not list the hosts of job {job}: {error}. Name them.")


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m collectives collect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new one")
    parser.add_argument("hosts", nargs="*", metavar="HOST", help="hosts, or pods; by default this one")
    parser.add_argument("--by", choices=TRANSPORTS, default="local", help="the way to run commands there (%(default)s)")
    parser.add_argument("--job", metavar="NUMBER", help="Slurm's number of the job; by default this shell's own")
    parser.add_argument(
        "--files", action="append", default=[], metavar="PATTERN", help="logs and dumps on each host, absolute"
    )
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for each command (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    options = parser.parse_intermixed_args()
    if options.by == "local" and options.hosts:
        parser.error("hosts need a way to reach them: --by ssh, srun, pdsh or kubectl")
    if options.by == "srun":
        os.environ["SLURM_JOB_ID"] = job = (
            options.job
            or os.environ.get("SLURM_JOB_ID")
            or parser.error(
                "--by srun runs in the job's own allocation: name it by --job, a number that `squeue --me` shows"
            )
        )
        if not options.hosts:
            options.hosts = _hosts_of(job)
    if options.by != "local" and not options.hosts:
        parser.error(f"--by {options.by} needs the names of hosts")
    hosts = list(dict.fromkeys(options.hosts)) or [socket.gethostname()]
    gathering = Gathering(options.folder, options.by, options.files, options.limit)
    if options.dry_run:
        for host in hosts:
            print(*map(shlex.join, gathering.commands(host)), sep="\n")
        return
    try:
        options.folder.mkdir(parents=True)
    except FileExistsError:
        sys.exit(f"{options.folder} exists, and nothing is overwritten: name a new folder.")
    with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
        for future in [pool.submit(gathering.gather, host) for host in hosts]:
            try:
                future.result()
            except OSError as error:
                gathering.missing.append(f"{error}.")
    summary = ["Missing:", *sorted(gathering.missing)] if gathering.missing else ["Nothing is missing."]
    (options.folder / "missing.txt").write_text("\n".join(summary) + "\n")
    print(*summary, f"python -m collectives explain {shlex.quote(str(options.folder))}", sep="\n")
