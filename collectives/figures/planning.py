"""A division whose degrees can be moved, and its cost, in words and bars; by the standard library alone, for a page."""

from dataclasses import asdict

from ..format import duration, size
from ..machines.presets import cluster
from ..planner.bars import shares
from ..planner.division import RECOMPUTE, Division
from ..planner.memory import MARGIN
from ..planner.shape import Shape
from ..planner.software import LATEST, Program
from ..planner.step import Step, step
from .web.panel import Control, at

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


class Planning:
    """A model on as many GPUs as its division needs: `.step` is its cost, `react` moves the division.

    batch: sequences per step.  nic: bytes/s of a GPU's card.  Raises ValueError for a division that cannot be.
    """

    def __init__(
        self,
        model: Shape,
        division: Division = Division(),
        batch: int = 512,
        *,
        gpu: str = "H100",
        nic: float = 50e9,
        program: str | Program = LATEST,
    ) -> None:
        self.model, self.gpu, self.batch, self.nic, self.program = model, gpu, batch, nic, program
        self.choose(division)

    def choose(self, division: Division) -> "Planning":
        """Another division.  Raises ValueError for one that cannot be."""
        division.check(self.model, self.batch)
        machine = cluster(self.gpu, division.gpus, self.nic)
        self.step: Step = step(self.model, division, self.batch, machine, program=self.program)
        return self

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
        """The figures for a division, or the reason why it is not possible."""
        was = self.step
        try:
            now = self.choose(was.division.with_(**chosen)).step
        except ValueError as reason:
            return {"words": str(reason), "bars": shares(was), "text": repr(was), "stale": True}
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
        return {"words": words, "bars": shares(now), "text": repr(now), "possible": True}

    def asked(self) -> dict:
        """The arguments from which `planning` remakes it, as JSON."""
        given = {"model": asdict(self.model), "division": asdict(self.step.division), "batch": self.batch}
        return given | {"gpu": self.gpu, "nic": self.nic, "program": self.program}


def planning(asked: dict) -> Planning:
    """The Planning that `Planning.asked` describes."""
    model, division = Shape(**asked["model"]), Division(**asked["division"])
    return Planning(model, division, **{name: asked[name] for name in ("batch", "gpu", "nic", "program")})


def plan_data(asked: dict, was: dict, places: dict) -> dict:
    """A page's content with the controls at these places, after `was`, which was possible."""
    moved = planning(asked)
    controls = moved.controls()
    moved.react(at(controls, was))
    return moved.react(at(controls, places))
