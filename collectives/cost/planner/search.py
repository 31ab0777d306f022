"""plan(): every way to divide a model over a cluster that fits, the fastest first."""

from itertools import product
from typing import Iterable, Iterator, Sequence

from ...format import aligned, duration, size
from ...frontend import show
from ...lazy import Later
from ...machines.model import Machine
from .division import KINDS, MIXED, RECOMPUTE, Bytes, Division, memory
from .shape import Shape
from .step import Overlap, Step, capacity, step

MICROBATCHES = (1, 2, 4, 8)
SHOWN = 12
DEGREES = ("data", "tensor", "pipe", "ctx", "ZeRO", "mb", " recompute")
HEAD = (*DEGREES, "memory", "step", "MFU", "bubble", " waits most for")  # of the table


class Plans(list):
    """Steps that fit in memory, the fastest first: for each choice of degrees and sharding, the one with the best
    microbatch, chunks and recomputation.  Where times agree to three digits, fewer kinds of parallelism come first.

    tried: possible divisions.  too_large: those that don't fit.  smallest: which of these needs least memory, or None.
    """

    def __init__(self, steps: Iterable[Step], tried: int, too_large: int, smallest: Step | None) -> None:
        super().__init__(sorted(steps, key=_order))
        self.tried, self.too_large, self.smallest = tried, too_large, smallest
        fastest = {s.division.kinds: s for s in reversed(self)}  # of each mixture of kinds of parallelism
        self.mixtures: list[Step] = sorted(reversed(fastest.values()), key=_order)
        self.shown = self.mixtures[:SHOWN]  # in the table and the picture

    def __repr__(self) -> str:
        if not self:
            fewest = self.smallest and f"; {self.smallest.division} needs least, {size(self.smallest.memory.total)}"
            return f"none of {self.tried:,} divisions fits{fewest or ''}"
        first, last = self[0], self[-1]
        batch = f"{first.batch:,} sequences of {first.model.length:,} tokens"
        lines = [f"{first.model.name}, {batch}, {first.machine.name}"]
        lines += [f"  {self.too_large:,} of {self.tried:,} divisions do not fit; the fastest of each mixture of kinds:"]
        rows = [HEAD]
        for s in self.shown:
            d = s.division
            pipe = f"{d.pipeline} x {d.chunks}".removesuffix(" x 1")
            degrees = map(str, (d.data, d.tensor, pipe, d.context, d.shard, d.microbatch))
            figures = (size(s.memory.total), duration(s.time), f"{s.mfu:.1%}", f"{s.seconds['bubble'] / s.time:.0%}")
            part = max((part for part in s.seconds if part != "compute"), key=s.seconds.get)
            waits = f" {part} {s.seconds[part] / s.time:.0%}" if s.seconds[part] > s.time / 200 else " nothing"
            rows.append((*degrees, f" {d.recompute}", *figures, waits))
        right = [*range(6), *range(7, 11)]
        lines.append(aligned(rows, right, indent="  ", gap=" ", least=(6, 6, 9, 4, 5, 3, 11, 10, 8, 6, 7)))
        if (more := len(self.mixtures) - SHOWN) > 0:
            lines.append(f"  ... {more} more")
        lines.append(f"  the slowest that fits, {last.division}: {duration(last.time)}, MFU {last.mfu:.1%}")
        return "\n".join(lines)

    draw = Later(".picture", "draw_plans")

    def _ipython_display_(self) -> None:
        show(self.draw() if self else None, repr(self))


def _order(s: Step) -> tuple:
    return float(f"{s.time:.3g}"), len(s.division.kinds), s.time


def plan(
    model: Shape,
    machine: Machine,
    batch: int,
    *,
    without: Sequence[str] = (),
    shards: Sequence[int] = (1, 2, 3),
    flash: bool = True,
    overlap: Overlap = Overlap(),
    bytes_: Bytes = MIXED,
) -> Plans:
    """The Plans of a model on a cluster: the divisions that fit into its memory, the fastest first.

    batch: sequences per step.  without: kinds of parallelism to leave out.  shards: the stages of ZeRO to try.
    flash, overlap, bytes_: as `step` takes them.
    Degrees of tensor and context are powers of two, and tensor ranks stay in a node.
    Raises ValueError for an unknown kind, or a machine whose GPUs there are no figures for.
    """
    if unknown := sorted(set(without) - set(KINDS)):
        raise ValueError(f"kinds of parallelism are data, tensor, pipeline and context, not {', '.join(unknown)}.")
    available = capacity(machine)
    possible = divisions(model, machine, batch, shards, flash)
    needed = {d: memory(model, d, batch, bytes_, flash).total for d in possible if not set(d.kinds) & set(without)}
    too_large = [division for division, nbytes in needed.items() if nbytes > available]

    def price(division: Division) -> Step:
        return step(model, division, batch, machine, flash=flash, overlap=overlap, bytes_=bytes_)

    best: dict[tuple, Step] = {}
    for s in sorted((price(d) for d in needed if needed[d] <= available), key=lambda s: s.time):
        best.setdefault((*(getattr(s.division, kind) for kind in KINDS), s.division.shard), s)
    smallest = price(min(too_large, key=needed.get)) if too_large else None
    return Plans(best.values(), len(needed), len(too_large), smallest)


def divisions(model: Shape, machine: Machine, batch: int, shards: Sequence[int], flash: bool) -> Iterator[Division]:
    """All divisions that are possible."""
    gpus = machine.gpus.count
    recompute = ("none", "full") if flash else RECOMPUTE
    for tensor, context in product(_powers(machine.gpus.node), _powers(gpus)):
        for pipeline in (k for k in range(1, gpus + 1) if gpus % (tensor * context * k) == 0):
            data = gpus // (tensor * context * pipeline)
            stages = shards if data * context > 1 else (1,)
            for how in product(stages, (True,), _chunks(model, pipeline), MICROBATCHES, recompute):
                division = Division(data, tensor, pipeline, context, *how)
                if not division.obstacle(model, batch):
                    yield division


def _chunks(model: Shape, pipeline: int) -> list[int]:
    """Stages per rank to try: one, two, and one per layer."""
    layers = -(-model.layers // pipeline)
    return sorted({1, *(c for c in (2, layers) if layers % c == 0)}) if pipeline > 1 else [1]


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length()) if most % 2**k == 0]
