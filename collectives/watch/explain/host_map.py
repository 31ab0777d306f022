"""Hosts of a job, by the names that its evidence uses, and the ranks that ran on each.

A name is taken from whatever shows it: a file's name next to a kind of evidence or a rank, the kernel's log, a launcher's
prefix, NCCL, RAS, torchrun's summary. A word in a file's name alone, as in job.log, does not count.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable

_ENDINGS = re.compile(r"(?:\.(?:txt|log|out|err|jsonl?|pickle|pkl|gz|html|tail|head|previous|prev))+$")
_COLLECTED = re.compile(r"(.+?)(?:\.rank\d+\.\d+)?\.(?:stack|status|wait|ras|kernel|gpu|fabric|memory|rdma|network|ports|clock)\.txt")
_RANK = re.compile(r"(?<![a-zA-Z0-9])rank[_\-.]?\d+(?![a-zA-Z0-9])")
_OF_A_HOST = {"dmesg", "kernel", "kern", "journal", "journalctl", "syslog", "messages"}
_KINDS = _OF_A_HOST | {
    "fr", "flight", "recorder", "comm", "lib", "trace", "traces", "nccl", "rank", "dump", "dumps", "record",
    "stack", "stacks", "pyspy", "py-spy", "faulthandler", "stdout", "stderr", "log", "logs", "ras", "counters", "perfquery",
    "ibqueryerrors", "ethtool", "nvidia-smi", "smi", "free", "status", "gpu", "network", "rdma", "errors", "error", "attempt", "shell",
}  # fmt: skip
# dmesg-gn0314, pyspy-h100-018-1613930: a kind, a host whose name has a letter and a number, a process
_AFTER_KIND = re.compile(
    rf"(?P<kind>{'|'.join(sorted(_OF_A_HOST))}|py-?spy|dcgmi|nvidia-smi|ethtool|faulthandler)-(?!(?:before|after|run|pass|attempt|job|pid|rank)[\-\d]*$)"
    r"(?P<host>[a-zA-Z][\w\-.]*?\d[\w\-.]*?)(?:-\d{4,})?"
)
_NO_HOST = re.compile(r"(?:step|epoch|iter|pass|pid|run|job|try|train|test|eval|slurm|part|shard|round|time|v)?[\-\d]*")
_READING = re.compile(r"(.*\d.*)-\d")  # of a host whose name has a number itself
_ADDRESS = re.compile(r"[\d.]+|[0-9a-f:]*:[0-9a-f:]*")
MOST_ON_A_HOST = 16  # ranks


def is_collected(path: str) -> bool:
    """Whether a file has a name that `collect` gives."""
    return bool(_COLLECTED.fullmatch(Path(path).name))


def host_in(path: str) -> str:
    """The name in a file's name that may be a host's: "gpu-a" for "stack_gpu-a_rank3.txt", or ""."""
    return _shape(Path(path).name)[0]


def _shape(name: str) -> tuple[str, str, bool]:
    """The part of a file's name that may be a host, the kinds of evidence next to it, and whether it is certainly a host."""
    if gathered := _COLLECTED.fullmatch(name):
        return gathered[1], "collect", True
    plain = _RANK.sub("rank", _ENDINGS.sub("", name))
    if after_kind := _AFTER_KIND.fullmatch(plain):
        return after_kind["host"], after_kind["kind"], True
    parts = re.split(r"([._])", plain)
    words, left = parts[::2], []
    for k, word in enumerate(words):
        if word and word not in _KINDS and not _NO_HOST.fullmatch(word):
            left.append(k)
    in_row = left and left[-1] - left[0] == len(left) - 1
    if not in_row or "_" in parts[2 * left[0] + 1 : 2 * left[-1] : 2]:  # a host's name has dots, and no underscores
        return "", "", False
    host = "".join(parts[2 * left[0] : 2 * left[-1] + 1])
    kinds = [word for k, word in enumerate(words) if k not in left and word in _KINDS]
    is_sure = bool(_OF_A_HOST & set(kinds)) or bool(kinds) and bool(re.search(r"[a-zA-Z].*\d", host))
    return host, "_".join(kinds), is_sure


@dataclass
class HostMap:
    """The hosts, and where ranks ran.  by_order: ranks whose host follows from the order of the others alone."""

    files: Iterable[str] = ()
    hosts: set[str] = field(default_factory=set)
    of_rank: dict[int, str] = field(default_factory=dict)
    by_order: set[int] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)  # by address
    pods: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by node
    _ranks_of: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # by file
    _processes: dict[str, set] = field(default_factory=lambda: defaultdict(set))  # numbers, or ranks, by file
    _host_of: dict[str, str] = field(default_factory=dict)  # by the name of a reading

    def __post_init__(self) -> None:
        alike: dict[str, set[str]] = defaultdict(set)
        for name in map(lambda path: Path(path).name, self.files):
            host, shape, is_sure = _shape(name)
            if is_sure:
                self.hosts.add(host)
            elif host and shape:
                alike[shape].add(host)
        self.hosts |= {host for hosts in alike.values() if len(hosts) > 1 for host in hosts}

    @staticmethod
    def is_address(name: str) -> bool:
        return bool(_ADDRESS.fullmatch(name))

    def ranks_on(self, host: str) -> list[int]:
        """The ranks that ran on a host, or in its pods."""
        names = {host} | self.pods.get(host, set())
        return sorted(rank for rank, name in self.of_rank.items() if name in names)

    @staticmethod
    def is_kernel_log(path: str) -> bool:
        """Whether a file's name shows that it is the log of a host's kernel."""
        name = Path(path).name
        return bool(re.search(rf"(?<![a-z])({'|'.join(_OF_A_HOST)})(?![a-z])", name))

    def of_file(self, path: str) -> str:
        """The host that a file is of; "" if its name shows none that is known."""
        names = (self._host_of.get(name, name) for name in (host_in(path), Path(path).parent.name))
        return next((name for name in names if name in self.hosts), "")

    def take(self, path: str, ranks: Iterable[int], processes: Iterable[int] = ()) -> None:
        """Take note of the ranks that write in a file, and of the numbers of processes in it."""
        self._ranks_of[path] |= set(ranks)
        self._processes[path] |= {*processes, *(f"rank {rank}" for rank in ranks)}

    def settle(self, *sources: dict[int, str], listed: dict[int, str] | None = None) -> None:
        """Find each rank's host.  sources: by rank, the host that evidence names for it, the most certain first.

        listed: by the order of a launcher's list, as launchers number ranks."""
        self.hosts |= set((listed or {}).values())
        self.hosts |= {host for hosts in sources for host in hosts.values() if not _ADDRESS.fullmatch(host)}
        self._learn_from_ranks()
        self._fold_readings()
        hosts_of: dict[int, set[str]] = defaultdict(set)
        for path, ranks in self._ranks_of.items():
            if host := self.of_file(path):
                for rank in ranks:
                    hosts_of[rank].add(host)
        of_files = {rank: min(hosts) for rank, hosts in hosts_of.items() if len(hosts) == 1}
        for hosts in (*sources, of_files):
            for rank, host in hosts.items():
                before = self.of_rank.get(rank, "")
                if host and (not before or _ADDRESS.fullmatch(before)):
                    self.of_rank[rank] = host
        pods = {pod for pods in self.pods.values() for pod in pods}
        if not any(self.of_rank.get(rank, host) not in (host, *pods) for rank, host in (listed or {}).items()):
            self.by_order |= {rank for rank in listed or {} if rank not in self.of_rank}
            self.of_rank = (listed or {}) | self.of_rank
        self._by_blocks()

    def _learn_from_ranks(self) -> None:
        """Files named alike, alpha.log and beta.log, of which each rank writes in one: each is a host's."""
        writers = {
            host_in(path): ranks for path, ranks in self._ranks_of.items() if ranks and not _shape(Path(path).name)[1]
        }
        sets = [ranks for name, ranks in writers.items() if name]
        if len(sets) > 1 and sum(map(len, sets)) == len(set().union(*sets)):
            self.hosts |= {name for name in writers if name}

    def _fold_readings(self) -> None:
        """Files c2-1 and c2-2 are two readings of one host, c2, if that is a host, or if the same processes are in both."""
        processes: dict[str, set] = defaultdict(set)
        for path, seen in self._processes.items():
            processes[host_in(path)] |= seen
        readings: dict[str, set[str]] = defaultdict(set)
        for name in self.hosts:
            if number := _READING.fullmatch(name):
                readings[number[1]].add(name)
        for host, names in readings.items():
            alike = [processes.pop(name) for name in names if processes[name]]
            common = set.intersection(*alike) if len(alike) > 1 else set()
            elsewhere = set().union(*processes.values())  # containers may number their processes alike
            processes |= {name: common for name in names}
            is_rank = any(isinstance(process, str) for process in common)
            if host in self.hosts or is_rank or common and elsewhere and not common & elsewhere:
                self._host_of |= dict.fromkeys(names, host)
                self.hosts = self.hosts - names | {host}

    def _by_blocks(self) -> None:
        """Fill in hosts of ranks where all others are in blocks, as launchers number them."""
        ranks: dict[str, set[int]] = defaultdict(set)
        for rank, host in self.of_rank.items():
            ranks[host].add(rank)
        if len(ranks) < 2:
            return
        for size in range(max(map(len, ranks.values())), MOST_ON_A_HOST + 1):
            blocks = {host: {rank // size for rank in numbers} for host, numbers in ranks.items()}
            starts = [min(numbers) for numbers in blocks.values()]
            if all(len(numbers) == 1 for numbers in blocks.values()) and len(set(starts)) == len(starts):
                for host, start in zip(blocks, starts):
                    for rank in range(start * size, (start + 1) * size):
                        if rank not in self.of_rank:
                            self.of_rank[rank] = host
                            self.by_order.add(rank)
                return
