"""GPUs by name, from gpus.csv: figures of data sheets, NCCL's constants, and the speed that a matrix product reaches.

A GPU's rows name its generation, whose rows hold NCCL's constants for every GPU of one compute capability.
"""

from collections import namedtuple
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from .data_sheets import COUNT, FOLDER, SHARE, SPEED, WORDS, DataSheet, Dimension, data_sheets

FILE = FOLDER / "gpus.csv"
NCCL = "NCCL's cost model"  # needs a figure
_SPEEDS = Dimension("bytes/s", None)
_OF_NODES = Dimension("bytes/s", 3)  # for one node, two, more

GENERATION = {  # what NCCL knows of a generation; "at most" is a channel's
    "link": SPEED,  # of one NVLink, each way
    "ll_cap": SPEED,  # bus bandwidth that LL reaches inside a node
    "ring_ll128": SPEED,  # at most
    "tree_ll128": _OF_NODES,  # at most
    "tree": _OF_NODES,  # at most, by Simple
    "nvls_tree": _OF_NODES,  # at most
    "nvls": SHARE,  # of the bandwidth, reached by the switch's adders; 0: without any
    "nvls_channels": Dimension("count", 3),
    "speeds": _SPEEDS,  # that a channel may have in one node, the fastest first
    "network_speeds": _SPEEDS,  # likewise, between nodes
    "compute_capability": COUNT,  # as NCCL compares it: 90 for 9.0
}
FIGURES = GENERATION | {
    "generation": WORDS,
    "links": COUNT,  # NVLinks that lead to the switch
    "host": WORDS,  # the processor: x86 or Arm
    "node": COUNT,  # GPUs that are sold with NVLink between them
    "peak": Dimension("FLOP/s"),  # of the matrix units: bf16 in, no sparsity
    "memory": Dimension("bytes"),
    "memory_bandwidth": SPEED,
    "products": SHARE,  # of the peak, what the best matrix product reaches that somebody measured
}
Generation = namedtuple("Generation", GENERATION)


@dataclass(frozen=True, eq=False)
class Gpu(DataSheet):
    """A GPU's figures, and its generation's; `value` gives one of FIGURES."""

    @cached_property
    def generation(self) -> Generation:
        self.value("generation", NCCL)  # where it is missing, so is all the rest
        return Generation(*(self.value(figure, NCCL) for figure in GENERATION))

    @cached_property
    def blackwell(self) -> bool:
        """Whether NCCL's exceptions for Blackwell and later generations hold."""
        return self.generation.compute_capability >= 100

    @cached_property
    def nvlink(self) -> float:
        """Bytes/s of all its NVLinks, each way, after the links' own headers (a fifth: NVIDIA/nccl-tests#212)."""
        return self.value("links", NCCL) * self.generation.link


@cache
def gpus(file: Path = FILE) -> dict[str, Gpu]:
    """All GPUs of a file, by name.  Raises ValueError for a mistake in it."""
    sheets, known = data_sheets("GPU", file, FIGURES), {}
    for name, sheet in sheets.items():
        figures = sheet.figures
        if figures.keys() <= GENERATION.keys():
            continue  # a generation
        if "generation" in figures:
            generation, _, place = figures["generation"]
            if generation not in sheets:
                raise ValueError(f"{place}: the generation {generation!r} has no rows.")
            figures = sheets[generation].figures | figures
        known[name] = Gpu("GPU", name, file, figures)
    return known


def gpu(name: str) -> Gpu:
    """A GPU by its name.  Raises ValueError for one that gpus.csv has not."""
    if name not in gpus():
        raise ValueError(f"no figures for {name!r}, only for {', '.join(gpus())}; more go into machines/{FILE.name}.")
    return gpus()[name]
