"""Finds the evidence in folders and files, by its content: dumps, traces, stacks, logs and reports.

Files that are one piece of data (a pickle, JSON) are read whole; text is read line by line, each line normalized once
and given to the readers whose marks it has.
"""

import codecs
import gc
import gzip
import io
import os
import re
import stat
import sys
import time
import zlib
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Callable, Iterable, Iterator

from ...format import duration
from . import debug_server, dump, kubernetes, plain, ras, traces
from .collected import Collected
from .counters import PortCounters
from .dump import Dump
from .failures import Failures, shortened
from .fr_tables import FlightTables
from .host_map import HostMap, is_collected
from .hosts import LEAST_PID, HostEvents
from .launcher import LaunchLines
from .measured import Measurements
from .nccl_log import NcclLog
from .plain import Unusable
from .ras import Ras
from .runs import EVER, RunMoment, RunSpan, place
from .stacks import Stacks, rank_in
from .text import BLOCK, LogLine, Text, dated, line, listed, stamp, unpacked
from .traces import Trace
from .dumped_job import DumpedJob
from .watchdog import Log, failing

STDIN = "-"
SECONDS = 10.0  # between the two times that a running job is asked
FIRST_TIME = 10**18  # nanoseconds since the epoch, in 2001: a smaller time is an order alone
HEAD = 1 << 16  # bytes by which a file's kind is known
MOST_BYTES = 4 << 30  # of a file that is read as a whole
_COLORED = re.compile(rb"(?:\s|OK|\x1b\[[\d;]*m)*\x1b\[[\d;]*m\s*[{\[]\s*(?:\x1b|[\"{\[])")  # JSON
_PACKED = {b"PK\x03\x04": "zip, or a checkpoint", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
MOST_CUT = 3  # kernel logs that end within a line, that are quoted
MOST_FILES = 30  # of which nothing is used, that are named


@dataclass
class Evidence:
    """Everything that files hold on a job.  notes: sentences on files that were left out, or that don't fit together."""

    dumps: list[Dump] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    watchdog: Log = field(default_factory=Log)
    failures: Failures = field(default_factory=Failures)
    hosts: HostEvents = field(default_factory=HostEvents)
    ras: Ras = field(default_factory=Ras)
    counters: PortCounters = field(default_factory=PortCounters)
    tables: FlightTables = field(default_factory=FlightTables)
    launches: LaunchLines = field(default_factory=LaunchLines)
    collected: Collected = field(default_factory=Collected)
    stacks: Stacks = field(default_factory=Stacks)
    nccl: NcclLog = field(default_factory=NcclLog)
    measured: Measurements = field(default_factory=Measurements)
    prefixes: dict[int, str] = field(default_factory=dict)  # by rank, the host that a line's prefix names
    processes: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # by number, ranks
    host_map: HostMap = field(default_factory=HostMap)
    clocks: dict[str, float] = field(default_factory=dict)  # by file, the time of the last line on how the job ended
    zones: str = ""  # a sentence on files whose clocks are hours apart
    moments: list[RunMoment] = field(default_factory=list)  # that separate runs
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)  # by file, the times of its first and last line
    steps: dict[str, int] = field(default_factory=dict)  # by file, the last step of training in it
    stepped: float = 0.0  # the time at which the job had ended the last step but one
    undated: list[str] = field(default_factory=list)  # files without a time, which may be of any run
    near: float | None = None  # a time of the job, that gives a year to stamps without it
    window: RunSpan = EVER  # the run that is explained
    runs: list[RunSpan] = field(default_factory=list)  # all of them, if there are several
    moved: list[str] = field(default_factory=list)  # sentences on a job that was asked twice
    records: list[Path] = field(default_factory=list)  # folders that collectives.watch has written
    said: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)  # sentences on dumps of several runs, or of one rank
    quiet: dict[str, str] = field(default_factory=dict)  # kernel logs without an event, with the last line where nothing ends it
    others: list[str] = field(default_factory=list)  # files that hold nothing known

    @property
    def job(self) -> DumpedJob:
        """The dumps, put together."""
        return DumpedJob({record.rank: record for record in self.dumps}, size=self.world, seen=self._shown_ranks)

    @property
    def _shown_ranks(self) -> int:
        return 1 + max([*self.watchdog.seen, *(end.rank or 0 for end in self.failures.ends)], default=-1)

    @property
    def world(self) -> int:
        """The number of ranks that a file reports; 0 for none."""
        sizes = (self.failures.world, self.ras.gpus, self.launches.stated, self.watchdog.world, self.nccl.ranks)
        return max((size for size in sizes if size >= max(2, self._shown_ranks)), default=0)

    @property
    def known_ranks(self) -> int:
        return self.world or self._shown_ranks

    @property
    def is_empty(self) -> bool:
        return not (
            self.dumps or self.traces or self.nccl.processes or self.nccl.versions or self.measured.rows or self.measured.faults
            or self.records or self.moved or self.tells_of_ends
        )  # fmt: skip

    @property
    def tells_of_ends(self) -> bool:
        """Whether there is evidence on how processes ended, or where they are, besides calls."""
        failures = self.failures
        met = failures.joined or failures.unreached or failures.barrier or failures.parts
        reports = (
            self.hosts.events or self.ras.is_ras or self.stacks.all or self.counters.ports or self.collected.states
        )
        return bool(failures.ends or failures.follow or failures.unended or met or reports)


def gather(paths: Iterable[str | Path], window: RunSpan = EVER, before: "Evidence | None" = None) -> Evidence:
    """All that these files and folders hold. Raises FileNotFoundError for a path that is not there.

    window: a run, of which alone the evidence is wanted.  before: all evidence, of all runs."""
    shared, evidence = {}, Evidence(window=window)
    files = set(_files(paths, evidence.said))
    evidence.host_map = HostMap([str(file) for file in sorted(files)])
    if before:
        evidence.runs, evidence.spans, evidence.near = before.runs, before.spans, before.near
    else:
        evidence.near = _year(files)
    evidence.records = sorted({file.parent for file in files if _is_record(file.parent)})
    with _no_cycles():
        for file in sorted((file for file in files if file.parent not in evidence.records), key=_in_order):
            with _noted(str(file), evidence):
                if not _take(file, evidence, shared) and file.name not in evidence.quiet:
                    evidence.others.append(file.name)
        for path in map(str, paths):
            if _is_address(path):
                (_ask_ras if path.startswith(ras.SCHEME) else _ask)(path, evidence, shared)
            elif is_stream(path):
                name = "standard input" if path == STDIN else path
                with _noted(name, evidence), nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as stream:
                    if not _take_source(_Source(stream), name, evidence, shared):
                        evidence.others.append(name)
    if before:
        evidence.dumps = [record for record in evidence.dumps if window.holds(_last_made(record) / 1e9)]
        evidence.hosts.events = [event for event in evidence.hosts.events if event.at is None or window.holds(event.at)]
        if not evidence.launches.stated:  # a line without a time, in a different file
            evidence.launches.stated, evidence.launches.local = before.launches.stated, before.launches.local
    evidence.failures.settle(window)
    ends = {*evidence.failures.summaries, *((end.at, end.rank) for end in evidence.failures.ends)}
    evidence.moments += [RunMoment(at, "end", rank) for at, rank in ends if at is not None]
    evidence.moments += filter(None, map(_last_call, evidence.dumps))
    _settle_hosts(evidence)
    _check_clocks(evidence)
    evidence.traces.sort(key=lambda trace: trace.rank)
    evidence.dumps = _one_of_each_rank(evidence)
    _check_together(evidence)
    groups = {group for record in evidence.dumps for group in record.groups.values() if group.ranks}
    for records in (evidence.tables.dumps(), evidence.watchdog.dumps(groups)):
        dumped = {record.rank for record in evidence.dumps}
        evidence.dumps += [record for record in records if record.rank not in dumped]
    evidence.dumps.sort(key=lambda record: record.rank)
    if evidence.quiet:
        whose = list(dict.fromkeys(evidence.host_map.of_file(name) or name for name in evidence.quiet))
        evidence.said.append(f"No known fault of a GPU, a link or memory is in the kernel's log of {listed(whose, 6)}.")
        cut = {evidence.host_map.of_file(name) or name: last for name, last in evidence.quiet.items() if last}
        evidence.said += [f"The log of {host} ends within a line, which may be a fault's: '{shortened(last, 80)}'." for host, last in [*cut.items()][:MOST_CUT]]
        evidence.said += [f"({len(cut) - MOST_CUT:,} more end so.)"] * (len(cut) > MOST_CUT)
    plain, gathered = {}, Counter()
    for name in evidence.others:
        if is_collected(name):
            gathered[name.split(".")[-2]] += 1
        else:
            plain[name] = None
    if gathered:
        kinds = ", ".join(f"{kind} ({n:,})" for kind, n in sorted(gathered.items()))
        evidence.said.append(f"Nothing is recognized in these of `collect`'s files: {kinds}.")
    if plain:
        evidence.said.append(f"Nothing is recognized in {listed(plain, MOST_FILES)}.")
    return evidence


def _settle_hosts(evidence: Evidence) -> None:
    """Find where ranks ran, and give events the host that their file is of."""
    for record in evidence.dumps:
        evidence.host_map.take(record.path, {record.rank})
    for stack in evidence.stacks.all:
        evidence.host_map.take(stack.path, (), () if stack.pid is None else (stack.pid,))
    numbers = [(stack.pid, stack.rank) for stack in evidence.stacks.all if stack.is_rank]
    numbers += [(end.pid, end.rank) for end in evidence.failures.ends] + [*evidence.nccl.numbers]
    numbers += [(number, rank) for (_, number, _), rank in evidence.ras.ranks.items()]
    for number, rank in numbers:
        if number is not None and rank is not None:
            evidence.processes[number].add(rank)
    evidence.host_map.hosts |= {*filter(None, (event.host for event in evidence.hosts.events)), *evidence.nccl.hosts}
    ends = {end.rank: end.host for end in evidence.failures.ends if end.rank is not None and end.host}
    for pod, (node, _) in evidence.launches.pods.items():
        evidence.host_map.pods[node].add(pod)
    listed_hosts = evidence.launches.hosts(evidence.world, evidence.window.last)
    evidence.host_map.settle(ends, evidence.prefixes, evidence.nccl.host_of, evidence.ras.hosts, listed=listed_hosts)
    for end in evidence.failures.ends:
        end.host = end.host or evidence.host_map.of_file(end.file) if end.rank is None else end.host
    _name_stacks(evidence)
    evidence.hosts.settle(evidence.host_map, evidence.processes)
    evidence.nccl.address_of = evidence.host_map.names | evidence.nccl.address_of
    evidence.counters.settle(evidence.host_map)


def _name_stacks(evidence: Evidence) -> None:
    """Give stacks whose files name no rank the rank of their process, where other evidence numbers it on the same host or at an address."""
    hosts, host_map = defaultdict(set), evidence.host_map
    unnamed = [stack for stack in evidence.stacks.all if stack.rank is None and stack.pid is not None and stack.is_rank]
    for stack in unnamed:
        hosts[stack.pid].add(host_map.of_file(stack.path))
    for stack in unnamed:
        host, where = host_map.of_file(stack.path), {rank: host_map.of_rank.get(rank, "") for rank in evidence.processes.get(stack.pid, ())}
        ranks = [rank for rank in where if host and where[rank] == host]
        if not ranks and len(hosts[stack.pid]) == 1 and stack.pid >= LEAST_PID:
            ranks = [rank for rank in where if where[rank] == "" or host == "" or host_map.is_address(where[rank])]
        stack.rank = ranks[0] if len(ranks) == 1 else None


@contextmanager
def _no_cycles() -> Iterator[None]:
    """Turn off the search for cycles: it would take most of the time, and millions of plain values have no garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _noted(name: str, evidence: Evidence) -> Iterator[None]:
    """Add a sentence on what can't be read."""
    try:
        yield
    except Unusable as error:
        evidence.said.append(f"{name} {error}.")
    except OSError as error:
        evidence.said.append(_unread(error, name))


def is_stream(path: str | Path) -> bool:
    """Whether a path can be read once alone: standard input, or a pipe, as a shell's <(...) is."""
    with suppress(OSError):
        return str(path) == STDIN or stat.S_ISFIFO(os.stat(path).st_mode)
    return False


def _files(paths: Iterable[str | Path], notes: list[str]) -> Iterator[Path]:
    """The files under these paths, and, in sentences, what can't be read there."""
    for path in map(str, paths):
        if is_stream(path) or _is_address(path):
            continue
        if not os.path.isdir(path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                raise FileNotFoundError(f"there is no {path}.") from None
            except OSError:
                pass  # it is noted when it is read
            yield Path(path)
            continue
        before = len(notes)
        files = [Path(folder, name) for folder, _, names in os.walk(path, onerror=lambda error: notes.append(_unread(error))) for name in names]
        yield from (file for file in files if os.path.isfile(file) and not file.name.startswith("."))
        notes += [f"{file} was not read: it isn't a file, or can't be reached." for file in files if not os.path.isfile(file)]
        if not files and len(notes) == before:
            notes.append(f"{path} is an empty folder.")


def _unread(error: OSError, name: str = "") -> str:
    return f"{name or error.filename} could not be read: {error.strerror or error}."


def _year(files: Iterable[Path]) -> float | None:
    """A time in the middle of those that files give with a year, from their beginnings and ends."""
    times = []
    for path in files:
        with suppress(OSError), path.open("rb") as file:
            head = file.read(HEAD)
            if head[:1] in (b"\x80", b"\x1f") or b"\0" in head[:4096]:
                continue
            times += dated(head)
            file.seek(max(HEAD, file.seek(0, io.SEEK_END) - HEAD))
            times += dated(file.read(HEAD))
    return median(times) if times else None


def _is_record(folder: Path) -> bool:
    """Whether a folder is a job's record: it has collectives.watch's files, whatever else is in it."""
    return all(os.path.isfile(folder / name) for name in ("about.json", "ranks.jsonl"))


def _in_order(file: Path) -> tuple:
    """rank_2 before rank_10"""
    rank = dump.rank_of(str(file))
    return str(file.parent), re.sub(r"\d+", "", file.name), -1 if rank is None else rank, file.name


def _is_address(path: str) -> bool:
    return path.startswith(("http://", "https://", ras.SCHEME))


def _twice(ask: Callable[[str], Any], address: str, evidence: Evidence) -> list:
    """A running job's answers, some seconds apart; the first alone if there is no second."""
    answers = [ask(address)]
    time.sleep(SECONDS)
    try:
        answers.append(ask(address))
    except ValueError as error:
        evidence.said.append(f"It answered once, and not again {duration(SECONDS)} later: {error}")
    return answers


def _ask(address: str, evidence: Evidence, shared: dict) -> None:
    """Add the answers of a job's debug server."""
    answers = _twice(debug_server.ask, address, evidence)
    for answer in answers:
        _add_stacks(answer, address, evidence)
    _add_records(answers[-1], address, evidence, shared)
    evidence.moved = debug_server.moved(*answers, seconds=SECONDS) if len(answers) > 1 else []


def _ask_ras(address: str, evidence: Evidence, shared: dict) -> None:
    """Add the answers of NCCL's RAS service."""
    evidence.ras.apart = duration(SECONDS)
    for answer in _twice(ras.ask, address, evidence):
        if not _take_source(_Source(io.BytesIO(answer)), address, evidence, shared):
            raise ValueError(
                f"the answer of {address} isn't one of NCCL's RAS: {answer[:80].decode(errors='replace')!r}."
            )


def _add_stacks(answer: debug_server.Pages, name: str, evidence: Evidence) -> None:
    for rank, text in answer.stacks.items():
        evidence.stacks.begin(name, rank)
        for record in text.splitlines():
            evidence.stacks.read(line(record))


def _add_records(answer: debug_server.Pages, name: str, evidence: Evidence, shared: dict) -> None:
    for rank, record in answer.records.items():
        evidence.dumps.append(dump.read(record, f"{name}, rank {rank}", shared))


# --- one file -----------------------------------------------------------------------------


def _take(file: Path, evidence: Evidence, shared: dict) -> bool:
    """Read a file, whatever it is. Returns whether its content is of a known kind."""
    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            return _take_source(_Source(gzip.GzipFile(fileobj=raw) if packed else raw), str(file), evidence, shared)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Unusable(f"is compressed and cut short or damaged ({error})") from None


class _Source:
    """A stream whose first bytes are known before they are read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.head = stream, stream.read(HEAD)
        self._left = self.head

    def read(self, n: int) -> bytes:
        left, self._left = self._left, b""
        return left + self._stream.read(max(0, n - len(left)))

    def whole(self) -> bytearray:
        """All that it holds. Raises Unusable for more than any record has: a compressed file may hold anything."""
        data = bytearray()
        while block := self.read(BLOCK):
            data += block
            if len(data) > MOST_BYTES:
                raise Unusable(f"is larger than {MOST_BYTES >> 30} GiB")
        return data


def _take_source(source: _Source, path: str, evidence: Evidence, shared: dict) -> bool:
    """Read what a file, or standard input, has."""
    head = source.head
    if not head.strip():
        raise Unusable("is empty: its process was ended before it wrote anything")
    if head.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _COLORED.match(head):  # a shell of Windows; jq -C
        code = "utf-16" if head[:1] in b"\xff\xfe" else "utf-8-sig"
        plain_text = re.sub(r"\x1b\[[\d;]*m", "", source.whole().decode(code, "replace")).encode()
        return _take_source(_Source(io.BytesIO(plain_text)), path, evidence, shared)
    if head[:1] == b"\x80":
        content = plain.unpickled(source.whole())
        if not dump.is_dump(content):
            raise Unusable("is a pickle but not a flight-recorder dump: it has no entries")
        evidence.dumps.append(dump.read(content, path, shared))
        return True
    if b"\0" in head[:4096]:  # whatever its name
        if archive := next((kind for start, kind in _PACKED.items() if head.startswith(start)), "tar" * (head[257:262] == b"ustar")):
            raise Unusable(f"is packed ({archive}): unpack it, and give what is in it")
        evidence.others.append(f"{Path(path).name} (binary)")
        return True
    if re.match(rb"\s*<(!doctype|html)", head, re.IGNORECASE):
        return _take_page(source.whole().decode(errors="replace"), path, evidence, shared)
    answered = re.match(rb"(\s*OK\s)*\s*", head)  # RAS answers "OK" to SET FORMAT json before the JSON itself
    start = answered.end() if answered else 0
    if re.match(rb"\{|\[\s*[{\[]", head[start:]) and not _is_lines_of_json(head):
        return _take_json(path, source.whole()[start:], evidence, shared)
    return _read_text(source, path, evidence)


def _take_page(text: str, name: str, evidence: Evidence, shared: dict) -> bool:
    """Read a page of the debug server that somebody saved."""
    answer = debug_server.Pages()
    debug_server.add(debug_server.pages(text)[0], answer)
    _add_stacks(answer, name, evidence)
    _add_records(answer, name, evidence, shared)
    tables = debug_server.text_of_tables(text)
    return _read_text(io.BytesIO(tables.encode()), name, evidence) or bool(answer.stacks or answer.records)


def _is_lines_of_json(head: bytes) -> bool:
    """Whether each line is a log shipper's record."""
    first, newline, _ = head.lstrip().partition(b"\n")
    try:
        return bool(newline or len(head) < 1 << 16) and unpacked(plain.unjsoned(first)) is not None
    except Unusable:
        return False


def _read_text(file: Any, path: str, evidence: Evidence) -> bool:
    """Give the lines of a text to the readers that know them. Returns whether any did."""
    rank = rank_in(path)
    readers: list[Any] = [
        evidence.watchdog, evidence.nccl, evidence.measured, evidence.failures, evidence.hosts, evidence.ras, evidence.stacks, evidence.counters,
        evidence.collected, evidence.tables, evidence.launches,
    ]  # fmt: skip
    for reader in readers:
        reader.begin(path, rank)
    head = file.head if isinstance(file, _Source) else b""
    times, evidence.hosts.listed_at = dated(head), kubernetes.listed_at(head)
    text = Text(file, readers, median(times) if times else evidence.near)
    is_known = _feed(text, path, readers, evidence)
    if text.step is not None:
        evidence.steps[path] = text.step
    if text.stepped and evidence.window.holds(text.stepped):
        evidence.stepped = max(evidence.stepped, text.stepped)
    evidence.watchdog.seen |= text.ranks
    evidence.host_map.take(path, text.writers if rank is None else {rank})
    for writer, record in text.writers.items():
        if record.host:
            evidence.prefixes.setdefault(writer, record.host)
        if number := re.search(r"pid=(\d+)", record.stream):
            evidence.processes[int(number[1])].add(writer)
    name = path.rpartition("/")[2]
    if text.width:
        evidence.said.append(f"The lines of {name} were broken at {text.width} columns, and are joined again.")
    if not is_known and evidence.host_map.is_kernel_log(name):
        evidence.quiet[name] = text.unended
    if evidence.watchdog.cut:
        evidence.said.append(
            f"{evidence.watchdog.cut:,} of the watchdog's lines in {name} are cut off: give the whole ones, from the job's own log."
        )
    return is_known


def _feed(lines: Iterable[LogLine], path: str, readers: list[Any], evidence: Evidence) -> bool:
    is_known = is_undated = False
    rank, floods = rank_in(path), (evidence.nccl, evidence.failures)  # NCCL INFO's lines are of no other reader
    first, last = evidence.spans.get(path, (None, None))
    now = first if evidence.runs else None
    is_inside = not evidence.runs or evidence.window == place(path, evidence.spans, evidence.runs)  # without any time
    for record in lines:
        now = record.at or now
        if not (evidence.window.holds(now) if now else is_inside):
            continue
        if record.at and not evidence.runs:
            first, last = first or record.at, record.at
        if moment := _moment(record, rank):
            evidence.moments.append(moment)
        for reader in floods if "NCCL INFO " in record.text else readers:
            if reader.read(record):
                is_known = True
                is_undated |= reader is not evidence.launches  # whose jobs have their own times
                if record.at and reader in (evidence.watchdog, evidence.failures):
                    evidence.clocks[path] = max(record.at, evidence.clocks.get(path, 0.0))
    if first and last:
        evidence.spans[path] = first, last
    evidence.undated += [Path(path).name] * (is_undated and now is None)
    return any([reader.end() for reader in readers if hasattr(reader, "end")]) or is_known


def _moment(record: LogLine, rank: int | None) -> RunMoment | None:
    """A line's moment, if such lines separate runs."""
    if record.at is None:
        return None
    if "environment variable for each process to be" in record.text:  # torchrun, as it starts
        return RunMoment(record.at, "start")
    if "by watchdog at work" in record.text and (call := failing(record.text)):
        group, number, in_group = call
        rank = record.rank if record.rank is not None else in_group if rank is None else rank
        return RunMoment(record.at, "call", rank, group, number)
    return None


def _take_json(path: str, data: bytearray, evidence: Evidence, shared: dict) -> bool:
    if b'"coll_perf"' in data[:65536]:
        return evidence.measured.read_objects(data.decode(errors="replace"))
    content = plain.unjsoned(data)
    if dump.is_dump(content):
        evidence.dumps.append(dump.read(content, path, shared))
        return True
    if traces.is_trace(content):
        trace = traces.read(content, path)
        if not trace.spans:
            raise Unusable("is a trace without any collective")
        if any(other.rank == trace.rank for other in evidence.traces):
            raise Unusable(f"is of rank {trace.rank}, which another trace has already: left out")
        evidence.traces.append(trace)
        return True
    if evidence.ras.read_json(content, path) or evidence.failures.read_error_file(content, path):
        return True
    if isinstance(content, dict):  # kubectl get -o json
        content = content.get("items")
    if isinstance(content, list) and content and unpacked(content[0]):
        records = (unpacked(record) for record in content)
        text = "\n".join(f"{stamp(at)}{words}" for words, at, _, _ in filter(None, records))
        return _read_text(io.BytesIO(text.encode()), path, evidence)
    return False


# --- evidence that doesn't fit together ---------------------------------------------------


def _one_of_each_rank(evidence: Evidence) -> list[Dump]:
    """One dump per rank: the one with the newest call, if there are several."""
    best: dict[int, Dump] = {}
    for record in evidence.dumps:
        older, newer = sorted((best.setdefault(record.rank, record), record), key=_last_made)
        if _last_made(older) == _last_made(newer):
            continue  # one record, written twice
        best[record.rank] = newer
        evidence.overlaps.append(
            f"{older.path} and {newer.path} are both of rank {record.rank}: the second has the newer calls and is used."
        )
    return [best[rank] for rank in sorted(best)]


def _last_call(record: Dump) -> RunMoment | None:
    """The moment of a rank's last collective, if the recorder notes the time."""
    last = next((launch for launch in record.launches[-64:][::-1] if launch.number >= 0), None)
    if last is None or last.made < FIRST_TIME:
        return None
    return RunMoment(last.made / 1e9, "call", record.rank, f"{last.group.name} in dumps", last.number)


def _last_made(record: Dump) -> int:
    return record.launches.made[-1] if record.launches else 0


HOUR = 3600.0
NEAR_HOUR = 120.0  # seconds from whole hours within which the ends of one job's logs are taken for one moment
MOST_HOURS = 14


def hours_apart(seconds: float) -> int:
    """The whole hours by which two clocks differ, if these are one moment; 0 if they aren't, or the clocks agree."""
    hours = round(seconds / HOUR)
    return hours if abs(seconds - hours * HOUR) <= NEAR_HOUR and abs(hours) <= MOST_HOURS else 0


def _check_clocks(evidence: Evidence) -> None:
    """Report files whose last lines are whole hours apart: their clocks have different zones, and can't order events."""
    zones = evidence.collected.zones
    if len(zones) > 1:
        places = ", ".join(
            f"{zone} on {evidence.host_map.of_file(min(files))}" for zone, files in sorted(zones.items())
        )
        evidence.zones = f"The hosts' clocks have different zones ({places}), so times are not compared."
        return
    first = min(evidence.clocks, key=lambda path: evidence.clocks[path], default="")
    apart = {path: hours_apart(at - evidence.clocks[first]) for path, at in evidence.clocks.items()}
    if later := {path: hours for path, hours in apart.items() if hours}:
        path, hours = max(later.items(), key=lambda item: item[1])
        evidence.zones = (
            f"The last times in {Path(path).name} and {Path(first).name} differ by {hours} hour{'s' * (hours != 1)}, almost exactly: their clocks have different "
            "zones, it seems. So which came first isn't known."
        )


APART_SECONDS = 6 * 3600.0  # between the last calls of ranks, beyond which their files are hardly of one run


def _check_together(evidence: Evidence) -> None:
    """Report signs that dumps are of different runs, and drop the dumps of other runs."""
    ends = {record.rank: _last_made(record) for record in evidence.dumps if record.launches}
    if not ends:
        return
    newest = max(ends.values())
    old = [
        record for record in evidence.dumps if record.rank in ends and newest - ends[record.rank] > APART_SECONDS * 1e9
    ]
    for record in old:
        hours = (newest - ends[record.rank]) / 3.6e12
        evidence.overlaps.append(
            f"{record.path} ends {hours:,.0f} hours before the newest of the others. It is taken to be of another run, and left out."
        )
    evidence.dumps = [record for record in evidence.dumps if record not in old]
    formats = sorted({record.version for record in evidence.dumps})
    if len(formats) > 1:
        evidence.said.append(f"The dumps have formats {' and '.join(formats)}: ranks ran different versions of torch.")
