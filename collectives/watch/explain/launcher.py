"""Launchers' and schedulers' own lines: how many ranks a job has, on which hosts they run, and which task ended first.

Formats: the command lines of torchrun, srun, sbatch, accelerate, deepspeed and mpirun; Slurm's lists of hosts (node[01-04,07])
and sacct's table; srun's "error: HOST: task N: Exited"; the event "Successfully assigned NAMESPACE/POD to NODE" of Kubernetes.
"""

import re
from dataclasses import dataclass, field
from math import inf
from typing import Iterator

from ...judge.wording.phrases import few
from . import kubernetes
from .host_map import HostMap
from .text import LogLine, seconds_of

_OPTIONS = {
    "nodes": r"--nnodes[= ](\d+)(?![\d:])|--nodes[= ](\d+)\b|(?:srun|sbatch|SBATCH)\b.*? -N ?(\d+)\b|--num[_-]nodes[= ](\d+)",
    "local": r"--nproc[_-]per[_-]node[= ](\d+)|--num_gpus[= ](\d+)",
    "tasks": r"--ntasks-per-node[= ](\d+)",
    "world": r"--num[_-]processes[= ](\d+)|--ntasks[= ](\d+)|(?:srun|mpirun|mpiexec)\b.*? -np? ?(\d+)\b",
}
_OPTION = {name: re.compile(pattern) for name, pattern in _OPTIONS.items()}
_STATED = re.compile(r"\b(?:WORLD_SIZE|world[_ ]size)\b\"?[=: ]+(\d+)")
_LIST = re.compile(r"\b([a-zA-Z][\w.\-]*\[[\d,\-]+\][\w.\-]*)")
_EXITED = re.compile(r"srun: error: (?P<host>[\w.\-]+): tasks? (?P<tasks>[\d,\-]+): (?P<how>.+)")
_ASSIGNED = re.compile(r"Successfully assigned (?:[\w.\-]+/)?(?P<pod>[\w.\-]+) to (?P<node>[\w.\-]+)")
_AGE = re.compile(r"\s*((?:\d+[dhms])+)\s")
_JOB = re.compile(r"\s(?P<nodes>[a-zA-Z][\w.\-]*(?:\[[\d,\-]+\])?)\s+(?P<start>\d{4}-\d\d-\d\dT\S+)\s+(?P<end>\S+)\s+[A-Z_]+\+?(?:\s|$)")
MOST_HOSTS = 4096  # of a list
SLACK_SECONDS = 120.0  # after a job's end, in which its last lines may still come


def expanded(names: str) -> list[str]:
    """The hosts of one of Slurm's lists: n[08-10,12] is n08, n09, n10 and n12."""
    match = re.fullmatch(r"(.*)\[([\d,\-]+)\](.*)", names)
    if not match:
        return [names]
    hosts: list[str] = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or last and not last.isdigit():
            continue
        for number in range(int(first), min(int(last or first), int(first) + MOST_HOSTS) + 1):
            hosts.append(f"{match[1]}{number:0{len(first)}}{match[3]}")
    return hosts


@dataclass
class LaunchLines:
    """The reports of launchers and schedulers, from any number of files."""

    marks = (
        b"--nnodes", b"nproc", b"--nodes", b"srun", b"mpirun", b"mpiexec", b"SBATCH", b"--ntasks", b"--num_", b"--num-", b"WORLD_SIZE", b"world_size", b"world size",
        b"sbatch", b"odelist", b"NodeList", b"NodeName", b"Successfully assigned", b"Job ", b"SLURM_", b"OMP_NUM_THREADS env",
    )  # fmt: skip
    inner = (b" FAILED", b" CANCELLED", b" COMPLETED", b" TIMEOUT", b" NODE_FAIL", b" RUNNING", b" OUT_OF_ME")
    stated: int = 0  # ranks, the most that a line states
    local: int = 0  # ranks on a host
    lists: list[list[str]] = field(default_factory=list)  # of hosts, one of each launch
    jobs: list[tuple[float, float, list[str]]] = field(default_factory=list)  # (start, end, hosts), of Slurm's accounts
    exits: list[tuple[str, int, str]] = field(default_factory=list)  # (host, task, how), in order
    pods: dict[str, tuple[str, float]] = field(default_factory=dict)  # by pod, its latest node, and seconds before it was listed
    _parts: dict[str, int] = field(default_factory=dict)
    _has_nodes: bool = False  # whether sacct's table has a column of hosts

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._parts, self._has_nodes = {}, False

    def read(self, line: LogLine) -> bool:
        text, is_read = line.text, False
        if not any(word in text for word in _WORDS):
            return False
        for name, pattern in _OPTION.items():
            if match := pattern.search(text):
                self._parts[name], is_read = int(next(filter(None, match.groups()))), True
        if stated := _STATED.search(text):
            self.stated, is_read = max(self.stated, int(stated[1])), True
        if is_read:
            self._count()
        if exited := _EXITED.search(text):
            for task in re.findall(r"\d+", exited["tasks"])[:1]:
                self.exits.append((exited["host"], int(task), exited["how"]))
            is_read = True
        if assigned := _ASSIGNED.search(text):
            age = _AGE.match(text)
            self.pods[assigned["pod"]] = assigned["node"], kubernetes.seconds_of(age[1]) if age else 0.0
            is_read = True
        self._has_nodes = self._has_nodes or "NodeList" in text
        if self._has_nodes and (job := _JOB.search(text)):
            self.jobs.append((seconds_of(job["start"]) or -inf, seconds_of(job["end"]) or inf, expanded(job["nodes"])))
            return True
        if re.search(r"\bsrun\b|\bsbatch\b|odelist|NodeList|SLURM_|^Job \d", text):
            for names in _LIST.findall(text):
                self._add(expanded(names))
                is_read = True
        return is_read

    def _add(self, hosts: list[str]) -> None:
        if hosts and hosts not in self.lists:
            self.lists.append(hosts)

    def _count(self) -> None:
        parts = self._parts
        nodes, local = parts.get("nodes", 0), parts.get("local", 0)
        if not local and parts.get("tasks", 0) > 1:
            local = parts["tasks"]
        self.local = max(self.local, local)
        self.stated = max(self.stated, nodes * local, 0 if local else parts.get("world", 0))

    # --- conclusions ----------------------------------------------------------------------

    def hosts_at(self, at: float | None) -> list[str]:
        """The hosts of the launch, or of the job that ran at a time; an empty list where that isn't clear."""
        lists = self.lists or [hosts for start, end, hosts in self.jobs if at is None or start <= at <= end + SLACK_SECONDS]
        return lists[0] if len(lists) == 1 else []

    def hosts(self, world: int, at: float | None) -> dict[int, str]:
        """By rank, its host, where the list of hosts and the number of ranks on each fit the world."""
        if not self.local or not world or world % self.local:
            return {}
        hosts = self.hosts_at(at)
        of = {task: host for host, task, _ in self.exits if task < world // self.local}
        if len(of) == len({host for host, *_ in self.exits}):  # a task for each host starts all of its ranks
            match = {task * self.local + k: host for task, host in of.items() for k in range(self.local)}
        else:
            match = {}
        if len(hosts) * self.local == world:
            match = {k: host for k, host in enumerate(host for host in hosts for _ in range(self.local))} | match
        return match

    def sentences(self, host_map: HostMap) -> Iterator[str]:
        """A sentence on the task that ended first."""
        if len(self.exits) > 1:
            host, task, how = self.exits[0]
            ranks = host_map.ranks_on(host)
            ran = f" ({few(ranks)})" if ranks else ""
            yield f"The first task whose end srun noticed is task {task} on {host}{ran}: {how[0].lower()}{how[1:]}."


# A line with none of these words is of no launcher.
_WORDS = tuple(mark.decode() for mark in (*LaunchLines.marks, *LaunchLines.inner))
