"""The bill of a run: the seconds that calls recorded here would take on a machine that is elsewhere.

bill(run(training_step), rails(64), grid={"dp": 2, "tp": 2}, scale={"dp": 32, "tp": 4}, larger=1000)
"""

from collections import defaultdict
from functools import cache
from math import prod
from typing import Iterable, Mapping, NamedTuple

import numpy as np

from ..format import align, duration, size
from ..log.calls import Call
from ..log.collectives import ON_WINDOWS, of
from ..machines.topology import Machine
from ..outcome.run import Run
from .result import Cost
from .tuner import nccl

BARRIER_BYTES = 4  # ProcessGroupNCCL's barrier is an all_reduce of one element


class Item(NamedTuple):
    """Calls of one op over groups of one kind, as one rank makes them."""

    op: str
    over: str  # which ranks
    ranks: int  # of one group, on the machine
    nodes: int  # that such a group spans
    calls: int
    nbytes: float  # S, all calls together
    seconds: float
    latency: float  # seconds of it that an empty buffer would take, too
    by: str  # NCCL's algorithm and protocol


class Bill(list):
    """Items of the rank that pays most, the dearest first."""

    def __init__(
        self,
        items: Iterable[Item],
        rank: int,
        machine: Machine,
        world_size: int,
        issued: int = 0,
        captured: int = 0,
        unpriced: int = 0,
        band: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(items)
        self.issued, self.captured = issued, captured  # of these calls: left to a stream, gone into a CUDA graph
        self.unpriced = unpriced  # puts, gets, signals, and waits on windows, of all ranks
        self.band = band  # seconds of all, where every call takes the least or the most of nine of ten systems
        self.rank, self.machine, self.world_size = rank, machine, world_size  # rank: as it was recorded
        self.seconds = sum(item.seconds for item in self)  # one call after the other; overlapping calls cost less
        self.latency = sum(item.latency for item in self)

    def __repr__(self) -> str:
        rows = [("op", "over", "ranks", "nodes", "calls", "bytes", "seconds", "latency", "by")]
        for op, over, *counts, nbytes, seconds, latency, by in self:
            share = latency / seconds if seconds else 0.0
            rows.append((op, over, *map("{:,}".format, counts), size(nbytes), duration(seconds), f"{share:.0%}", by))
        table = align(rows, right=range(2, 8), indent="  ", least=(2, 12, 6, 5, 5, 9, 9, 7))
        share = f", {self.latency / self.seconds:.0%} of it latency" if self.seconds else ""
        calls = f"rank {self.rank}'s calls, as one of {self.world_size:,} on {self.machine.name}"
        around = f"\n  nine of ten systems: {duration(self.band[0])} to {duration(self.band[1])}" if self.band else ""
        known = f"\n  {self.issued:,} of them were issued: whether they ended is not known" if self.issued else ""
        graphs = (
            f"\n  {self.captured:,} of them are in CUDA graphs: priced once, and no replay" if self.captured else ""
        )
        left = f"\n  left out: {self.unpriced:,} of all ranks' calls, on windows, have no price" if self.unpriced else ""
        return f"{table}\n  one after the other: {duration(self.seconds)}{share}; {calls}{around}{known}{graphs}{left}"


def bill(
    what: Run | Iterable[Call],
    machine: Machine,
    *,
    grid: Mapping[str, int] | None = None,
    scale: int | Mapping[str, int] = 1,
    larger: float = 1.0,
) -> Bill:
    """The bill of a run: every recorded call's seconds if NCCL makes it on this machine.

    what: a Run, or some of its calls.
    grid: how the recorded ranks are laid out, the last dimension fastest, as in init_device_mesh:
        {"dp": 2, "tp": 4} are ranks 0 to 3 and 4 to 7 for tp.  None: one row of all.
    scale: how many times as long each dimension is in the real job, one number for all or one each.  Its ranks are
        placed on the machine in the same order, node by node; neighbors stay neighbors.  S, a call's buffer, stays.
    larger: S on the machine / S as recorded.

    Sends and receives pass each other: a rank waits for the more of the two.  Calls on a Window have no price, and are
    counted.  Raises ValueError for a grid that isn't of these ranks, a group that isn't part of it though it should grow,
    a machine too small or without NCCL.
    """
    calls = what.calls if isinstance(what, Run) else list(what)
    recorded = what.world_size if isinstance(what, Run) else 1 + max((max(c.group) for c in calls), default=0)
    layout = _Layout(grid or {"all": recorded}, scale, recorded, machine)
    price_of = cache(lambda op, ranks: nccl(op, machine, np.frombuffer(ranks, np.int64)))
    paid: dict[int, dict[tuple, list[Cost]]] = defaultdict(lambda: defaultdict(list))  # recorded rank -> kind -> costs
    for call in calls:
        if len(call.group) == 1 or call.op in ON_WINDOWS:
            continue
        over, ranks = layout.message(*call.events[0].ends) if call.is_message else layout.group(call.group)
        op, nbytes = whole_buffer(call, larger)
        price = price_of(op, ranks.tobytes())
        cost = price(nbytes)
        for e in call:
            paid[e.rank][e.op, over, price.world_size, price.nodes].append(cost)
    bills = {rank: _items(kinds) for rank, kinds in paid.items()}
    rank = max(bills, key=lambda r: (sum(item.seconds for item in bills[r]), -r), default=0)
    items, costs = bills.get(rank, []), paid.get(rank, {})
    bands = [cost.band for item in items for cost in costs[item[:4]] if cost.band]
    band = tuple(map(sum, zip(*bands))) if bands else None
    mine = [e for call in calls for e in call if e.rank == rank and len(e.group) > 1]
    captured = sum(e.captured for e in mine)
    issued = sum(e.issued is not None and e.end is None and not e.captured for e in mine)
    unpriced = sum(e.op in ON_WINDOWS for call in calls for e in call)
    return Bill(items, rank, machine, prod(layout.real), issued, captured, unpriced, band)


def _items(paid: dict[tuple, list[Cost]]) -> list[Item]:
    items = []
    for kind, costs in paid.items():
        nbytes, seconds = sum(cost.nbytes for cost in costs), sum(cost.seconds for cost in costs)
        latency = sum(cost.start + cost.latency for cost in costs)
        ways = dict.fromkeys(f"{cost.algorithm}/{cost.protocol}" for cost in costs)
        items.append(Item(*kind, len(costs), nbytes, seconds, latency, ", ".join(ways)))
    sends, receives = (sum(item.seconds for item in items if item.op == op) for op in ("send", "recv"))
    hidden = "send" if sends < receives else "recv"
    return sorted((item for item in items if item.op != hidden), key=lambda item: -item.seconds)


def whole_buffer(call: Call, larger: float = 1.0) -> tuple[str, float]:
    """NCCL's name of a call's op, and S: its whole buffer in bytes, `larger` times as large."""
    row, of_each = of(call.op), [e.nbytes for e in call]
    if call.is_message:
        return "send", max(of_each) * larger
    if not row.op:
        raise ValueError(f"there is no price for {call.op}.")
    if not row.gives:
        return "all_reduce", BARRIER_BYTES  # a barrier
    if row.gives == "own":  # ranks that never called would have passed in as much
        return row.op, sum(of_each) * len(call.group) / len(of_each) * larger
    return row.op, max(of_each) * larger


class _Layout:
    """The places of the recorded ranks on the machine."""

    def __init__(self, grid: Mapping[str, int], scale: int | Mapping[str, int], ranks: int, machine: Machine) -> None:
        if prod(grid.values()) != ranks:
            raise ValueError(f"the grid {dict(grid)} has {prod(grid.values())} ranks, and {ranks} were recorded.")
        by = scale if isinstance(scale, Mapping) else dict.fromkeys(grid, scale)
        if unknown := sorted(set(by) - set(grid)):
            raise ValueError(f"scale names {', '.join(unknown)}, the grid only {', '.join(grid)}.")
        if (least := min(by.values(), default=1)) < 1:
            raise ValueError(f"a dimension is scaled by 1 or more, not by {least}.")
        self.grid, self.recorded = dict(grid), tuple(grid.values())
        self.real = tuple(n * by.get(name, 1) for name, n in grid.items())
        if (most := machine.most_ranks) < prod(self.real):
            raise ValueError(f"{machine.name} has {most:,} ranks, and the job would have {prod(self.real):,}.")

    def group(self, ranks: tuple[int, ...]) -> tuple[str, np.ndarray]:
        """(which dimensions a group varies in, its ranks on the machine)."""
        at = [np.unique(c) for c in np.unravel_index(np.array(ranks), self.recorded)]
        if any(len(c) not in (1, n) for c, n in zip(at, self.recorded)) or prod(map(len, at)) != len(ranks):
            if self.real == self.recorded:
                return f"{len(ranks)} of {prod(self.recorded)}", np.array(ranks)
            raise ValueError(
                f"the group of ranks {', '.join(map(str, ranks))} is not a row, plane or block of the grid "
                f"{self.grid}: how it grows is not known. Give the grid that it is a row of."
            )
        axes = [np.arange(n) if len(c) > 1 else c for c, n in zip(at, self.real)]
        over = " x ".join(name for name, c in zip(self.grid, at) if len(c) > 1)
        return over, np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), self.real).ravel()

    def message(self, source: int, target: int) -> tuple[str, np.ndarray]:
        """(which dimensions a message goes along, its two ranks on the machine)."""
        at, to = np.transpose(np.unravel_index([source, target], self.recorded))
        n, real, way = np.array(self.recorded), np.array(self.real), to - at
        over = " x ".join(name for name, d in zip(self.grid, way) if d)
        round_ = (n > 2) & (np.abs(way) == n - 1)  # from one end to the other, which are neighbors
        at = np.where(round_ & (at > 0), real - 1, at)
        to = (at + np.where(round_, -np.sign(way), way)) % real
        return over, np.ravel_multi_index(tuple(np.transpose([at, to])), self.real)
