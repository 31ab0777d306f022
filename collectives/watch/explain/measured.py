"""A collective's measured bandwidth: the reports of nccl-tests, and NCCL Inspector's JSON.

nccl-tests prints a table of bytes and times out of place and in place (doc/PERFORMANCE.md); Inspector writes an object for
each collective, as ext-profiler/inspector/README.md of NCCL shows it.
"""

import re
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from ...format import align, duration, size
from ...judge.wording.phrases import alike
from . import ops
from .text import LogLine

_TESTED = re.compile(r"#\s+(?:nccl-tests|nThread)|# Using devices")
_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\S+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)"
)
_RANK = re.compile(r"#\s+Rank\s+(\d+) .* on\s+(\S+) device")
_NAMES = {*"all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter".split()}
SLOW = 0.8  # of the median, below which a rank or a size is reported


class Measurement(NamedTuple):
    op: str
    nbytes: int
    ranks: int
    nodes: int
    seconds: float
    busbw: float  # bytes/s
    rank: int | None  # Inspector measures each
    host: str


@dataclass
class _Report:
    """A report of nccl-tests that is being read.  best: (bytes, GB/s, microseconds) of its rows."""

    path: str
    is_one: bool = False
    op: str = ""
    devices: list[tuple[str, str]] = field(default_factory=list)  # (rank, host)
    best: list[tuple[int, float, float]] = field(default_factory=list)
    wrong: int = 0
    tables: int = 0

    def __post_init__(self) -> None:
        self.op = next((name for name in re.findall(r"(\w+?)_perf\b", self.path) if name in _NAMES), "")


@dataclass
class Measurements:
    """Measurements of files."""

    marks = (b"nccl-tests", b"nThread", b"# Using devices")
    inner = (b"_perf", b"# ", b"     ")
    rows: list[Measurement] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _report: _Report = field(default_factory=lambda: _Report(""))

    def begin(self, path: str, rank: int | None) -> None:
        """A file follows."""
        self._report = _Report(path)

    def read(self, line: LogLine) -> bool:
        """Add a line of a report of nccl-tests. Returns whether the file is one, so far."""
        report, text = self._report, line.text
        report.tables += "# Using devices" in text
        report.is_one = report.is_one or bool(_TESTED.search(text))
        if "_perf" in text and not report.op:
            report.op = next((name for name in re.findall(r"(\w+?)_perf\b", text) if name in _NAMES), "")
        if device := _RANK.match(text):
            report.devices.append((device[1], device[2]))
        elif report.is_one and (row := _ROW.match(text)):
            out, into = (float(row[8]), float(row[6])), (float(row[12]), float(row[10]))
            report.best.append((int(row[1]), *max(out, into)))
            report.wrong += sum(row[k] not in ("0", "N/A") for k in (9, 13))
        return report.is_one

    def end(self) -> bool:
        """The file has ended. Returns whether it was a report."""
        report = self._report
        if not report.is_one:
            return False
        ranks, nodes = len(report.devices), len({host for _, host in report.devices})
        for nbytes, busbw, microseconds in report.best:
            op = ops.op_of(report.op) or "collective"
            self.rows.append(Measurement(op, nbytes, ranks, nodes, microseconds / 1e6, busbw * 1e9, None, ""))
        name = report.path.rpartition("/")[2]
        if report.devices and ranks != len({rank for rank, _ in report.devices}) or report.tables > 1:
            self.faults.append(
                f"{name} has several tables, or rank {report.devices[0][0]} several times: each process believed to be alone (--mpi=pmix, or a build without MPI=1)."
            )
        if report.wrong:
            self.faults.append(f"{name} has wrong results in {report.wrong} rows.")
        if not report.best:
            self.faults.append(
                f"{name} is a report of nccl-tests without a row: it ended before its first measurement."
            )
        return True

    def read_objects(self, text: str) -> bool:
        """Add Inspector's objects, one per line or one after the other. Returns whether there were any."""
        import json

        decoder, at, found = json.JSONDecoder(), 0, 0
        text = text.strip()
        while at < len(text):
            try:
                each, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError:
                if found:
                    self.faults.append("NCCL Inspector's output is cut short; what came before is used.")
                break
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            found += self._take(each)
        return bool(found)

    def _take(self, each: Any) -> bool:
        try:
            head, perf = each["header"], each["coll_perf"]
            ranks, nodes = head["n_ranks"], head.get("nnodes", head.get("n_nodes", 1))
            op, nbytes, seconds = ops.op_of(perf["coll"]), perf["coll_msg_size_bytes"], perf["coll_exec_time_us"] / 1e6
            host = each.get("metadata", {}).get("hostname", "")
            self.rows.append(
                Measurement(op, nbytes, ranks, nodes, seconds, perf["coll_busbw_gbs"] * 1e9, head["rank"], host)
            )
        except (KeyError, TypeError):
            return False
        return True

    def words(self) -> list[str]:
        """A row for each op, size and number of ranks, and the slower ranks."""
        kinds = alike((row, (row.op, row.ranks, row.nodes, row.nbytes)) for row in self.rows)
        rows = [("op", "ranks", "nodes", "bytes", "calls", "seconds", "busbw, GB/s", "least")]
        for (op, ranks, nodes, nbytes), measured in sorted(kinds.items()):
            speeds = sorted(m.busbw / 1e9 for m in measured)
            rows.append(
                (op, f"{ranks:,}", str(nodes), size(nbytes), f"{len(measured):,}", duration(median(m.seconds for m in measured)),
                 f"{median(speeds):.4g}", f"{speeds[0]:.4g}")
            )  # fmt: skip
        best: dict[tuple, float] = {}
        for (op, ranks, nodes, _), measured in kinds.items():
            best[op, ranks, nodes] = max(best.get((op, ranks, nodes), 0.0), median(m.busbw for m in measured))
        heads = [
            f"{op} on {ranks} rank{'s' * (ranks != 1)}, {nodes} node{'s' * (nodes != 1)}: busbw of {speed / 1e9:.4g} GB/s at best."
            for (op, ranks, nodes), speed in best.items()
        ]
        shown = rows if len(rows) <= 40 else [*rows[:40], (f"... and {len(rows) - 40} more",)]
        return [*heads, align(shown, right=range(1, 8), indent="  "), *self._slow(kinds), *self.faults]

    @staticmethod
    def _slow(kinds: dict[tuple, list[Measurement]]) -> list[str]:
        lines = []
        for (op, ranks, _, nbytes), measured in sorted(kinds.items()):
            by_rank = alike((m.seconds, (m.rank, m.host)) for m in measured if m.rank is not None)
            if len(by_rank) < 3:
                continue
            times = {at: median(seconds) for at, seconds in by_rank.items()}
            usual = median(times.values())
            late = [at for at, seconds in times.items() if seconds < SLOW * usual]
            if late and len(late) * 2 < len(times):
                latecomers = ", ".join(f"rank {rank} on {host}" for rank, host in sorted(late)[:4])
                lines.append(
                    f"In {op} of {size(nbytes)}, {latecomers} spent less time than the others: they came last, and the others waited for them."
                )
        return lines[:6]
