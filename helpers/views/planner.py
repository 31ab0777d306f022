"""planner(): a model on a cluster whose degrees of parallelism can be moved, and what it takes moves with them."""

from collectives.cost.planner import MARGIN, Division, Program, Shape, Step, cluster, step
from collectives.cost.planner.division import RECOMPUTE
from collectives.cost.planner.program import LATEST
from collectives.draw.canvas import Picture
from collectives.format import duration, size
from collectives.play.web.panel import Control, Panelled, shown

DEGREES = {
    "data": tuple(2**k for k in range(12)),
    "tensor": (1, 2, 4, 8),
    "pipeline": (1, 2, 4, 6, 8, 9, 14, 16, 18, 21, 32),
    "context": (1, 2, 4, 8, 16, 32),
    "chunks": (1, 2, 3, 4, 5, 6, 8, 10, 16, 20),
    "microbatch": (1, 2, 4, 8, 16),
    "copies": tuple(2**k for k in range(10)),
}
EXPERTS = (1, 2, 4, 8, 16, 32, 64)


class Planner(Panelled):
    """What `planner` returns: `.step`, `.draw()`, and in Jupyter the controls that change them."""

    def __init__(
        self, model: Shape, gpu: str, batch: int, division: Division, nic: float, program: str | Program
    ) -> None:
        self.model, self.gpu, self.batch, self.nic, self.program = model, gpu, batch, nic, program
        self.choose(division)

    def choose(self, division: Division) -> "Planner":
        """Another division, on as many GPUs as it needs.  Raises ValueError for one that cannot be."""
        division.check(self.model, self.batch)
        machine = cluster(self.gpu, division.gpus, self.nic)
        self.step: Step = step(self.model, division, self.batch, machine, program=self.program)
        return self

    def draw(self) -> Picture:
        return self.step.draw()

    def __repr__(self) -> str:
        return repr(self.step)

    def controls(self) -> list[Control]:
        d = self.step.division
        offered = DEGREES | ({"experts": EXPERTS} if self.model.experts else {})
        degrees = [
            Control(name, [(f"{k:,}", k) for k in sorted({*values, getattr(d, name)})], getattr(d, name))
            for name, values in offered.items()
        ]
        shards = [("shards nothing", 0), ("optimizer", 1), ("and gradients", 2), ("and parameters", 3)]
        words = [(f"recompute {what}", what) for what in RECOMPUTE if what != "selective" or d.recompute == what]
        gathers = [("gather each microbatch", "microbatch"), ("once a step", "step")]
        return [
            *degrees,
            Control("shard", shards, d.shard, buttons=True),
            Control("gather", gathers, d.gather, buttons=True),
            Control("recompute", words, d.recompute, buttons=True),
        ]

    def react(self, chosen: dict) -> dict:
        """What a division leads to.  Where it is not possible, the reason in words."""
        was = self.step
        try:
            now = self.choose(was.division.with_(**chosen)).step
        except ValueError as reason:
            return {"words": str(reason)}
        fits = "" if now.fits else f", too much for {size(now.capacity)} with {MARGIN:.0%} to spare"
        words = (
            f"{now.division.gpus:,} GPUs: {duration(now.time)} per step (in production {now.production}), "
            f"{now.tokens:,.0f} tokens per second and GPU, "
            f"MFU {now.mfu:.1%}, bubble {now.seconds['bubble'] / now.time:.1%}; {size(now.memory.total)} per GPU{fits}; "
            f"sends {size(sum(now.sent.values()))}"
        )
        words += "".join(f". Warning: {warning.removesuffix('.')}" for warning in now.warnings)
        if was.division != now.division:
            memory = size(was.memory.total)
            words += f" (before: {was.division.gpus:,} GPUs, {duration(was.time)}, MFU {was.mfu:.1%}, {memory})"
        return {"words": words, "picture": shown(self.draw(), repr(now))}


def planner(
    model: Shape,
    division: Division = Division(),
    batch: int = 512,
    *,
    gpu: str = "H100",
    nic: float = 50e9,
    program: str | Program = LATEST,
) -> Planner:
    """A division to play with: move its degrees, and see memory, bytes, bubble and time follow.

    division: the first one; the cluster has as many GPUs as it needs.  batch: sequences a step.  nic: bytes/s of a
    GPU's card.  program: as `step` takes it.  Raises ValueError for a division that cannot be.
    """
    return Planner(model, gpu, batch, division, nic, program)
