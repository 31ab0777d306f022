"""Finds the evidence in folders and files, by its content: dumps, traces, stacks, logs and reports.

Files that are one piece of data (a pickle, JSON) are read whole; text is read line by line, each line normalized once
and given to the readers whose marks it has.
"""

import gc
import gzip
import io
import re
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Iterable, Iterator

from . import debug_server, dump, plain, traces
from .dump import Dump
from .failures import Failures
from .hosts import HostEvents
from .measured import Measurements
from .nccl_log import NcclLog
from .plain import Unusable
from .ras import Ras
from .stacks import Stacks, rank_in
from .text import LogLine, Text, host_in, line, stamp, unpacked
from .traces import Trace
from .waits import DumpedJob
from .watchdog import Log

STDIN = "-"


@dataclass
class Evidence:
    """The evidence found in files.  notes: sentences on files that were left out, or that don't fit together."""

    dumps: list[Dump] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    watchdog: Log = field(default_factory=Log)
    failures: Failures = field(default_factory=Failures)
    hosts: HostEvents = field(default_factory=HostEvents)
    ras: Ras = field(default_factory=Ras)
    stacks: Stacks = field(default_factory=Stacks)
    nccl: NcclLog = field(default_factory=NcclLog)
    measured: Measurements = field(default_factory=Measurements)
    where: dict[int, str] = field(default_factory=dict)  # by rank, its host
    moved: list[str] = field(default_factory=list)  # sentences on a job that was asked twice
    records: list[Path] = field(default_factory=list)  # folders that collectives.watch has written
    said: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # files that hold nothing known

    @property
    def job(self) -> DumpedJob:
        """The dumps, put together."""
        size = max(self.failures.world, self.ras.gpus)
        seen = 1 + max([*self.watchdog.seen, *(end.rank or 0 for end in self.failures.ends)], default=-1)
        return DumpedJob({each.rank: each for each in self.dumps}, size=size, seen=seen)

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
        return bool(failures.ends or failures.follow or met or self.hosts.events or self.ras.is_ras or self.stacks.all)


def gather(paths: Iterable[str | Path]) -> Evidence:
    """All that these files and folders hold. Raises FileNotFoundError for a path that is not there."""
    found, known, files = Evidence(), {}, set(_files(paths))
    found.records = sorted({file.parent for file in files if _is_record(file.parent)})
    with _no_cycles():
        for file in sorted((file for file in files if file.parent not in found.records), key=_in_order):
            try:
                if not _take(file, found, known):
                    found.others.append(file.name)
            except Unusable as error:
                found.said.append(f"{file} {error}.")
            except OSError as error:
                found.said.append(f"{file} could not be read: {error.strerror or error}.")
        for address in filter(debug_server.is_address, map(str, paths)):
            _ask(address, found, known)
        if STDIN in map(str, paths):
            if not _read_text(sys.stdin.buffer, "standard input", found):
                found.others.append("standard input")
    found.where |= found.ras.hosts | found.nccl.host_of
    found.where |= {end.rank: end.host for end in found.failures.ends if end.rank is not None and end.host}
    found.where |= {
        each.rank: host for each in found.dumps if (host := host_in(each.path)) and each.rank not in found.where
    }
    found.traces.sort(key=lambda trace: trace.rank)
    found.dumps = _one_of_each_rank(found)
    _check_together(found)
    dumped = {each.rank for each in found.dumps}
    found.dumps += [each for each in found.watchdog.dumps() if each.rank not in dumped]
    found.dumps.sort(key=lambda each: each.rank)
    if found.others:
        names = ", ".join(found.others[:3]) + ", ..." * (len(found.others) > 3)
        found.said.append(f"Nothing is recognized in {names}.")
    return found


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


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for original in paths:
        path = Path(original)
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        elif path.exists():
            yield path
        elif str(path) != STDIN and not debug_server.is_address(str(original)):
            raise FileNotFoundError(f"there is no {path}.")


def _is_record(folder: Path) -> bool:
    """Whether a folder is a job's record: it has collectives.watch's files, whatever else is in it."""
    return (folder / "about.json").is_file() and (folder / "ranks.jsonl").is_file()


def _in_order(file: Path) -> tuple:
    """rank_2 before rank_10"""
    rank = dump.rank_of(str(file))
    return str(file.parent), re.sub(r"\d+", "", file.name), -1 if rank is None else rank, file.name


def _ask(address: str, found: Evidence, known: dict) -> None:
    """Add the answers of a job's debug server."""
    answers = debug_server.ask(address)
    for answer in answers:
        _add_stacks(answer, address, found)
    _add_records(answers[-1], address, found, known)
    found.moved = debug_server.moved(*answers)


def _add_stacks(answer: debug_server.Pages, name: str, found: Evidence) -> None:
    for rank, text in answer.stacks.items():
        found.stacks.begin(name, rank)
        for each in text.splitlines():
            found.stacks.read(line(each))


def _add_records(answer: debug_server.Pages, name: str, found: Evidence, known: dict) -> None:
    for rank, record in answer.records.items():
        found.dumps.append(dump.read(record, f"{name}, rank {rank}", known))


# --- one file -----------------------------------------------------------------------------


def _take(file: Path, found: Evidence, known: dict) -> bool:
    """Read a file, whatever it is. Returns whether its content is of a known kind."""
    with file.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        try:
            head = source.read(1 << 16)
            source.seek(0)
            if not head.strip():
                raise Unusable("is empty: its process was ended before it wrote anything")
            if head[:1] == b"\x80":
                content = plain.unpickled(plain.data_of(file))
                if not dump.is_dump(content):
                    raise Unusable("is a pickle but not a flight-recorder dump: it has no entries")
                found.dumps.append(dump.read(content, str(file), known))
                return True
            if b"\0" in head[:4096]:
                return False
            if re.match(rb"\s*<(!doctype|html)", head, re.IGNORECASE):
                return _take_page(plain.data_of(file).decode(errors="replace"), str(file), found, known)
            if re.match(rb"\s*(\{|\[\s*[{\[])", head) and not _is_lines_of_json(head):
                return _take_json(file, plain.data_of(file), found, known)
            return _read_text(source, str(file), found)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Unusable(f"is compressed and cut short or damaged ({error})") from None


def _take_page(text: str, name: str, found: Evidence, known: dict) -> bool:
    """Read a page of the debug server that somebody saved."""
    answer = debug_server.Pages()
    debug_server.add(debug_server.pages(text)[0], answer)
    _add_stacks(answer, name, found)
    _add_records(answer, name, found, known)
    return bool(answer.stacks or answer.records)


def _is_lines_of_json(head: bytes) -> bool:
    """Whether each line is a log shipper's record."""
    first, newline, _ = head.lstrip().partition(b"\n")
    try:
        return bool(newline or len(head) < 1 << 16) and unpacked(plain.unjsoned(first)) is not None
    except Unusable:
        return False


def _read_text(file: BinaryIO, path: str, found: Evidence) -> bool:
    """Give the lines of a text to the readers that know them. Returns whether any did."""
    rank = rank_in(path)
    readers: list[Any] = [
        found.watchdog, found.nccl, found.measured, found.failures, found.hosts, found.ras, found.stacks
    ]  # fmt: skip
    for reader in readers:
        reader.begin(path, rank)
    text = Text(file, readers)
    known = _feed(text, readers, found.where)
    found.watchdog.seen |= text.ranks
    name = path.rpartition("/")[2]
    if text.width:
        found.said.append(f"The lines of {name} were broken at {text.width} columns, and are joined again.")
    if found.watchdog.cut:
        found.said.append(
            f"{found.watchdog.cut:,} of the watchdog's lines in {name} are cut off: give the whole ones, from the job's own log."
        )
    return known


def _feed(lines: Iterable[LogLine], readers: list[Any], where: dict[int, str]) -> bool:
    known = False
    for each in lines:
        if each.rank is not None and each.host:
            where[each.rank] = each.host
        for reader in readers:
            if reader.read(each):
                known = True
    return any([reader.end() for reader in readers if hasattr(reader, "end")]) or known


def _take_json(file: Path, data: bytes, found: Evidence, known: dict) -> bool:
    if b'"coll_perf"' in data[:65536]:
        return found.measured.read_objects(data.decode(errors="replace"))
    content = plain.unjsoned(data)
    if dump.is_dump(content):
        found.dumps.append(dump.read(content, str(file), known))
        return True
    if traces.is_trace(content):
        trace = traces.read(content, str(file))
        if not trace.spans:
            raise Unusable("is a trace without any collective")
        if any(other.rank == trace.rank for other in found.traces):
            raise Unusable(f"is of rank {trace.rank}, which another trace has already: left out")
        found.traces.append(trace)
        return True
    if found.ras.read_json(content) or found.failures.read_error_file(content, str(file)):
        return True
    if isinstance(content, list) and content and unpacked(content[0]):
        records = (unpacked(each) for each in content)
        text = "\n".join(f"{stamp(at)}{words}" for words, at, _, _ in filter(None, records))
        return _read_text(io.BytesIO(text.encode()), str(file), found)
    return False


# --- evidence that doesn't fit together ---------------------------------------------------


def _one_of_each_rank(found: Evidence) -> list[Dump]:
    """One dump per rank: the one with the newest call, if there are several."""
    best: dict[int, Dump] = {}
    for each in found.dumps:
        other = best.get(each.rank)
        if other is None:
            best[each.rank] = each
            continue
        best[each.rank] = newer = max(other, each, key=_last_made)
        older = each if newer is other else other
        if _last_made(older) == _last_made(newer):
            continue  # one record, written twice
        found.said.append(
            f"{older.path} and {newer.path} are both of rank {each.rank}: the second has the newer calls and is used."
        )
    return [best[rank] for rank in sorted(best)]


def _last_made(each: Dump) -> int:
    return each.launches.made[-1] if each.launches else 0


APART_SECONDS = 6 * 3600.0  # between the last calls of ranks, beyond which their files are hardly of one run


def _check_together(found: Evidence) -> None:
    """Report signs that dumps are of different runs, and drop the dumps of other runs."""
    ends = {each.rank: _last_made(each) for each in found.dumps if each.launches}
    if not ends:
        return
    newest = max(ends.values())
    old = [each for each in found.dumps if each.rank in ends and newest - ends[each.rank] > APART_SECONDS * 1e9]
    for each in old:
        hours = (newest - ends[each.rank]) / 3.6e12
        found.said.append(
            f"{each.path} ends {hours:,.0f} hours before the newest of the others. It is taken to be of another run, and left out."
        )
    found.dumps = [each for each in found.dumps if each not in old]
    formats = sorted({each.version for each in found.dumps})
    if len(formats) > 1:
        found.said.append(f"The dumps have formats {' and '.join(formats)}: ranks ran different versions of torch.")
