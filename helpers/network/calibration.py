"""What the model says beside what was measured and published, row by row."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from ..schedule import multi_ring_all_reduce, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from ..twin import size
from .cost import busbw, cost
from .machine import Machine
from .machines import EFFICIENCY, LAUNCH, NVLINK, nvl72, nvlink_node, rails
from .outline import outline

KIB, MIB, GIB = 2**10, 2**20, 2**30


@dataclass(frozen=True)
class Row:
    """A published bus bandwidth and the model's.  Bytes/s."""

    what: str
    nbytes: int
    published: float
    model: float
    note: str = ""  # "fitted" where the model has a figure from this very row; or what it leaves out

    @property
    def error(self) -> float:
        """model / published - 1."""
        return self.model / self.published - 1


class Table(list):
    """Rows; `median` is the median size of the error of those that nothing was fitted to."""

    @property
    def median(self) -> float:
        return statistics.median(abs(row.error) for row in self if row.note != "fitted")

    def __repr__(self) -> str:
        wide = max(len(row.what) for row in self)
        lines = [f"  {'busbw':<{wide}}   {'size':>8}   published      model    error"]
        for row in self:
            lines.append(
                f"  {row.what:<{wide}}   {size(row.nbytes):>8}   {row.published / 1e9:>9.4g}   {row.model / 1e9:>8.3g}"
                f"   {row.error:>+6.0%}   {row.note}".rstrip()
            )
        lines.append(f"  median error, without the rows fitted to: {self.median:.0%}")
        return "\n".join(lines)


def calibration() -> Table:
    """The published figures, GB/s of bus bandwidth, and what the model makes of them.

    All are results of nccl-tests, from the material of NCCL 2.30.7 and from stas00/ml-engineering.
    """
    rows = []

    def row(what: str, algorithm, machine: Machine, nbytes: int, published: float, note: str = "", **options) -> None:
        n = machine.most_ranks
        model = cost(outline(algorithm, n, **options), nbytes, machine).busbw
        rows.append(Row(what, nbytes, published * 1e9, model, note))

    for gpu, published, note in (("A100", 235, ""), ("H100", 370, "fitted"), ("H200", 367.6, ""), ("B200", 682, "")):
        row(f"8 x {gpu}, all_reduce, ring", ring_all_reduce, nvlink_node(gpu), 16 * GIB, published, note)
    row("8 x H200, all_gather, ring", ring_all_gather, nvlink_node("H200"), 16 * GIB, 361)
    row("8 x H200, reduce_scatter, ring", ring_reduce_scatter, nvlink_node("H200"), 16 * GIB, 363)
    row("8 x A100, all_reduce, small", ring_all_reduce, nvlink_node("A100"), 32 * KIB, 1.3, "fitted")
    for nbytes, published in ((32 * KIB, 1.4), (MIB, 40)):
        row("8 x H200, all_reduce, small", ring_all_reduce, nvlink_node("H200"), nbytes, published)
    row(
        "8 x H200, all_reduce",
        ring_all_reduce,
        nvlink_node("H200"),
        64 * MIB,
        347,
        "NCCL takes NVLS here, the model a ring",
    )
    row("4 nodes of 8 x H100, RoCE", multi_ring_all_reduce, rails(4, "H100"), 16 * GIB, 320, "fitted", node=8)
    row("4 nodes of 8 x B200, EFA", multi_ring_all_reduce, rails(4, "B200"), 16 * GIB, 380, node=8)
    row("GB200 NVL72", ring_all_reduce, nvl72(), 8 * GIB, 841, "NCCL takes NVLS here, the model a ring")
    for gpu, published in (("H100", 480), ("H200", 482.3), ("B200", 838)):
        seconds = in_switch_seconds(16 * GIB, 8, NVLINK[gpu] * EFFICIENCY)
        rows.append(
            Row(f"8 x {gpu}, all_reduce, NVLS", 16 * GIB, published * 1e9, busbw("all_reduce", 16 * GIB, 8, seconds),
                "the switch's own speed is not in the model")
        )  # fmt: skip
    pair = nvlink_node("H100", 2)
    level = pair.levels[0]
    bridge = pair.with_(name="H100 PCIe pair", levels=(_with_bandwidth(level, 300e9 * EFFICIENCY),))
    row(
        "2 x H100 PCIe, NVLink bridge",
        ring_all_reduce,
        bridge,
        16 * GIB,
        116,
        "far below the bridge's 300: unexplained",
    )
    return Table(rows)


def in_switch_seconds(nbytes: float, n: int, bandwidth: float) -> float:
    """An all_reduce whose sums the switch makes (NVLink SHARP, NVLS): S (1 + 1/N) bytes each way of each link.

    Each rank lets the switch read its whole buffer and gets back the sum of its N-th (S and
    S/N), then sends that sum once and gets every sum (S/N and S).  A ring has 2 (N-1)/N S: this
    is why NVLS's bus bandwidth may exceed the wire's.
    """
    return LAUNCH + nbytes * (1 + 1 / n) / bandwidth


def _with_bandwidth(level, bandwidth: float):
    return replace(level, port=replace(level.port, bandwidth=bandwidth))
