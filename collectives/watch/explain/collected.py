"""The small files of `collectives collect`: states and waits of processes, zones of clocks, and the evidence that it couldn't get.

Formats: Linux's /proc/PID/status, wchan and stack, and collect's own missing.txt and clock.txt.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Iterator

from ...format import span
from ...judge.wording.phrases import alike, few
from .text import LogLine, listed

_STATE = re.compile(r"State:\s+([A-Z]) \((.+)\)")
_CLOCK = re.compile(r"clock \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ([+\-]\d{4})$")
_OF_A_RANK = re.compile(r"(?P<host>.+)\.rank(?P<rank>\d+)\.\d+\.(?P<kind>\w+)\.txt \((?P<purpose>.+)\): (?P<why>.+)")
_OF_A_HOST = re.compile(r"(?P<host>[^ ]+)\.(?P<kind>\w+)\.txt \((?P<purpose>.+)\): (?P<why>.+)")
STATES = {
    "T": "is stopped, by SIGSTOP or a terminal: `kill -CONT` lets it continue",
    "t": "is stopped by a debugger",
    "D": "is in a wait that nothing interrupts: a file system or a driver",
    "Z": "has ended, and its parent has not noticed",
    "X": "has ended",
}
_WAIT = re.compile(r"(?:wchan|\[<0>\]) (\w+)")
# The owner of a kernel function, by its name in Linux 6: the first that matches.
WAITS = (
    ("NFS", r"nfs|rpc_|xprt_|svc_"), ("Lustre", r"ptlrpc|ldlm_|osc_|cl_|ll_|vvp_"), ("Ceph", r"ceph"), ("FUSE", r"fuse_|request_wait_answer"),
    ("NVIDIA's driver", r"nv_|nvidia|uvm_|_nv\d|os_acquire"), ("a NIC's driver", r"ib_|mlx5|rdma_|efa_"),
    ("a file system or its disk", r"ext4|xfs|btrfs|jbd2|folio_wait|filemap|io_schedule|blk_|wb_wait|sb_start|percpu_rwsem"),
)  # fmt: skip
MOST_MISSING = 8  # lines


@dataclass
class Collected:
    """States by rank, zones by host, and lines on missing evidence."""

    marks = (b"State:\t", b"clock 20", b"Missing:", b"Nothing is missing.", b"wchan ")
    inner = (b".txt (", b": not reachable", b": no process", b": no file", b"): ", b"[<0>] ")
    states: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # letter -> ranks
    waits: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # rank -> the kernel's functions
    zones: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # zone -> files
    missing: list[str] = field(default_factory=list)
    _path: str = ""
    _rank: int | None = None
    _is_missing: bool = False

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows.  rank: that its name shows."""
        self._path, self._rank, self._is_missing = path, rank, False

    def read(self, line: LogLine) -> bool:
        text = line.text
        if text in ("Missing:", "Nothing is missing."):
            self._is_missing = self._path.endswith("missing.txt")
            return self._is_missing
        if self._is_missing:
            self.missing.append(text)
            return True
        if state := _STATE.match(text):
            if self._rank is not None:
                self.states[state[1]].add(self._rank)
            return True
        if wait := _WAIT.match(text):
            if self._rank is not None:
                self.waits[self._rank].append(wait[1])
            return True
        if clock := _CLOCK.match(text):
            self.zones[clock[1]].add(self._path)
            return True
        return False

    @property
    def lacks_gpus(self) -> bool:
        """Whether hosts have no program that asks GPUs, and so, in all likelihood, no GPU."""
        return any("nvidia-smi: not found" in text for text in self.missing)

    def sentences(self) -> Iterator[str]:
        """A sentence for each state in which a process makes no progress."""
        for letter, what in STATES.items():
            states = ((rank, self._wait(rank) if letter == "D" else "") for rank in sorted(self.states.get(letter, ())))
            for wait, ranks in alike(states).items():
                whose = f"Rank {ranks[0]}'s process" if len(ranks) == 1 else f"Each process of {few(ranks)}"
                yield f"{whose} {what} (state {letter}{wait})."

    def _wait(self, rank: int) -> str:
        """', in rpc_wait_bit_killable: NFS'"""
        functions = self.waits.get(rank, [])
        for whose, pattern in WAITS:
            if function := next((name for name in functions if re.match(pattern, name)), ""):
                return f", in {function}: {whose}"
        return f", in {functions[0]}" if functions and functions[0] != "0" else ""

    def gaps(self) -> list[str]:
        """The evidence that could not be collected, the same kind of it in one line."""
        ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
        hosts: dict[tuple[str, str], list[str]] = defaultdict(list)
        lines = []
        for text in self.missing:
            if of_rank := _OF_A_RANK.match(text):
                ranks[of_rank["kind"], of_rank["why"].rstrip(".")].append(int(of_rank["rank"]))
            elif of_host := _OF_A_HOST.match(text):
                hosts[of_host["kind"], of_host["why"].rstrip(".")].append(of_host["host"])
            else:
                lines.append(f"Not collected: {text}")
        lines += [
            f"Not collected: {kind} of rank{'s' * (len(of) > 1)} {span(sorted(set(of)))} ({why})."
            for (kind, why), of in ranks.items()
        ]
        for (kind, why), reported in hosts.items():
            lines.append(f"Not collected: {kind} of {listed(dict.fromkeys(reported))} ({why}).")
        more = len(lines) - MOST_MISSING
        return [*lines[:MOST_MISSING], *([f"({more:,} more are in missing.txt.)"] if more > 0 else [])]
