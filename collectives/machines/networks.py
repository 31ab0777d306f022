"""Networks by name, from networks.csv: their software's additions to NCCL's own figures, and the spread of systems.

NCCL's constants (tuning.py) fit links that NVIDIA tuned.  Between nodes a message also passes a driver, a plug-in and
a thread of the processor, and these differ from one family of networks to the next.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from math import log
from pathlib import Path
from typing import Sequence

from .data_sheets import COUNT, FOLDER, SECONDS, SHARE, WORDS, DataSheet, Dimension, data_sheets

FILE = FOLDER / "networks.csv"
PRICES = "the price of a collective"  # needs a figure
_OF_PROTOCOLS = Dimension("seconds", 3)  # for LL, LL128, Simple
_OF_SIZES = Dimension("share", 3)  # for ANCHORS
ANCHORS = (
    2**18,
    2**23,
    2**28,
)  # bytes: up to the first, at the second, from the third on; between them by their logarithm

FIGURES = {
    "start": SECONDS,  # of a collective that stays on it
    "hop": _OF_PROTOCOLS,  # that software adds to every crossing between nodes
    "tree_growth": SHARE,  # of the bytes' time, that the pipeline of a tree waits at every crossing, ...
    "tree_most": SECONDS,  # ... at most; by LL, which sends no large chunks, it waits nowhere
    "ring_growth": SHARE,  # of a ring, twice a round: of its crossings all but the first two work at the same time
    "ring_most": SECONDS,
    "pairs": SECONDS,  # that it adds to sends and receives, as all_to_all is made of
    "pairs_growth": SHARE,  # of the bytes' time
    "growth": SHARE,  # of the bytes' time, of all other collectives
    "low": _OF_SIZES,  # where nine of ten rows of a system that nobody has published are to be expected: as
    "high": _OF_SIZES,  # Calibration.spreads in cost/calibration.py finds it of those in sweeps.csv
    "gpus": COUNT,  # of the largest sweep that was published
    "algorithms": WORDS,  # that NCCL may use between more than two nodes, between spaces; without a row all
    "two": WORDS,  # between two nodes
    "protocols": WORDS,  # between any nodes
}


@dataclass(frozen=True, eq=False)
class Network(DataSheet):
    """A network's figures; `value` gives one of FIGURES."""

    def words(self, figure: str) -> tuple[str, ...]:
        """The words of a figure; none where it has no row."""
        return tuple(self.value(figure, PRICES).split()) if figure in self.figures else ()

    def added(self, algorithm: str, protocol: int, hops: int, waits: int, transfer: float) -> tuple[float, float]:
        """Seconds that its software adds to NCCL's latency and to the bytes' time.

        algorithm: NCCL's name, or "pairs".  protocol: its place among LL, LL128, Simple.  hops: crossings one after the
        other.  waits: those at which the pipeline waits.  transfer: the bytes' seconds.
        """
        of = self._seconds
        if algorithm == "pairs":
            return of["pairs"], of["pairs_growth"] * transfer
        kind = "ring" if algorithm in ("Ring", "PAT") else "tree"
        wait = min(of[f"{kind}_growth"] * transfer, of[f"{kind}_most"]) if protocol else 0.0
        return hops * of["hop"][protocol] + waits * wait, of["growth"] * transfer

    @property
    def whose(self) -> str:
        """The noun for the things of which nine in ten are in the band."""
        return "systems" if self.file == FILE else f"measurements of {self.name}"

    @cached_property
    def _seconds(self) -> dict[str, float]:
        names = "hop tree_growth tree_most ring_growth ring_most pairs pairs_growth growth"
        return {name: self.value(name, PRICES) for name in names.split()}

    def band(self, nbytes: float) -> tuple[float, float]:
        """The band around a price, as factors: nine of ten systems are expected in it."""
        return at_size(nbytes, self.value("low", PRICES)), at_size(nbytes, self.value("high", PRICES))


def at_size(nbytes: float, shares: Sequence[float]) -> float:
    """The share at a size, of those at ANCHORS."""
    small, middle, large = ANCHORS
    nbytes = min(max(nbytes, small), large)
    below, above, (low, high) = (small, middle, shares[:2]) if nbytes < middle else (middle, large, shares[1:])
    return low * (high / low) ** (log(nbytes / below) / log(above / below))


@cache
def networks(file: Path = FILE) -> dict[str, Network]:
    """All networks of a file, by name.  Raises ValueError for a mistake in it."""
    sheets = data_sheets("network", file, FIGURES)
    return {name: Network("network", name, file, sheet.figures) for name, sheet in sheets.items()}


def network(name: str) -> Network:
    """A network by its name.  Raises ValueError for one that networks.csv has not."""
    if name not in networks():
        raise ValueError(f"no network is called {name!r}, only {', '.join(networks())}; more go into {FILE.name}.")
    return networks()[name]
