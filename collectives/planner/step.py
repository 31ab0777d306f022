"""The price of an optimizer step: a division's messages, seconds of computing, and waits.

Every figure is for one GPU of the fullest pipeline rank.
"""

import textwrap
from typing import NamedTuple

from ..format import duration, size
from ..frontend import show
from ..lazy import Later
from ..machines.gpu import gpu as gpu_of
from ..machines.topology import Machine
from .communication import (
    Messages,
    context_messages,
    data_calls,
    data_messages,
    expert_messages,
    network,
    pipeline_messages,
    tensor_messages,
)
from .compute import PLANNER, Compute
from .division import Division
from .memory import LEFT_OUT, MARGIN, MIXED, Bytes, Memory, held_parameters, memory
from .shape import Shape
from .software import LATEST, Program, program_named

USABLE = 0.97  # of the memory: CUDA and NCCL take the rest
# A parameter's, in an update: copy, mean and square are read and written (24), the gradient read (4), it written (2).
ADAM_BYTES = 30
# MFU of the best run of training_runs.csv, by the operations that Shape.flops counts: Llama 2 7B on A100.
BEST_MFU = 0.68
LEAST_TOKENS = 4096  # that a context rank has of a sequence in training_runs.csv


class Band(NamedTuple):
    """The range in which nine of ten runs are expected, and the median."""

    low: float
    median: float
    high: float

    def of(self, seconds: float) -> "Band":
        return Band(*(seconds * each for each in self))

    def __str__(self) -> str:
        return f"{duration(self.median)} ({duration(self.low)} to {duration(self.high)})"


# Published seconds / planned ones, each source of check() weighing the same.
BANDS = {"benchmark": Band(0.78, 1.02, 1.33), "production": Band(1.0, 1.21, 1.46)}


class Inside(NamedTuple):
    """A step without its data parallelism: seconds per step, and each kind's messages."""

    compute: Compute
    microbatches: int
    seconds: dict[str, float]
    messages: dict[str, Messages]

    @property
    def time(self) -> float:
        return sum(self.seconds.values())


def inside(
    model: Shape,
    d: Division,
    microbatches: int,
    machine: Machine,
    program: Program,
    bytes_: Bytes,
    products: float | None = None,
) -> Inside:
    """A replica's seconds and messages for its microbatches."""
    compute, net = Compute(model, d, machine, program, products), network(machine)
    given = net, program.overlap, microbatches, bytes_
    messages = {
        "tensor": tensor_messages(model, d, *given) if d.tensor > 1 else Messages(),
        "context": context_messages(model, d, *given, compute.attention) if d.context > 1 else Messages(),
        "experts": expert_messages(model, d, *given) if d.experts > 1 else Messages(),
        "pipeline": pipeline_messages(model, d, *given) if d.pipeline > 1 else Messages(),
    }
    busy = compute.forward + compute.backward
    waits = sum(messages[kind].exposed for kind in ("tensor", "context", "experts")) / microbatches
    seconds = {
        "compute": microbatches * busy,
        "tensor": messages["tensor"].exposed,
        "context": messages["context"].exposed,
        "experts": messages["experts"].exposed,
        "bubble": (d.pipeline - 1) / d.chunks * (busy + waits),
        "pipeline": messages["pipeline"].exposed,
    }
    return Inside(compute, microbatches, seconds, messages)


def across(model: Shape, d: Division, machine: Machine, program: Program, bytes_: Bytes, within: Inside) -> Messages:
    """The data ranks' messages, given a replica's work within."""
    if d.replicas == 1:
        return Messages()
    calls = data_calls(model, d, network(machine), bytes_)
    return data_messages(d, calls, program.overlap, within.microbatches, within.compute)


def updating(model: Shape, d: Division, bandwidth: float) -> float:
    """Seconds of the optimizer's update."""
    held = max((held_parameters(model, d, stage) for stage in (0, 1)), key=lambda held: held.total)
    shards = (d.shards, d.expert_replicas // d.expert_copies) if d.shard else (1, 1)
    return sum(count / ranks for count, ranks in zip(held, shards)) * ADAM_BYTES / bandwidth


class Step:
    """The price of an optimizer step of `batch` sequences, for one GPU of the fullest pipeline rank.

    program: a name in PROGRAMS, or a Program.  products: the share of the peak that matrix products reach, 0 to 1;
    None for what training steps reach of gpus.csv's.  capacity: bytes of a GPU's memory; None for gpus.csv's.
    .messages: of each kind of parallelism, and .sent their bytes per step.  .layer: seconds of a layer's attention (scores
    and values) and feed-forward blocks, forward, for one microbatch.  .seconds: of each part; they add up to .time, which
    takes no account of what no plan knows.  .benchmark and .production: Bands of seconds, of what makers publish of their
    programs and of what trainings publish of theirs.
    .fits: with MARGIN to spare.  .warnings: sentences, where something is beyond what was published, or slow.
    Raises ValueError for a division that is not possible, or whose product is not the machine's number of GPUs.
    """

    def __init__(
        self,
        model: Shape,
        division: Division,
        batch: int,
        machine: Machine,
        *,
        program: str | Program = LATEST,
        bytes_: Bytes = MIXED,
        products: float | None = None,
        capacity: float | None = None,
    ) -> None:
        self.model, self.division, self.batch, self.machine = model, division, batch, machine
        self.program = program_named(program)
        self.memory: Memory = memory(model, division, batch, bytes_, self.program.flash)
        self.capacity = usable(machine, capacity)
        if division.gpus != machine.gpus.count:
            there = f"{machine.name} has {machine.gpus.count} GPUs: the product must be the number of GPUs."
            raise ValueError(f"data x tensor x pipeline x context is {division.gpus}, and {there}")
        d = division
        within = inside(model, d, d.microbatches(batch), machine, self.program, bytes_, products)
        data = across(model, d, machine, self.program, bytes_, within)
        self.layer = {kind: getattr(within.compute, kind) for kind in ("attention", "feed_forward")}
        self.messages = within.messages | {"data": data}
        self.sent = {kind: each.sent for kind, each in self.messages.items()}
        update = updating(model, d, within.compute.bandwidth)
        self.seconds = within.seconds | {"data": data.exposed, "optimizer": update}
        self.time = sum(self.seconds.values())  # seconds per step
        self.benchmark, self.production = (band.of(self.time) for band in BANDS.values())
        self.tokens = model.length * batch / (self.time * d.gpus)  # per second and GPU
        self.flops = model.flops() * self.tokens  # that are needed, per second and GPU
        self.mfu = self.flops / gpu_of(machine.gpus.name).value("peak", PLANNER)
        self.needed = self.memory.total * (1 + MARGIN)  # bytes, with what is kept free
        self.fits = self.needed <= self.capacity

    @property
    def warnings(self) -> list[str]:
        d, microbatches = self.division, self.division.microbatches(self.batch)
        words = []
        if self.mfu > BEST_MFU:
            words.append(f"MFU {self.mfu:.0%} is more than anybody has published; the best is {BEST_MFU:.0%}.")
        gathers = d.shard == 3 and d.shards > 1 and d.gather == "microbatch" and microbatches > 1
        if gathers and d.tensor > 1 and d.microbatch == 1:
            words.append(
                f"with microbatch 1, ZeRO-3 gathers all parameters {2 * microbatches:,} times per step, for products "
                f"that {d.tensor} tensor ranks cut: take larger microbatches, or gather once per step if that fits."
            )
        if d.context > 1 and self.model.length / d.context < LEAST_TOKENS:
            tokens = self.model.length // d.context
            words.append(f"{tokens:,} tokens of a sequence per context rank are fewer than any published run has.")
        if not self.fits and self.memory.total <= self.capacity:
            words.append(
                f"{size(self.memory.total)} would fit into {size(self.capacity)}, but published peaks are usually up to "
                f"{MARGIN:.0%} more: {LEFT_OUT} are left out."
            )
        return words

    def __repr__(self) -> str:
        sent = [f"{kind} {size(nbytes)}" for kind, nbytes in self.sent.items() if nbytes]
        parts = [f"{part} {duration(seconds)}" for part, seconds in self.seconds.items() if seconds > self.time / 1e4]
        fits = "fits" if self.fits else "may not fit" if self.memory.total <= self.capacity else "does not fit"
        room = f"{fits} into {size(self.capacity)} with {MARGIN:.0%} to spare"
        held = [f"{name} {size(nbytes)}" for name, nbytes in self.memory._asdict().items() if nbytes]
        lines = [
            f"{self.model.name} on {self.division.gpus:,} x {self.machine.gpus.name}: {self.division}",
            f"  step        {duration(self.time)}, {self.flops / 1e12:.0f} TFLOP/s per GPU, MFU {self.mfu:.1%}",
            f"              {', '.join(parts)}",
            f"  expect      {self.benchmark} in a maker's benchmark",
            f"              {self.production} in production",
            f"  memory      {size(self.memory.total)} per GPU; {room}",
            f"              {', '.join(held)}",
            f"  sends       {', '.join(sent) or 'nothing'}, per GPU and step",
        ]
        for words in self.warnings:
            lines.append(textwrap.fill(words, 100, initial_indent="  warning     ", subsequent_indent=" " * 14))
        return "\n".join(lines)

    draw = Later(".plan_charts", "draw_step")

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


step = Step  # as one asks for it: step(shape("Llama 3 8B"), Division(8), 64, cluster("H100", 8))


def usable(machine: Machine, capacity: float | None = None) -> float:
    """Bytes of a GPU's memory that a program can use.  Raises ValueError where there are no figures for it.

    capacity: of the memory, where it is not gpus.csv's.
    """
    if machine.gpus is None:
        raise ValueError(f"{machine.name} has no GPUs that there are figures for: take cluster().")
    return USABLE * (capacity or gpu_of(machine.gpus.name).value("memory", PLANNER))
