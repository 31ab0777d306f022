"""The answer of NCCL's RAS service, as text or as JSON: its processes, its communicators, and their operation counts.

Format: NCCL's user guide, troubleshooting/ras.rst (2.24 to 2.30), and src/ras/client_support.cc; JSON since 2.28.7. Counts are kept for
each kind of collective since 2.26; send and recv aren't counted. It lists the smaller group, which may be ahead.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Iterator

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
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+([\d\-]+)\s+(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s*$")
_MISSING = re.compile(r"Missing communicator data from (\d+) ranks?")
_MISSING_RANKS = re.compile(r"The missing ranks?: ([\d, \-]+)")
_DEAD = re.compile(r"Process (\d+) on node (\S+?),? managing GPUs? ([\d,]+)")


@dataclass
class Group:
    """A communicator whose ranks differ.  counts: by number of operations launched, the ranks.  listed: those that are named."""

    name: str
    op: str = ""
    size: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    listed: dict[int, str] = field(default_factory=dict)  # rank -> host
    of: dict[int, int] = field(default_factory=dict)  # rank -> count, where RAS gives it


@dataclass
class Ras:
    """RAS answers, from any number of files."""

    marks = (b"Job summary",)
    inner = (
        b"RUNNING",
        b"INCOMPLETE",
        b"MISMATCH",
        b"operation",
        b"managing GPU",
        b"managed by",
        b"missing",
        b"Missing",
        b"      ",
    )
    is_ras: bool = False
    asked: int = 0
    nodes: int = 0
    gpus: int = 0
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # "RUNNING OK" -> communicators
    groups: list[Group] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    missing: int = 0
    absent: set[int] = field(default_factory=set)  # ranks whose data is missing
    hosts: dict[int, str] = field(default_factory=dict)  # rank -> host
    _in: bool = False
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
            self._group("").op = ops.op_of(found[1]) if found[1] else ""
        elif found := _GROUP.search(text):
            self._group(found[1], new=True)
        elif found := _LAUNCHED.search(text):
            self._launched = int(found[2] or 0)
            self._group("").counts[self._launched] = int(found[1])
        elif found := _RANK.search(text):
            group, rank = self._group(""), int(found[1])
            group.listed[rank] = self.hosts[rank] = found[4]
            if found[2] or found[3]:  # alone with its count
                self._launched = int(found[2] or 0)
                group.counts[self._launched] = 1
            if self._launched is not None:
                group.of[rank] = self._launched
        elif found := _ROW.match(text):
            self.statuses[f"{found[7]} {found[8]}"] += int(found[2])
        elif found := _TOTAL.match(text):
            self.nodes, self.gpus = int(found[1]), int(found[5])
        elif found := _DEAD.search(text):
            self.dead.append(f"process {found[1]} on {found[2]}, GPU {found[3]}")
        elif found := _MISSING.search(text):
            self.missing += int(found[1])
        elif found := _MISSING_RANKS.search(text):
            self.absent |= {int(rank) for rank in re.findall(r"\d+", found[1])}
        return True

    def _group(self, name: str, new: bool = False) -> Group:
        if new or not self.groups:
            self.groups.append(Group(name))
            self._launched = None
        return self.groups[-1]

    # --- JSON -----------------------------------------------------------------------------

    def read_json(self, data: Any) -> bool:
        """Add an answer in JSON (2.28.7 on). Returns whether it is one."""
        if not (isinstance(data, dict) and "communicators" in data and "nccl_version" in data):
            return False
        self.is_ras = True
        self.asked += 1
        for comm in data.get("communicators") or ():
            ranks = comm.get("ranks") or ()
            self.gpus = max(self.gpus, int(comm.get("size", len(ranks))))
            self.nodes = max(self.nodes, len({rank.get("host") for rank in ranks}))
            missing = comm.get("missing_ranks") or ()
            self.statuses["INCOMPLETE" if missing else "RUNNING"] += 1
            self.missing += max(len(missing), int(comm.get("missing_ranks_count", 0)))
            for rank in missing:
                self.absent.add(int(rank["rank"]))
                if (rank.get("status") or {}).get("considered_dead"):
                    self.dead.append(f"rank {rank['rank']} on {rank.get('host', '?')}")
            by_op: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
            for rank in ranks:
                number = int(rank.get("rank", -1))
                self.hosts[number] = str(rank.get("host", ""))
                for op, n in (rank.get("collective_counts") or {}).items():
                    by_op[op][int(n)].append(number)
            for op, counts in by_op.items():
                if len(counts) > 1:
                    group = Group(
                        str(comm.get("hash", "")), ops.op_of(op), len(ranks), {n: len(of) for n, of in counts.items()}
                    )
                    group.listed = {
                        rank: self.hosts[rank] for of in counts.values() for rank in of if len(of) * 2 <= len(ranks)
                    }
                    group.of = {rank: n for n, of in counts.items() for rank in of}
                    self.groups.append(group)
        return True

    # --- conclusions ----------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether all processes answered, with equal counts."""
        return self.is_ras and not (self.groups or self.dead or self.missing) and bool(self.statuses)

    def sentences(self) -> Iterator[str]:
        """A sentence for each group of ranks that is behind or doesn't answer."""
        if self.dead:
            yield f"NCCL's RAS counts as dead: {'; '.join(self.dead[:6])}{'; ...' * (len(self.dead) > 6)}."
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
            return few(named[n]) if len(named[n]) == count else f"{count:,} rank{'s' * (count != 1)}"

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
