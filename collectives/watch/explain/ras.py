"""The answer of NCCL's RAS service, as text or as JSON: its processes, its communicators, and their operation counts.

Format: NCCL's user guide, troubleshooting/ras.rst (2.24 to 2.30), and src/ras/client_support.cc; JSON since 2.28.7. Counts are kept for
each kind of collective since 2.26; send and recv aren't counted. It lists the smaller group, which may be ahead.
"""

import os
import re
import socket
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Hashable, Iterable, Iterator
from urllib.parse import urlsplit

from ...judge.wording.phrases import few
from . import ops
from .host_map import is_collected
from .text import LogLine, listed

SCHEME = "ras://"
PORT = 28028
PATIENCE = 30.0  # seconds; the service itself waits 10 s for the job's other processes

_GROUP = re.compile(r"#(\d+-\d+) \(([0-9a-f]+)\) (MISMATCH|INCOMPLETE|ERROR|\w+)\s*$")
_DIFFER = re.compile(r"Communicator ranks have different (\w*?) ?operation counts", re.IGNORECASE)
_LAUNCHED = re.compile(r"(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(
    r"Rank (\d+) (?:has (?:launched up to operation (\d+)|(not) launched any operations) )?-- GPU (\S+) managed by process (\d+) on node (\S+)"
)
_TOTAL = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s*$")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+([\d\-]+)\s+(\d+)\s+(\d+)\s+(\w+)\s+([\w,]+)\s*$")
_MISSING = re.compile(r"Missing communicator data from (\d+) ranks?")
_MISSING_RANKS = re.compile(r"The missing ranks?: ([\d, \-]+)")
_HEADING = re.compile(r"(DEAD|INCOMPLETE|TIMEOUT|Errors|Warnings)$")
_STATUS = re.compile(r"(?:Rank (\d+) has|(\d+) ranks have) status ([A-Z]+)")
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
STATUSES = {
    "INIT": "still starting",
    "FINALIZE": "ending",
    "ABORT": "aborted",
    "NOCOMM": "not a member, or no longer one",
}
_DEAD = re.compile(r"Process (\d+) on node (\S+?),? managing GPUs? ([\d,]+)")


def _numbers(text: str) -> set[int]:
    """The numbers in a list such as 32-39, 48"""
    parts = re.findall(r"(\d+)(?:\s*-\s*(\d+))?", text)
    return {rank for first, last in parts for rank in range(int(first), int(last or first) + 1)}


def ask(address: str) -> bytes:
    """The answer of the service at ras://HOST:PORT: JSON if it has that, else text.  Raises ValueError if no service answers.

    NCCL_RAS_ADDR, if this shell has it too, names what the address leaves open."""
    try:
        where, default = urlsplit(address), urlsplit(f"//{os.environ.get('NCCL_RAS_ADDR', '')}")
        host = default.hostname if where.hostname in (None, "localhost") and not where.port else where.hostname
        with socket.create_connection((host or "localhost", where.port or default.port or PORT), PATIENCE) as service:
            service.sendall(b"SET FORMAT json\n")
            replies = service.makefile("rb")
            if not re.match(rb"OK|ERROR", replies.readline(1024)):  # an error before 2.28.7, which has text alone
                raise ValueError("what answers there isn't NCCL's RAS")
            service.sendall(b"VERBOSE STATUS\n")
            if answer := replies.read():
                return answer
            raise ValueError("it closed the connection without an answer")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no RAS service answers at {address}: {error}. NCCL has it since 2.24, and for programs on the same host alone "
            f"(port {PORT}) unless the job's NCCL_RAS_ADDR names an address: ask on a host of the job, as ras://localhost, with the same variable."
        ) from None


Process = tuple[str, int, int]  # host, number, device


@dataclass
class Group:
    """A communicator whose ranks differ.  counts: by number of operations launched, the ranks.  listed: those that it names."""

    name: str
    op: str = ""
    size: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    listed: dict[int, str] = field(default_factory=dict)  # rank -> host
    of: dict[int, int] = field(default_factory=dict)  # rank -> count, where RAS gives it
    is_world: bool = True  # whether its ranks are the job's
    processes: dict[int, Process] = field(default_factory=dict)  # by rank, from JSON

    def few(self, ranks: Iterable[int]) -> str:
        """'ranks 2 and 3', and of which communicator, unless its ranks are the job's"""
        return few(ranks) + ("" if self.is_world else f" of communicator {self.name}")


@dataclass
class RasAnswer:
    """The answer of RAS at one moment, on one host or on several."""

    statuses: set[str] = field(default_factory=set)  # of communicators, such as "RUNNING OK"
    groups: list[Group] = field(default_factory=list)
    states: dict[Hashable, dict[str, set[str]]] = field(default_factory=dict)  # by communicator and status, its ranks
    dead: dict[str, None] = field(default_factory=dict)
    silent: dict[str, None] = field(default_factory=dict)  # processes that didn't answer
    failed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # an error -> its ranks
    missing: int = 0
    absent: set[int] = field(default_factory=set)  # ranks whose data is missing
    launched: dict[Process, int] = field(default_factory=lambda: defaultdict(int))  # operations, from JSON


@dataclass
class Ras:
    """RAS answers, from any number of files.  apart: the time between two answers, if it is known."""

    marks = (b"Job summary",)
    inner = (
        b"RUNNING", b"INIT", b"FINALIZE", b"ABORT", b"INCOMPLETE", b"MISMATCH", b"ERROR", b"DEAD", b"TIMEOUT", b"Errors", b"Warnings",
        b"operation", b"managing GPU", b"managed by", b"missing", b"Missing", b"reported", b"status", b"      ",
    )  # fmt: skip
    answers: dict[Hashable, RasAnswer] = field(default_factory=dict)  # by moment
    apart: str = ""
    nodes: int = 0
    gpus: int = 0
    sizes: dict[int, int] = field(default_factory=dict)  # by a row's number, the ranks of each of its communicators
    hosts: dict[int, str] = field(default_factory=dict)  # rank -> host
    ranks: dict[Process, int] = field(default_factory=dict)  # of the job
    _path: str = ""
    _in: bool = False
    _heading: str = ""
    _launched: int | None = None
    _status: str = ""

    @property
    def is_ras(self) -> bool:
        return bool(self.answers)

    @property
    def last(self) -> RasAnswer:
        return [*self.answers.values()][-1] if self.answers else RasAnswer()

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._path, self._in = path, False

    def _begin_answer(self, path: str) -> RasAnswer:
        """A new answer. The files that `collect` gathers from several hosts are of one moment."""
        moment = str(Path(path).parent) if is_collected(path) else (path, len(self.answers))
        answer = self.answers.pop(moment, None) or RasAnswer()
        self.answers[moment] = answer
        return answer

    def read(self, line: LogLine) -> bool:
        text = line.text
        if text.strip() == "Job summary":
            self._begin_answer(self._path)
            self._in, self._heading, self._status = True, "", ""
            return True
        if not self._in:
            return False
        answer = self.last
        if match := _DIFFER.search(text):
            group = self._group("")
            if group.counts:  # of a different operation
                group = self._group(group.name, new=True)
            group.op, self._status = ops.op_of(match[1]) if match[1] else "", ""
        elif match := _GROUP.search(text):
            self._heading, self._status = match[3], ""
            self._group(match[2], new=True, size=self.sizes.get(int(match[1].split("-")[0]), 0))
        elif match := _HEADING.match(text):
            self._heading = match[1]
        elif match := _STATUS.search(text):
            self._status = match[3]
            self._add_state(self._group(""), match[3], f"rank {match[1]}" if match[1] else f"{match[2]} ranks")
        elif match := _FAILED.search(text):
            label = f"rank {match[1]}" if match[1] else f"{match[2]} ranks"
            answer.failed[match[3].strip()].add(label)
        elif match := _LAUNCHED.search(text):
            self._launched = int(match[2] or 0)
            self._group("").counts[self._launched] = int(match[1])
        elif match := _RANK.search(text):
            group, rank = self._group(""), int(match[1])
            if group.is_world:
                self.hosts[rank] = match[6]
                self.ranks[match[6], int(match[5]), rank] = rank
                answer.absent |= {rank} if self._heading == "INCOMPLETE" else set()
            if self._status:
                self._add_state(group, self._status, f"rank {rank}")
                return True
            group.listed[rank] = match[6]
            if match[2] or match[3]:  # alone with its count
                self._launched = int(match[2] or 0)
                group.counts[self._launched] = 1
            if self._launched is not None:
                group.of[rank] = self._launched
        elif match := _ROW.match(text):
            answer.statuses.add(f"{match[7]} {match[8]}")
            self.sizes[int(match[1])] = int(match[5])
        elif match := _TOTAL.match(text):
            self.nodes, self.gpus = int(match[1]), int(match[5])
        elif match := _DEAD.search(text):
            processes = answer.dead if self._heading == "DEAD" else answer.silent
            processes[f"process {match[1]} on {match[2]}, GPU {match[3]}"] = None
        elif match := _MISSING.search(text):
            answer.missing = max(answer.missing, int(match[1]))
        elif match := _MISSING_RANKS.search(text):
            if self._group("").is_world:
                answer.absent |= _numbers(match[1])
        return True

    def _group(self, name: str, new: bool = False, size: int = 0) -> Group:
        """The communicator that is being read, or a new one."""
        groups = self.last.groups
        if new or not groups:
            size = size or (groups[-1].size if groups and groups[-1].name == name else 0)
            groups.append(Group(name, size=size, is_world=not (size and self.gpus and size < self.gpus)))
            self._launched = None
        return groups[-1]

    def _add_state(self, group: Group, status: str, label: str) -> None:
        """Take note of the status of a communicator's ranks; if they are listed, of these instead of their number."""
        ranks = self.last.states.setdefault("" if group.is_world else group.name, {}).setdefault(status, set())
        if label.startswith("rank "):
            ranks -= {number for number in ranks if number.endswith(" ranks")}
        ranks.add(label)

    # --- JSON -----------------------------------------------------------------------------

    def read_json(self, data: Any, path: str) -> bool:
        """Add an answer in JSON (2.28.7 on). Returns whether it is one."""
        if not (isinstance(data, dict) and "communicators" in data and "nccl_version" in data):
            return False
        answer = self._begin_answer(path)
        answer.launched.clear()  # of another host, at the same moment
        comms = data.get("communicators") or ()
        self.gpus = max([self.gpus, *(int(comm.get("size", 0)) for comm in comms)])
        for comm in comms:
            ranks = comm.get("ranks") or ()
            group = Group(str(comm.get("hash", "")), size=int(comm.get("size", len(ranks))))
            group.is_world = group.size == self.gpus
            self.nodes = max(self.nodes, len({rank.get("host") for rank in ranks}))
            self._add_missing(answer, group, comm)
            by_op: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
            for rank in ranks:
                number, host = int(rank.get("rank", -1)), str(rank.get("host", ""))
                status = rank.get("status") or {}
                self._add_state(group, _state(status), f"rank {number}")
                for code in (status.get("init_state", 0), status.get("async_error", 0)):
                    if code not in (0, IN_PROGRESS):
                        error = _ERRORS[code] if code < len(_ERRORS) else f"error {code}"
                        answer.failed[error].add(group.few([number]))
                process = group.processes[number] = host, int(rank.get("pid", -1)), int(rank.get("cuda_dev", number))
                if group.is_world:
                    self.hosts[number], self.ranks[process] = host, number
                for op, n in (rank.get("collective_counts") or {}).items():
                    by_op[op][int(n)].append(number)
                    answer.launched[process] += int(n)
            hosts = {int(rank.get("rank", -1)): str(rank.get("host", "")) for rank in ranks}
            for op, counts in by_op.items():
                if len(counts) > 1:
                    minority = {rank: hosts[rank] for of in counts.values() for rank in of if len(of) * 2 <= len(ranks)}
                    of = {rank: n for n, of in counts.items() for rank in of}
                    sizes = {n: len(of) for n, of in counts.items()}
                    answer.groups.append(replace(group, op=ops.op_of(op), counts=sizes, listed=minority, of=of))
        return True

    def _add_missing(self, answer: RasAnswer, group: Group, comm: dict) -> None:
        """Add the ranks of a communicator whose processes don't answer, or have left it."""
        missing = comm.get("missing_ranks") or ()
        departed = [rank for rank in missing if not {"unresponsive", "considered_dead"} & _flags(rank.get("status"))]
        for rank in departed:
            self._add_state(group, "NOCOMM", f"rank {rank['rank']}")
        silent = max(len(missing), int(comm.get("missing_ranks_count", 0))) - len(departed)
        answer.missing = max(answer.missing, silent)
        answer.statuses.add("RUNNING INCOMPLETE" if missing else "RUNNING OK")
        for rank in (rank for rank in missing if rank not in departed):
            label = f"{group.few([int(rank['rank'])])} on {rank.get('host', '?')}"
            answer.absent |= {int(rank["rank"])} if group.is_world else set()
            if "considered_dead" in _flags(rank.get("status")):
                answer.dead[label] = None
            else:
                answer.silent[label] = None

    # --- conclusions ----------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether all processes answered, with equal counts."""
        return self.is_ras and not self._troubles and self.last.statuses == {"RUNNING OK"}

    @property
    def _troubles(self) -> bool:
        """Whether an answer names ranks that differ, or that are missing."""
        last = self.last
        return bool(last.groups or last.dead or last.silent or last.missing or last.failed or [*self._states()])

    def sentences(self) -> Iterator[str]:
        """A sentence for each group of ranks that is behind or doesn't answer, and on the ranks that have moved."""
        if not self.is_ras:
            return
        last, (first, *_) = self.last, self.answers.values()
        if not self._troubles and last.statuses != {"RUNNING OK"}:
            rows = f" after {listed(sorted(last.statuses))}" if last.statuses else ""
            yield f"The answer of NCCL's RAS ends{rows}, before it names ranks: it is cut short."
        if last.dead:
            yield f"NCCL's RAS counts as dead: {listed(last.dead, 6, '; ')}."
        if last.silent:
            yield f"NCCL's RAS got no answer from {listed(last.silent, 6, '; ')}."
        for error, ranks in last.failed.items():
            yield f"NCCL's RAS reports an error, {error!r}, on {listed(sorted(ranks), 8)}."
        yield from self._states()
        if last.missing:
            label = f": {few(last.absent)}" if last.absent else ""
            yield f"NCCL's RAS lacks the data of {last.missing:,} rank{'s' * (last.missing != 1)}{label}. Look at their hosts first."
        moving, still = self._compared(first, last)
        yield from self._moved(moving, still)
        before = {(group.name, group.op): group for group in first.groups} if first is not last else {}
        groups = {(group.name, group.op): group for group in last.groups if len(group.counts) > 1} if still or not moving else {}  # a running job's ranks are a few apart
        for group, twin in [*combinations(groups.values(), 2)]:
            if _are_swapped(group, twin):
                del groups[group.name, group.op], groups[twin.name, twin.op]
                yield _parted(group, twin)
        yield from self._first_late(groups.values())
        for key, group in groups.items():
            yield from self._differ(group, None if last.launched else before.get(key))
        if self.is_whole:
            yield (
                f"NCCL's RAS reports {self.gpus or 'all'} GPUs on {self.nodes or 'all'} hosts running, with equal counts: no rank is missing. "
                "Send and recv aren't counted there."
            )

    def _states(self) -> Iterator[str]:
        """A sentence for each communicator whose ranks have different statuses."""
        for name, states in self.last.states.items():
            if len(states) < 2 and not set(states) & {"ABORT", "NOCOMM"}:
                continue
            odd = sorted((status for status in states if status != "RUNNING"), key=lambda status: len(states[status]))
            of = f" of communicator {name}" if name else ""
            label = "; ".join(
                f"{_listed(states[status])}{of}: {STATUSES.get(status, status)} ({status})" for status in odd
            )
            yield f"NCCL's RAS reports ranks whose communicator isn't running: {label}."

    def _compared(self, first: RasAnswer, last: RasAnswer) -> tuple[list[Process], list[Process]]:
        """The processes that have launched operations between two answers, and those that haven't."""
        parts: tuple[list[Process], list[Process]] = [], []
        for process, n in last.launched.items() if first is not last else ():
            if process in first.launched:
                parts[first.launched[process] == n].append(process)
        return parts

    def _moved(self, moving: list[Process], still: list[Process]) -> Iterator[str]:
        between = f"Between two answers{f', {self.apart} apart' * bool(self.apart)},"
        if moving and still:
            yield f"{between} {self._few(moving)} launched collectives, and {self._few(still)} launched none."
        elif moving:
            yield f"{between} all ranks launched collectives: the job is running, perhaps slowly."
        elif still:
            yield f"{between} no rank launched a collective: it hangs, unless a step takes longer. Send and recv aren't counted."

    def _few(self, processes: list[Process]) -> str:
        if all(process in self.ranks for process in processes):
            return few(sorted(self.ranks[process] for process in processes))
        return f"process{'es' * (len(processes) > 1)} {listed(f'{number} on {host}' for host, number, _ in processes)}"

    def _first_late(self, groups: Iterable[Group]) -> Iterator[str]:
        """A sentence on the ranks that are behind everywhere, where others are behind in one communicator and ahead in a different one."""
        late, ahead = set(), defaultdict(set)  # ranks of the job; those ahead by communicator
        for group in groups:
            ranks = {number: self.ranks.get(process) for number, process in group.processes.items()}
            if not ranks or None in ranks.values():
                return
            late |= {ranks[number] for number, n in group.of.items() if n == min(group.counts)}
            ahead[group.name] |= {ranks[number] for number, n in group.of.items() if n > min(group.counts)}
        first = late.difference(*ahead.values())
        if first and (blocked := late - first):
            names = [name for name, ranks in ahead.items() if ranks & blocked]
            hosts = sorted({self.hosts[rank] for rank in first})
            where = f"communicator{'s' * (len(names) > 1)} {listed(names)}"
            yield f"Start with {few(first)}, on {listed(hosts)}: {few(blocked)}, late as well, {'is' if len(blocked) == 1 else 'are'} ahead in {where}, and waiting there, it seems."

    def _differ(self, group: Group, before: Group | None) -> Iterator[str]:
        behind, ahead = min(group.counts), max(group.counts)
        members = {n: sorted(rank for rank, at in group.of.items() if at == n) for n in (behind, ahead)}
        op = f" {group.op}" if group.op else ""

        def ranks_at(n: int) -> str:
            count = group.counts[n]
            return group.few(members[n]) if len(members[n]) == count else f"{count:,} rank{'s' * (count != 1)}"

        is_are = "is" if group.counts[behind] == 1 else "are"
        yield (
            f"{ranks_at(behind).capitalize()} {is_are} behind: {'it has' if is_are == 'is' else 'they have'} launched{op} up to {behind:,}, "
            f"and {ranks_at(ahead)} up to {ahead:,}."
        )
        if group.counts[ahead] < group.counts[behind] and members[ahead]:
            hosts = sorted({group.listed[rank] for rank in members[ahead] if rank in group.listed})
            on = f" (on {listed(hosts, 3)})" if hosts else ""
            yield (
                f"RAS lists the smaller group, which is ahead here: {few(members[ahead])}{on} {'is' if len(members[ahead]) == 1 else 'are'} waiting, "
                f"and the {group.counts[behind]:,} that it doesn't list are late."
            )
        elif hosts := sorted({group.listed[rank] for rank in members[behind] if rank in group.listed}):
            yield f"Look at {'its host' if len(hosts) == 1 else 'their hosts'}: {listed(hosts, 6)}."
        if before is not None:
            yield (
                "In both answers these counts are the same: it hangs, if they are seconds apart and a step takes less."
                if before.counts == group.counts
                else "Between the two answers these counts have changed: it is moving, perhaps slowly."
            )


def _are_swapped(group: Group, twin: Group) -> bool:
    """Whether the ranks that are behind in an operation are ahead in a different one, by as many."""
    late, early = ({rank for rank in counted.listed if counted.of.get(rank) == n} for counted, n in ((group, min(group.counts)), (twin, max(twin.counts))))
    apart = {max(counted.counts) - min(counted.counts) for counted in (group, twin)}
    return group.name == twin.name and {len(group.counts), len(twin.counts)} == {2} and len(apart) == 1 and set(group.listed) == set(twin.listed) and late == early


def _parted(group: Group, twin: Group) -> str:
    """The sentence on ranks that have launched equally many operations, and different ones."""
    more, less = (group, twin) if any(group.of.get(rank) == max(group.counts) for rank in group.listed) else (twin, group)
    ranks = sorted(rank for rank in more.listed if more.of.get(rank) == max(more.counts))
    n = max(more.counts) - min(more.counts)
    times = "once" if n == 1 else f"{n:,} times"
    return (
        f"{more.few(ranks).capitalize()} launched {more.op} {times} more than the others, and {less.op} {times} less: they call different collectives. "
        "So none of them is late by these counts; look for the call where they parted."
    )


def _state(status: dict) -> str:
    """The status of a rank's communicator, as the text names it."""
    flags = _flags(status)
    if "abort_flag" in flags:
        return "ABORT"
    if flags & {"finalize_called", "destroy_flag"}:
        return "FINALIZE"
    return "RUNNING" if status.get("init_state", 0) == 0 else "INIT"


def _flags(status: dict | None) -> set[str]:
    return {name for name, value in (status or {}).items() if value is True}


def _listed(ranks: set[str]) -> str:
    """'ranks 3 and 7', or '4 ranks' where they aren't listed"""
    numbers = [int(label.split()[1]) for label in ranks if label.startswith("rank ")]
    return few(sorted(numbers)) if numbers else ", ".join(sorted(ranks))
