"""The answer of NCCL's RAS service, as text or as JSON: its processes, its communicators, and their operation counts.

Format: NCCL's user guide, troubleshooting/ras.rst (2.24 to 2.30), and src/ras/client_support.cc; JSON since 2.28.7. Counts are kept for
each kind of collective since 2.26; send and recv aren't counted. It lists the smaller group, which may be ahead.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator

from ...judge.wording.phrases import few
from . import ops
from .text import LogLine

_GROUP = re.compile(r"#(\d+-\d+) \(([0-9a-f]+)\) (MISMATCH|INCOMPLETE|ERROR|\w+)\s*$")
_DIFFER = re.compile(r"Communicator ranks have different (\w*?) ?operation counts", re.IGNORECASE)
_LAUNCHED = re.compile(r"(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(
    r"Rank (\d+) (?:has (?:launched up to operation (\d+)|(not) launched any operations) )?-- GPU \S+ managed by process \d+ on node (\S+)"
)
_TOTAL = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s*$")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+([\d\-]+)\s+(\d+)\s+(\d+)\s+(\w+)\s+([\w,]+)\s*$")
_MISSING = re.compile(r"Missing communicator data from (\d+) ranks?")
_MISSING_RANKS = re.compile(r"The missing ranks?: ([\d, \-]+)")
_HEADING = re.compile(r"(DEAD|INCOMPLETE|TIMEOUT|Errors|Warnings)$")
_FAILED = re.compile(r"(?:Rank (\d+)|(\d+) ranks) reported (.+?)(?: --|$)")
_ERRORS = (
    "",
    "Unhandled CUDA error",
    "System error",
    "Internal error",
    "Invalid argument",
    "Invalid usage",
    "Remote process error",
)
IN_PROGRESS = 7  # ncclInProgress
_DEAD = re.compile(r"Process (\d+) on node (\S+?),? managing GPUs? ([\d,]+)")


def _numbers(text: str) -> set[int]:
    """The numbers in a list such as 32-39, 48"""
    parts = re.findall(r"(\d+)(?:\s*-\s*(\d+))?", text)
    return {rank for first, last in parts for rank in range(int(first), int(last or first) + 1)}


@dataclass
class Group:
    """A communicator whose ranks differ.  counts: by number of operations launched, the ranks.  listed: those that are named."""

    name: str
    op: str = ""
    size: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    listed: dict[int, str] = field(default_factory=dict)  # rank -> host
    of: dict[int, int] = field(default_factory=dict)  # rank -> count, where RAS gives it
    is_world: bool = True  # whether its ranks are the job's

    def few(self, ranks: Iterable[int]) -> str:
        """'ranks 2 and 3', and of which communicator, unless its ranks are the job's"""
        return few(ranks) + ("" if self.is_world else f" of communicator {self.name}")


@dataclass
class Ras:
    """RAS answers, from any number of files."""

    marks = (b"Job summary",)
    inner = (
        b"RUNNING", b"INIT", b"FINALIZE", b"ABORT", b"INCOMPLETE", b"MISMATCH", b"ERROR", b"DEAD", b"TIMEOUT", b"Errors", b"Warnings",
        b"operation", b"managing GPU", b"managed by", b"missing", b"Missing", b"reported", b"      ",
    )  # fmt: skip
    is_ras: bool = False
    asked: int = 0
    nodes: int = 0
    gpus: int = 0
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # "RUNNING OK" -> communicators
    groups: list[Group] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)  # by a row's number, the ranks of each of its communicators
    dead: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # processes that didn't answer
    failed: dict[str, set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # an error -> the ranks that report it
    missing: int = 0
    absent: set[int] = field(default_factory=set)  # ranks whose data is missing
    hosts: dict[int, str] = field(default_factory=dict)  # rank -> host
    _in: bool = False
    _heading: str = ""
    _launched: int | None = None

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._in = False

    def read(self, line: LogLine) -> bool:
        text = line.text
        if text.strip() == "Job summary":
            self._in = self.is_ras = True
            self.asked += 1
            return True
        if not self._in:
            return False
        if found := _DIFFER.search(text):
            group = self._group("")
            if group.counts:  # of a different operation
                group = self._group(group.name, new=True)
            group.op = ops.op_of(found[1]) if found[1] else ""
        elif found := _GROUP.search(text):
            self._heading = found[3]
            self._group(found[2], new=True, size=self.sizes.get(int(found[1].split("-")[0]), 0))
        elif found := _HEADING.match(text):
            self._heading = found[1]
        elif found := _FAILED.search(text):
            who = f"rank {found[1]}" if found[1] else f"{found[2]} ranks"
            self.failed[found[3].strip()].add(who)
        elif found := _LAUNCHED.search(text):
            self._launched = int(found[2] or 0)
            self._group("").counts[self._launched] = int(found[1])
        elif found := _RANK.search(text):
            group, rank = self._group(""), int(found[1])
            group.listed[rank] = found[4]
            if group.is_world:
                self.hosts[rank] = found[4]
                self.absent |= {rank} if self._heading == "INCOMPLETE" else set()
            if found[2] or found[3]:  # alone with its count
                self._launched = int(found[2] or 0)
                group.counts[self._launched] = 1
            if self._launched is not None:
                group.of[rank] = self._launched
        elif found := _ROW.match(text):
            self.statuses[f"{found[7]} {found[8]}"] += int(found[2])
            self.sizes[int(found[1])] = int(found[5])
        elif found := _TOTAL.match(text):
            self.nodes, self.gpus = int(found[1]), int(found[5])
        elif found := _DEAD.search(text):
            processes = self.dead if self._heading == "DEAD" else self.silent
            processes.append(f"process {found[1]} on {found[2]}, GPU {found[3]}")
        elif found := _MISSING.search(text):
            self.missing += int(found[1])
        elif found := _MISSING_RANKS.search(text):
            if self._group("").is_world:
                self.absent |= _numbers(found[1])
        return True

    def _group(self, name: str, new: bool = False, size: int = 0) -> Group:
        """The communicator that is being read, or a new one."""
        if new or not self.groups:
            size = size or (self.groups[-1].size if self.groups and self.groups[-1].name == name else 0)
            self.groups.append(Group(name, size=size, is_world=not (size and self.gpus and size < self.gpus)))
            self._launched = None
        return self.groups[-1]

    # --- JSON -----------------------------------------------------------------------------

    def read_json(self, data: Any) -> bool:
        """Add an answer in JSON (2.28.7 on). Returns whether it is one."""
        if not (isinstance(data, dict) and "communicators" in data and "nccl_version" in data):
            return False
        self.is_ras = True
        self.asked += 1
        comms = data.get("communicators") or ()
        self.gpus = max([self.gpus, *(int(comm.get("size", 0)) for comm in comms)])
        for comm in comms:
            ranks = comm.get("ranks") or ()
            size = int(comm.get("size", len(ranks)))
            is_world, name = size == self.gpus, str(comm.get("hash", ""))
            of = "" if is_world else f" of communicator {name}"
            self.nodes = max(self.nodes, len({rank.get("host") for rank in ranks}))
            missing = comm.get("missing_ranks") or ()
            self.statuses["RUNNING INCOMPLETE" if missing else "RUNNING OK"] += 1
            self.missing += max(len(missing), int(comm.get("missing_ranks_count", 0)))
            for rank in missing:
                status = rank.get("status") or {}
                who = f"rank {rank['rank']}{of} on {rank.get('host', '?')}"
                self.absent |= {int(rank["rank"])} if is_world else set()
                if status.get("considered_dead"):
                    self.dead.append(who)
                elif status.get("unresponsive"):
                    self.silent.append(who)
            for rank in ranks:
                status = rank.get("status") or {}
                for code in (status.get("init_state", 0), status.get("async_error", 0)):
                    if code not in (0, IN_PROGRESS):
                        error = _ERRORS[code] if code < len(_ERRORS) else f"error {code}"
                        self.failed[error].add(f"rank {rank.get('rank')}{of}")
            by_op: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
            for rank in ranks:
                number = int(rank.get("rank", -1))
                if is_world:
                    self.hosts[number] = str(rank.get("host", ""))
                for op, n in (rank.get("collective_counts") or {}).items():
                    by_op[op][int(n)].append(number)
            for op, counts in by_op.items():
                if len(counts) > 1:
                    group = Group(name, ops.op_of(op), size, {n: len(of) for n, of in counts.items()})
                    hosts = {int(rank.get("rank", -1)): str(rank.get("host", "")) for rank in ranks}
                    group.listed = {
                        rank: hosts[rank] for of in counts.values() for rank in of if len(of) * 2 <= len(ranks)
                    }
                    group.is_world = is_world
                    group.of = {rank: n for n, of in counts.items() for rank in of}
                    self.groups.append(group)
        return True

    # --- conclusions ----------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether all processes answered, with equal counts."""
        named = self.groups or self.dead or self.silent or self.missing or self.failed
        return self.is_ras and not named and set(self.statuses) == {"RUNNING OK"}

    def sentences(self) -> Iterator[str]:
        """A sentence for each group of ranks that is behind or doesn't answer."""
        if self.dead:
            yield f"NCCL's RAS counts as dead: {'; '.join(self.dead[:6])}{'; ...' * (len(self.dead) > 6)}."
        if self.silent:
            shown = "; ".join(self.silent[:6]) + "; ..." * (len(self.silent) > 6)
            yield f"NCCL's RAS got no answer from {shown}."
        for error, ranks in self.failed.items():
            shown = ", ".join(sorted(ranks)[:8]) + ", ..." * (len(ranks) > 8)
            yield f"NCCL's RAS reports an error, {error!r}, on {shown}."
        if self.missing:
            who = f": {few(self.absent)}" if self.absent else ""
            yield f"NCCL's RAS lacks the data of {self.missing:,} rank{'s' * (self.missing != 1)}{who}. Look at their hosts first."
        latest = {}
        for group in self.groups:
            latest.setdefault((group.name, group.op), []).append(group)
        for (_, op), answers in latest.items():
            yield from self._differ(answers[-1], answers[0] if len(answers) > 1 else None)
        if self.is_whole:
            yield (
                f"NCCL's RAS reports {self.gpus or 'all'} GPUs on {self.nodes or 'all'} hosts running, with equal counts: no rank is missing. "
                "Send and recv aren't counted there."
            )

    def _differ(self, group: Group, before: Group | None) -> Iterator[str]:
        if len(group.counts) < 2:
            return
        behind, ahead = min(group.counts), max(group.counts)
        named = {n: sorted(rank for rank, at in group.of.items() if at == n) for n in (behind, ahead)}
        op = f" {group.op}" if group.op else ""

        def who(n: int) -> str:
            count = group.counts[n]
            return group.few(named[n]) if len(named[n]) == count else f"{count:,} rank{'s' * (count != 1)}"

        is_are = "is" if group.counts[behind] == 1 else "are"
        yield (
            f"{who(behind).capitalize()} {is_are} behind: {'it has' if is_are == 'is' else 'they have'} launched{op} up to {behind:,}, "
            f"and {who(ahead)} up to {ahead:,}."
        )
        if group.counts[ahead] < group.counts[behind] and named[ahead]:
            hosts = sorted({group.listed[rank] for rank in named[ahead] if rank in group.listed})
            on = f" (on {', '.join(hosts[:3])})" if hosts else ""
            yield (
                f"RAS lists the smaller group, which is ahead here: {few(named[ahead])}{on} {'is' if len(named[ahead]) == 1 else 'are'} waiting, "
                f"and the {group.counts[behind]:,} that it doesn't list are late."
            )
        elif named[behind]:
            hosts = sorted({group.listed[rank] for rank in named[behind] if rank in group.listed})
            if hosts:
                yield f"Look at {'its host' if len(hosts) == 1 else 'their hosts'}: {', '.join(hosts[:6])}."
        if before is not None:
            same = before.counts == group.counts
            yield (
                "Asked twice, the counts are the same: it hangs."
                if same
                else "Asked twice, the counts have changed: it is moving, perhaps slowly."
            )
