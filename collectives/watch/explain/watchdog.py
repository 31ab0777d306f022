"""The lines of torch's watchdog in a log: per rank and group, the calls that timed out, were queued and have ended.

The patterns match torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, from torch 2.1 on. The lines become dumps
with the two or three calls that each rank is known to have made, so logs are judged as dumps are.
"""

import re
from dataclasses import dataclass, field
from typing import Iterable

from ...format import name_ranks
from ...judge.wording.phrases import alike
from ...log.backends import NCCL
from . import ops
from .dump import Dump, Frame, Launch, Launches, ProcessGroup, Signature, in_torch
from .text import LogLine

_BEGINS = re.compile(r"Watchdog caught collective operation timeout|Exception \(either an error or timeout\)|failure detected by watchdog")
_ENDS = re.compile(r"before timing out|last completed (?:NCCL )?work: -?\d")
_GROUP = re.compile(
    r"\[PG (?:ID )?(?P<id>\d+)(?: PG GUID (?P<guid>[^\s()\]]*)(?:\((?P<desc>[^)]*)\))?)? Rank (?P<rank>\d+)\]"
)
_WORK = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+), "
    r"NumelIn=(?P<into>\d+), NumelOut=(?P<out>\d+), Timeout\(ms\)=(?P<limit>\d+)\) ran for (?P<ran>\d+) milliseconds"
)
_ERROR = re.compile(
    r"\[Rank (?P<rank>\d+)\] Collective WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+), NumelIn=(?P<into>\d+), "
    r"NumelOut=(?P<out>\d+), Timeout\(ms\)=\d+\) raised the following async exception: (?:NCCL error: )?(?P<error>[^,]*)"
)
_FAILED = re.compile(r"detected by watchdog at work(?: sequence id)?: (\d+)")
_QUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d+)")
_STARTED = re.compile(r"last started (?:NCCL )?work: (-?\d+)")
_ENDED = re.compile(r"last completed (?:NCCL )?work: (-?\d+)")
# The desync report of a job with TORCH_NCCL_DESYNC_DEBUG=1
_DESYNC = re.compile(
    r"\[(?P<ranks>[\d, ]+)\] (?:joined but didn't finish collective #(?P<joined>\d+)|finished collective #(?P<finished>\d+), but didn't join)"
)
_NEVER = re.compile(
    r"ranks \[([\d, ]+)\] are the lagging ranks that caused this timeout. They never joined any collectives"
)
_STARTED_OP = re.compile(r"\[([\d, ]+)\] started (\w+)\s*$")
_TIMED_OUT = re.compile(r"- \[(\d+)\] Timeout at collective: (\w+), #(\d+)")
_FRAME = re.compile(r"#\d+ (\S+) from (.+):(\d+)\s*$")
_SIZES = re.compile(r"message truncated ?: receiving \d+ bytes instead of \d+")
DIFFERENT_SIZES = "Usually ranks pass different sizes: the flight recorder's files say in which call"
ONLY_LOG = "The watchdog's lines alone are known, no dump: they number the last calls, and lack the lines of code"
MOST_CHARACTERS = 1000  # of a line that is broken
DEFAULT = ProcessGroup("0", "default_pg", None)


def failing(text: str) -> tuple[str, int, int] | None:
    """(group, number, rank in the group) of the call that the watchdog reports in a line; None for a different line."""
    group, call = _GROUP.search(text), _FAILED.search(text)
    return (group["guid"] or group["id"], int(call[1]), int(group["rank"])) if group and call else None


@dataclass
class Counts:
    """The log's counts for one rank in one group."""

    queued: int = -1
    started: int = -1
    ended: int = -1
    failed: dict[int, Signature] = field(default_factory=dict)  # by number, the calls that timed out
    when: int = 0  # nanoseconds since the epoch, of the first line about it
    last: int = 0  # and of the last one
    since: int = 0  # when the call that timed out was made
    limit: float | None = None  # seconds, after which it did


@dataclass
class Log:
    """The watchdog's reports in one or more files, by rank and group."""

    marks = (b"ProcessGroupNCCL", b"atchdog", b"NCCL work", b"collective #", b"lagging ranks", b"Timeout at collective")
    inner = (b" from ", b"message truncated", b"started ", b"WorkNCCL(", b"milliseconds", b"last enqueued", b"last completed")

    counts: dict[int, dict[ProcessGroup, Counts]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)  # ranks with any line of torch's
    works: dict[tuple[int, int], tuple] = field(default_factory=dict)  # (rank, number) -> signature, ms, stamp
    places: dict[int, Frame] = field(default_factory=dict)  # by rank, of the call that timed out
    cut: int = 0  # lines of the last file that end too early
    _broken: LogLine | None = None  # a line that goes on in the next ones, as in a page that wraps it
    _failing: int | None = None  # the rank whose error NCCL's own words follow
    _stack_of: int | None = None  # the rank whose stack follows
    _rank: int | None = None
    _groups: dict[str, list[ProcessGroup]] = field(default_factory=dict)
    errors: dict[int, list[str]] = field(default_factory=dict)  # by rank, the call in which NCCL failed, and its words
    world: int = 0  # ranks, by what they pass to a gather or a scatter of all

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows.  rank: that its name shows."""
        self._failing = self._stack_of = self._broken = None
        self.cut = 0
        self._rank = rank

    def read(self, line: LogLine) -> bool:
        """Add a line. Returns whether it is the watchdog's."""
        if self._broken and line.at is None and line.rank is None:
            line = self._broken._replace(text=f"{self._broken.text} {line.text.strip()}")
            self.cut -= "Watchdog caught" in line.text
        text = line.text
        self._broken = line if _BEGINS.search(text) and not _ENDS.search(text) and len(text) < MOST_CHARACTERS else None
        if self._stack_of is not None and (frame := _FRAME.search(text)):
            if self._stack_of not in self.places and not in_torch(frame[2]):
                self.places[self._stack_of] = Frame(frame[2], int(frame[3]), frame[1])
            return True
        if self._failing is not None and (sizes := _SIZES.search(text)):
            self.errors[self._failing][1] = f"{sizes[0]}. {DIFFERENT_SIZES}"
        rank = self._rank if line.rank is None else line.rank
        if line.rank is not None:
            self.seen.add(line.rank)
        self._desync(text)
        if "ProcessGroupNCCL" not in text and "atchdog" not in text and "NCCL work" not in text:
            return False
        self._stack_of = rank if "Stack trace of the failed collective:" in text else None
        self.cut += "Watchdog caught collective operation timeout" in text and not _WORK.search(text)
        before = len(self.works), len(self.counts)
        self._take(text, rank, line.at)
        return (len(self.works), len(self.counts)) != before

    def _desync(self, text: str) -> None:
        """Take a line of the desync report, which numbers the collectives of the default group (TraceUtils.h)."""
        if found := _DESYNC.search(text):
            for rank in map(int, re.findall(r"\d+", found["ranks"])):
                counts = self.counts.setdefault(rank, {}).setdefault(DEFAULT, Counts())
                self.seen.add(rank)
                number = int(found["joined"] or found["finished"])
                counts.queued = max(counts.queued, number)
                if found["joined"]:
                    counts.failed.setdefault(number, Signature(ops.UNTOLD))
                    counts.ended = max(counts.ended, number - 1)
                else:
                    counts.ended = max(counts.ended, number)
        elif found := _NEVER.search(text):
            for rank in map(int, re.findall(r"\d+", found[1])):
                self.counts.setdefault(rank, {}).setdefault(DEFAULT, Counts()).ended = 0
                self.seen.add(rank)
        elif found := _STARTED_OP.search(text):
            for rank in map(int, re.findall(r"\d+", found[1])):
                for counts in self.counts.get(rank, {}).values():
                    for number, what in counts.failed.items():
                        if what.op == ops.UNTOLD:
                            counts.failed[number] = what._replace(op=ops.op_of(found[2]))
        elif found := _TIMED_OUT.search(text):
            counts = self.counts.setdefault(int(found[1]), {}).setdefault(DEFAULT, Counts())
            counts.failed[int(found[3])] = Signature(ops.op_of(found[2]))
            counts.queued, counts.ended = max(counts.queued, int(found[3])), max(counts.ended, int(found[3]) - 1)
            self.seen.add(int(found[1]))

    def _take(self, line: str, rank: int | None, at: float | None) -> None:
        stamp = int((at or 0.0) * 1e9)
        if work := _WORK.search(line):
            rank = int(work["rank"]) if rank is None else rank
            what = Signature(ops.op_of(work["op"]), (), ((int(work["into"]),),), ((int(work["out"]),),))
            self.works.setdefault((rank, int(work["seq"])), (what, int(work["ran"]), stamp))
            self.seen.add(rank)
        if error := _ERROR.search(line):
            rank = int(error["rank"]) if rank is None else rank
            self._failing = rank
            self.errors.setdefault(rank, [f"{ops.op_of(error['op'])} #{error['seq']}", error["error"].strip()])
        group = _GROUP.search(line)
        numbers = _FAILED.search(line), _QUEUED.search(line), _STARTED.search(line), _ENDED.search(line)
        if not group or not any(numbers):
            return
        rank = int(group["rank"]) if rank is None else rank
        self.seen.add(rank)
        name = group["guid"] or group["id"]
        key = ProcessGroup(name, group["desc"] or ("default_pg" if name == "0" else ""), None)
        counts = self.counts.setdefault(rank, {}).setdefault(key, Counts(when=stamp))
        counts.last = max(counts.last, stamp)
        failed, queued, started, ended = (int(found[1]) if found else -1 for found in numbers)
        counts.queued, counts.started = max(counts.queued, queued), max(counts.started, started)
        counts.ended = max(counts.ended, ended)
        if failed >= 0:
            counts.failed.setdefault(failed, Signature(ops.UNTOLD))

    def dumps(self, with_members: Iterable[ProcessGroup] = ()) -> list[Dump]:
        """A dump of each rank, with the calls in the log.  with_members: groups, from dumps."""
        self._groups = alike((group, group.name) for group in with_members)
        if not self.counts and not self.works:
            return []
        for (rank, number), (what, ran, stamp) in self.works.items():
            groups = self.counts.setdefault(rank, {})
            counts = next((counts for counts in groups.values() if number in counts.failed), None)
            if counts is None:  # an old log, or one that is cut: the group is unknown
                counts = groups.setdefault(DEFAULT if not groups else next(iter(groups)), Counts(when=stamp))
            counts.failed[number] = what
            group = next(group for group, those_of in groups.items() if those_of is counts)
            if group.desc == DEFAULT.desc or group.name == DEFAULT.name:
                self.world = max(self.world, _members(what))
            counts.since, counts.last, counts.limit = stamp - ran * 1_000_000, max(counts.last, stamp), ran / 1e3
        return [self._dump(rank) for rank in sorted(self.counts)]

    def failures(self) -> list[str]:
        """A sentence for each error that NCCL itself reported, and the ranks on which it did."""
        ranks = alike((rank, tuple(error)) for rank, error in self.errors.items())
        return [
            f"NCCL itself failed on {name_ranks(sorted(of))}, in {call} or a later one: {what.removesuffix('.')}."
            for (call, what), of in ranks.items()
        ]

    def _listed(self, group: ProcessGroup, rank: int) -> ProcessGroup:
        """The group with its members, where dumps list them; apart from groups of this name that the rank isn't in."""
        namesakes = self._groups.get(group.name, [])
        if members_of := [listed for listed in namesakes if rank in (listed.ranks or ())]:
            return members_of[0]
        return group._replace(name=f"{group.name} of rank {rank}") if namesakes else group

    def _dump(self, rank: int) -> Dump:
        launches: list[Launch] = []
        groups = self.counts.get(rank, {})
        for entry, counts in groups.items():
            group = self._listed(entry, rank)
            numbers = {counts.ended: True, **dict.fromkeys(sorted(counts.failed), False)}
            if 0 <= counts.ended < counts.queued and not counts.failed:  # it waits in the next one, however many are queued
                numbers[counts.ended + 1] = False
            if counts.queued > max(numbers):
                numbers[counts.queued] = False
            for number, over in numbers.items():
                if number >= 0:
                    what, failed = counts.failed.get(number, Signature(ops.UNTOLD)), number in counts.failed
                    began = over or number <= counts.started
                    first = counts.since or counts.when
                    made = first - 1 if over else first if failed else counts.when
                    place = self.places.get(rank) if failed else None
                    limit = counts.limit if failed else None
                    launches.append(Launch(0, group, number, what, made, over, began, place=place, limit=limit))
        launches.sort(key=lambda launch: (launch.made, launch.number))
        launches = [launch._replace(index=index) for index, launch in enumerate(launches)]
        return Dump(
            rank, "log", "", NCCL.name, "", {g.name: self._listed(g, rank) for g in groups}, Launches(launches), 0, False, [ONLY_LOG], from_log=True,
            written=max((counts.last for counts in groups.values()), default=0),
        )  # fmt: skip


def _members(what: Signature) -> int:
    """The members of a group, by the elements that one passes to a gather or a scatter of all and gets; 0 if they don't show."""
    if ops.family(what.op) not in ("all_gather", "reduce_scatter") or not what.sizes or not what.results:
        return 0
    small, large = sorted((what.sizes[0][0], what.results[0][0]))
    return large // small if small and large % small == 0 else 0
