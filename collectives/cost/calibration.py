"""NCCL's choice and its price (tuner.py) beside every figure of machines/sweeps.csv.

One figure is fitted, LAUNCH_SECONDS; all else is NCCL's own.  The model errs most beside NCCL of 2021 (A100, 0.5 to
8 MiB: it chose other protocols); where a plug-in replaces NCCL's choice (RoCE on Google's machines); where NCCL turns
from one algorithm to another; and over 20 racks of GB200, which take twice to three times as long.
"""

import statistics
from functools import partial
from itertools import groupby

from ..format import size
from ..machines.sweeps import FITTED, HELD_OUT, SUSPECT, Sweep, sweeps
from .cost import busbw
from .tuner import nccl

MIB = 2**20

# Seconds until a kernel runs, where one thread starts those of all eight GPUs (nccl-tests -g 8), or each call waits for
# the one before (ml-engineering's all_reduce_bench.py).  Where each GPU has its process and calls are queued, as in
# training, they hide behind the call before.  Fitted: the median of what three sweeps take for 32 KiB beyond the
# model's time (A100, H200, B200: 28, 24 and 32 µs).
LAUNCH_SECONDS = 28.4e-6

GROUPS = ("one node, below 1 MiB", "one node, 1 to 64 MiB", "several nodes, below 64 MiB", "64 MiB and more")


class CalibrationPoint:
    """A published bus bandwidth and the model's, in bytes/s.  by: NCCL's algorithm and protocol in the model."""

    def __init__(self, sweep: Sweep, nbytes: int, published: float, model: float, by: str, group: str) -> None:
        self.what, self.collective, self.source = sweep.what, sweep.collective, sweep.source
        self.role, self.note = sweep.role, sweep.note
        self.nbytes, self.published, self.model, self.by, self.group = nbytes, published, model, by, group
        self.error = model / published - 1
        self.counts = sweep.role not in (FITTED, SUSPECT)  # nothing was fitted to it, and nothing is wrong with it


class Errors(list):
    """Rows that each have an `error`, and whether it `counts`."""

    @property
    def counted(self) -> list:
        return [row for row in self if row.counts]

    @property
    def median(self) -> float:
        """The median size of the error of the rows that count."""
        return statistics.median(abs(row.error) for row in self.counted)


class Calibration(Errors):
    """CalibrationPoints; `of` gives some of them."""

    def of(self, group: str | None = None, role: str | None = None) -> "Calibration":
        """The rows of a group (one of GROUPS), of a role ("held out"), or of both."""
        return Calibration(row for row in self if group in (None, row.group) and role in (None, row.role))

    def __repr__(self) -> str:
        """One line a sweep, their sources, then one line a group."""
        sources = list(dict.fromkeys(row.source for row in self))
        line = "  {:<50} {:>16} {:>19} {:>7} {:>6} {:>5} {}".format
        lines = [line("published busbw, and by how much the model errs", "sizes", "GB/s", "median", "worst", "", "")]
        for (what, role), sweep in groupby(self, lambda row: (f"{row.what}, {row.collective}", row.role)):
            first, *rest = sweep
            errors, ends = [row.error for row in (first, *rest)], (first, *rest[-1:])
            sizes = " to ".join(dict.fromkeys(size(row.nbytes) for row in ends))
            published = " to ".join(dict.fromkeys(f"{row.published / 1e9:.3g}" for row in ends))
            median, worst = f"{statistics.median(map(abs, errors)):.0%}", f"{max(errors, key=abs):+.0%}"
            lines.append(line(what, sizes, published, median, worst, f"[{sources.index(first.source) + 1}]", role))
        lines = [*map(str.rstrip, lines), "", *(f"  [{k}] {source}" for k, source in enumerate(sources, 1))]
        if suspect := self.of(role=SUSPECT):
            notes = dict.fromkeys(f"  {row.what}, {row.collective}: {row.note}" for row in suspect)
            lines += ["", "  Suspect, counted nowhere:", *(f"  {note}" for note in notes)]
        lines.append("")
        for group in GROUPS:
            rows, held = self.of(group), self.of(group, HELD_OUT)
            if rows.counted:
                kept = f", of {len(held)} held out {held.median:.0%}" if held else ""
                lines.append(f"  median error, {group}: {rows.median:.0%} of {len(rows.counted)} rows{kept}")
        if many := len(self.counted):
            lines.append(f"  median error of all {many} rows that nothing was fitted to: {self.median:.0%}")
        return "\n".join(lines)


def calibration() -> Calibration:
    """The published figures, and what the model makes of them: bus bandwidth in bytes/s, each with its source."""
    rows = Calibration()
    for sweep in sweeps():
        priced = nccl(sweep.collective, sweep.machine, version=sweep.version)
        for nbytes, figure in sweep.figures:
            cost = priced(nbytes, sweep.algorithm)
            of_seconds = partial(busbw, sweep.collective, nbytes, cost.world_size)
            published = of_seconds(figure * 1e-6) if sweep.unit == "µs" else figure * 1e9
            model = of_seconds(cost.seconds + sweep.exposed * LAUNCH_SECONDS)
            large = 3 if nbytes >= 64 * MIB else 2 if priced.nodes > 1 else int(nbytes >= MIB)
            way = f"{cost.algorithm}/{cost.protocol}"
            rows.append(CalibrationPoint(sweep, nbytes, published, model, way, GROUPS[large]))
    return rows
