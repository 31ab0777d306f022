"""Finds the evidence in folders and files, by its content: dumps, traces, logs and reports."""

import gc
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterable, Iterator

from ..record import is_record
from . import dump, plain, traces
from .dump import Dump
from .measured import Measured
from .nccl_log import NcclLog
from .plain import Unusable
from .traces import Trace
from .waits import Job
from .watchdog import Log


@dataclass
class Evidence:
    """The evidence found in files.  said: sentences on files that were left out, or that don't fit together."""

    dumps: list[Dump] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    watchdog: Log = field(default_factory=Log)
    nccl: NcclLog = field(default_factory=NcclLog)
    measured: Measured = field(default_factory=Measured)
    records: list[Path] = field(default_factory=list)  # folders that collectives.watch has written
    said: list[str] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)  # files of folders that hold nothing known

    @property
    def job(self) -> Job:
        """The dumps, put together."""
        return Job({each.rank: each for each in self.dumps}, seen=1 + max(self.watchdog.seen, default=-1))

    @property
    def is_empty(self) -> bool:
        return not (
            self.dumps
            or self.traces
            or self.nccl.processes
            or self.nccl.versions
            or self.measured.rows
            or self.measured.faults
            or self.records
        )


def gather(paths: Iterable[str | Path]) -> Evidence:
    """All that these files and folders hold. Raises FileNotFoundError for a path that is not there."""
    found, known, files = Evidence(), {}, set(_files(paths))
    found.records = sorted({file.parent for file in files if is_record(file.parent)})
    with _no_cycles():
        for file in sorted((file for file in files if file.parent not in found.records), key=_in_order):
            try:
                if not _take(file, plain.data_of(file), found, known):
                    found.others.append(file)
            except Unusable as error:
                found.said.append(f"{file} {error}.")
            except OSError as error:
                found.said.append(f"{file} could not be read: {error.strerror or error}.")
    found.traces.sort(key=lambda trace: trace.rank)
    found.dumps = _one_of_each_rank(found)
    _check_together(found)
    dumped = {each.rank for each in found.dumps}
    found.dumps += [each for each in found.watchdog.dumps() if each.rank not in dumped]
    found.dumps.sort(key=lambda each: each.rank)
    if found.others:
        names = ", ".join(file.name for file in found.others[:3]) + ", ..." * (len(found.others) > 3)
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
    for path in map(Path, paths):
        if path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        elif path.exists():
            yield path
        else:
            raise FileNotFoundError(f"there is no {path}.")


def _in_order(file: Path) -> tuple:
    """rank_2 before rank_10"""
    rank = dump.rank_of(str(file))
    return str(file.parent), -1 if rank is None else rank, file.name


def _take(file: Path, data: bytes, found: Evidence, known: dict) -> bool:
    """Read a file, whatever it is. Returns whether its content is of a known kind."""
    if data[:1] == b"\x80":
        content = plain.unpickled(data)
        if not dump.is_dump(content):
            raise Unusable("is a pickle but not a flight-recorder dump: it has no entries")
        found.dumps.append(dump.read(content, str(file), known))
        return True
    if b"\0" in data[:4096]:
        return False
    if re.match(rb"\s*(\{|\[\s*[{\[])", data):
        return _take_json(file, data, found, known)
    text = data.decode(errors="replace")
    return any([found.watchdog.read(text), found.nccl.read(text), found.measured.read_report(text, str(file))])


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
    return each.launches[-1].made if each.launches else 0


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
