"""NCCL's choice and its price (tuner.py) compared with every figure of machines/sweeps.csv.

Fitted are LAUNCH_SECONDS, the additions of each network's software (machines/networks.csv), and the turns of two nodes
whose NICs are slower than their switch (machines/tuning.py).  All else is NCCL's own.  Sources, not rows, are held out:
a cluster that the fit has seen at one size predicts the next.  The bands around prices are where rows of a new source
are expected, from the rows not used for fitting (spread.py).
"""

import statistics
from collections import defaultdict
from functools import partial
from itertools import groupby

from ..format import align, size
from ..machines.networks import at_size
from ..machines.sweeps import FITTED_ROLE, HELD_OUT, SUSPECT, Sweep, sweeps
from .result import busbw
from .spread import Spread, spread
from .tuner import nccl

MIB = 2**20

# Seconds until a kernel runs, where one thread starts all eight GPUs' kernels (nccl-tests -g 8), or each call waits for
# the one before (ml-engineering's all_reduce_bench.py).  Where each GPU has its process and calls are queued, as in
# training, they hide behind the call before.  Fitted: the median of what three sweeps take for 32 KiB beyond the
# model's time (A100, H200, B200: 28, 24 and 32 µs).
LAUNCH_SECONDS = 28.4e-6

GROUPS = (
    "one node, below 1 MiB",
    "one node, 1 to 64 MiB",
    "one node, 64 MiB and more",
    "several nodes, below 64 MiB",
    "several nodes, 64 MiB and more",
)

FAMILIES = ("NVLink", "NVLink rack", "verbs")  # networks with their own bands; all others share one
FEW_SOURCES = 5  # sources: a family with fewer gets the band of all networks between nodes


class CalibrationPoint:
    """A published bus bandwidth and the model's, in bytes/s.  by: NCCL's algorithm and protocol in the model."""

    def __init__(
        self, sweep: Sweep, nbytes: int, published: float, model: float, by: str, nodes: int, band: tuple[float, float]
    ) -> None:
        self.what, self.collective, self.source, self.nccl = sweep.what, sweep.collective, sweep.source, sweep.nccl
        self.role, self.note = sweep.role, sweep.note
        self.nbytes, self.published, self.model, self.by = nbytes, published, model, by
        gpus = sweep.machine.gpus
        self.network = (gpus.inside if gpus.nodes == 1 else gpus.between).name
        self.large = 2 if nbytes >= 64 * MIB else int(nbytes >= MIB)
        self.group = GROUPS[self.large] if nodes == 1 else GROUPS[3 + self.large // 2]
        self.error = model / published - 1
        self.times = model / published  # measured / modeled seconds
        self.inside = band[0] <= self.times <= band[1]  # whether it is in the band around the price
        self.counts = sweep.role not in (FITTED_ROLE, SUSPECT)  # nothing was fitted to it, and nothing is wrong with it
        self.foreseen = False  # of one that counts: whether it is in the other sources' band


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

    def of(self, group: str | None = None, role: str | None = None, network: str | None = None) -> "Calibration":
        """The rows of a group (one of GROUPS), of a role ("held out"), of a network, or of all that are given."""
        wanted = ((group, "group"), (role, "role"), (network, "network"))
        return Calibration(row for row in self if all(word in (None, getattr(row, name)) for word, name in wanted))

    @property
    def within(self) -> float:
        """The share of the counted rows that are in the band around the price."""
        return statistics.mean(row.inside for row in self.counted)

    @property
    def foreseen(self) -> float:
        """The same, with bands computed without the row's own source."""
        return statistics.mean(row.foreseen for row in self.counted)

    def spreads(self, network: str, without: str = "") -> list[Spread]:
        """The spread of a new source's rows around a network's prices, for small, middle and large buffers.

        without: a source that is left out.  Networks without a family share their spread, families with few sources
        share it with all networks between nodes; a rack has NVLink's where it has no rows.
        """
        rows = [row for row in self.counted if row.source != without]
        return [_spread([row for row in rows if row.large == large], network) for large in range(3)]

    def __repr__(self) -> str:
        """A line for each group of sizes, then one for each network: errors of the rows not used for fitting."""
        head = (
            "rows not used for fitting",
            *"rows sources median worst".split(),
            "in the band",
            "in a band fitted without them",
        )
        return align([head, *self.summary], right=range(1, 7), indent="  ")

    @property
    def summary(self) -> list[tuple[str, ...]]:
        """Rows, sources, errors and shares in the bands: per group of sizes, per network, held-out rows and all."""
        parts = [(group, self.of(group)) for group in GROUPS]
        parts += [(f"network {name}", self.of(network=name)) for name in dict.fromkeys(row.network for row in self)]
        parts += [("held out", self.of(role=HELD_OUT)), ("all", self)]
        return [(name, *part._figures) for name, part in parts if part.counted]

    @property
    def _figures(self) -> tuple[str, ...]:
        counted = self.counted
        sources, worst = len({row.source for row in counted}), max((row.error for row in counted), key=abs)
        shares = f"{self.median:.0%}", f"{worst:+.0%}", f"{self.within:.0%}", f"{self.foreseen:.0%}"
        return str(len(counted)), str(sources), *shares

    def sweeps(self) -> str:
        """A line per sweep, then the sources by their numbers, and the suspect sweeps."""
        sources = list(dict.fromkeys(row.source for row in self))
        line = "  {:<52} {:>16} {:>19} {:>7} {:>6} {:>5} {:>7} {}".format
        lines = [
            line("published busbw, and by how much the model errs", "sizes", "GB/s", "median", "worst", "", "NCCL", "")
        ]
        for (what, role), sweep in groupby(self, lambda row: (f"{row.what}, {row.collective}", row.role)):
            first, *rest = sweep
            errors, ends = [row.error for row in (first, *rest)], (first, *rest[-1:])
            sizes = " to ".join(dict.fromkeys(size(row.nbytes) for row in ends))
            published = " to ".join(dict.fromkeys(f"{row.published / 1e9:.3g}" for row in ends))
            median, worst = f"{statistics.median(map(abs, errors)):.0%}", f"{max(errors, key=abs):+.0%}"
            number = f"[{sources.index(first.source) + 1}]"
            lines.append(line(what, sizes, published, median, worst, number, first.nccl or "", role))
        lines = [*map(str.rstrip, lines), "", *(f"  [{k}] {source}" for k, source in enumerate(sources, 1))]
        if suspect := self.of(role=SUSPECT):
            notes = dict.fromkeys(f"  {row.what}, {row.collective}: {row.note}" for row in suspect)
            lines += ["", "  Suspect, counted nowhere:", *(f"  {note}" for note in notes)]
        return "\n".join(lines)


def _spread(rows: list[CalibrationPoint], network: str) -> Spread:
    """The spread of rows of one size."""
    families: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for family in (row.network if row.network in FAMILIES else "", *["between"] * ("NVLink" not in row.network)):
            families[family][row.source].append(row.times)
    mine = families[network if network in FAMILIES else ""]
    if "NVLink" not in network:
        return spread(mine if len(mine) >= FEW_SOURCES else families["between"])
    return spread(mine or families["NVLink"])


def calibration() -> Calibration:
    """The published figures, and the model's: bus bandwidth in bytes/s, each with its source."""
    rows = Calibration()
    for sweep in sweeps():
        priced = nccl(sweep.collective, sweep.machine, version=sweep.version)
        for nbytes, figure in sweep.figures:
            cost = priced(nbytes, sweep.algorithm)
            of_seconds = partial(busbw, sweep.collective, nbytes, cost.world_size)
            published = of_seconds(figure * 1e-6) if sweep.unit == "µs" else figure * 1e9
            model = of_seconds(cost.seconds + sweep.exposed * LAUNCH_SECONDS)
            way, band = f"{cost.algorithm}/{cost.protocol}", priced.network.band(nbytes)
            rows.append(CalibrationPoint(sweep, nbytes, published, model, way, priced.nodes, band))
    for (source, network), of in groupby(sorted(rows.counted, key=_family), _family):
        low, _, high = zip(*rows.spreads(network, without=source))
        for row in of:
            row.foreseen = at_size(row.nbytes, low) <= row.times <= at_size(row.nbytes, high)
    return rows


def _family(row: CalibrationPoint) -> tuple[str, str]:
    return row.source, row.network
