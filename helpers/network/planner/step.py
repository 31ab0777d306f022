"""The price of a step: what a division sends, how long it computes, and what it waits for.

Computing is a roofline (Williams et al. 2009): a matrix product takes its floating point operations at a share of the
peak, or its bytes at the memory's bandwidth, whichever is longer; everything between the products takes the memory's
time for what a layer keeps for backward.  Messages take what NCCL takes for them (network/tuner.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...format import duration, size
from ...frontend import show
from ..compute import PEAK_FLOPS
from ..machine import Machine
from ..presets import nvlink_node, rails
from ..tuner import Nccl, nccl
from .division import Division
from .memory import MIXED, Bytes, Memory, held_parameters, layer_activations, memory
from .shape import Shape


class Hbm(NamedTuple):
    """A GPU's memory, by NVIDIA's data sheets, whose GB here is a GiB."""

    nbytes: float
    bandwidth: float  # bytes/s


HBM = {
    "A100": Hbm(80 * 2**30, 2.039e12),
    "H100": Hbm(80 * 2**30, 3.35e12),
    "H200": Hbm(141 * 2**30, 4.8e12),
    "B200": Hbm(180 * 2**30, 7.7e12),
    "GB200": Hbm(186 * 2**30, 8e12),
}

# --- fitted, on the rows of runs.py that say so ---------------------------------------------------

# Of the peak, what a large matrix product reaches in a run: a GPU that works hard lowers its clock.
PRODUCTS = {"A100": 0.68, "H100": 0.50}
# Times that the memory carries what a layer keeps for backward: in a forward; in a backward twice as often.
PASSES = 2.25

# --- assumed ---------------------------------------------------------------------------------------

NEWER_PRODUCTS = 0.50  # of a GPU for which nothing was fitted: as on H100
# Of what products reach, what flash attention does; on A100 it is 50 to 73 % of the peak at best (arXiv 2307.08691).
FLASH = 0.6
USABLE = 0.97  # of the memory: CUDA and NCCL take the rest
ADAM_BYTES = 30  # of a parameter, read and written by an update: copy, mean, square both, gradient and parameter one


class Overlap(NamedTuple):
    """What a program computes meanwhile: the share of these messages' time that can hide behind computing."""

    tensor: float = 0.0
    data: float = 1.0
    pipeline: float = 1.0
    context: float = 1.0


@dataclass(frozen=True)
class Step:
    """A step's price for one GPU of the fullest stage.  Seconds; bytes sent."""

    model: Shape
    division: Division
    machine: Machine
    batch: int
    memory: Memory
    sent: dict[str, float]  # by kind
    seconds: dict[str, float]  # by part; they add up

    @property
    def time(self) -> float:
        return sum(self.seconds.values())

    @property
    def flops(self) -> float:
        """Floating point operations a second and GPU that the model needs: what MFU counts."""
        return self.model.flops() * self.model.length * self.batch / (self.time * self.division.gpus)

    @property
    def mfu(self) -> float:
        """Of the peak."""
        return self.flops / PEAK_FLOPS[self.machine.gpus.name]

    @property
    def tokens(self) -> float:
        """A second and GPU."""
        return self.model.length * self.batch / (self.time * self.division.gpus)

    @property
    def capacity(self) -> float:
        """Bytes of a GPU's memory that a program can use."""
        return capacity(self.machine)

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.capacity

    def __repr__(self) -> str:
        gpu = self.machine.gpus.name
        sent = [f"{kind} {size(nbytes)}" for kind, nbytes in self.sent.items() if nbytes]
        parts = [f"{part} {duration(seconds)}" for part, seconds in self.seconds.items() if seconds > self.time / 1e4]
        return (
            f"{self.model.name} on {self.division.gpus:,} x {gpu}: {self.division}\n"
            f"  step     {duration(self.time)}, {self.flops / 1e12:.0f} TFLOP/s a GPU, MFU {self.mfu:.1%}\n"
            f"           {', '.join(parts)}\n"
            f"  memory   {self.memory!r}; {'fits' if self.fits else 'does not fit'} into {size(self.capacity)}\n"
            f"  sends    {', '.join(sent) or 'nothing'}, a GPU and step"
        )

    def draw(self):
        """The Picture: memory, seconds and bytes, each a bar of its parts."""
        from .picture import draw_step

        return draw_step(self)

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))


def cluster(gpu: str, gpus: int, nic: float = 50e9, node: int = 8) -> Machine:
    """Nodes of `node` GPUs joined by NVSwitch, with a card for each GPU; a single node where there are no more GPUs.

    nic: bytes/s of a card.  Raises ValueError where the nodes would not be full, or there are no figures for a GPU.
    """
    if gpus <= node:
        return nvlink_node(gpu, gpus)
    if gpus % node:
        raise ValueError(f"nodes have {node} GPUs: {node} must divide {gpus}.")
    return rails(gpus // node, gpu, nic, node)


def capacity(machine: Machine) -> float:
    """Bytes of a GPU's memory that a program can use.  Raises ValueError where there are no figures for it."""
    if machine.gpus is None or machine.gpus.name not in HBM:
        raise ValueError(f"{machine.name} has no GPUs that there are figures for: take cluster().")
    return USABLE * HBM[machine.gpus.name].nbytes


def step(
    model: Shape,
    division: Division,
    batch: int,
    machine: Machine,
    *,
    flash: bool = True,
    overlap: Overlap = Overlap(),
    bytes_: Bytes = MIXED,
    products: float | None = None,
) -> Step:
    """Memory, bytes and seconds of one step of `batch` sequences.

    flash: attention in one kernel that never writes the scores, and computes only the causal half.
    products: the share of the peak; None for the fitted one.
    Raises ValueError for a division that cannot be, or that is not of as many GPUs as the machine has.
    """
    held = memory(model, division, batch, bytes_, flash)
    capacity(machine)
    if division.gpus != machine.gpus.node * machine.gpus.nodes:
        raise ValueError(
            f"data x tensor x pipeline x context is {division.gpus}, and {machine.name} has "
            f"{machine.gpus.node * machine.gpus.nodes} GPUs: the product must be the number of GPUs."
        )
    return _Pricing(model, division, batch, machine, flash, overlap, bytes_, products).step(held)


class _Pricing:
    """One division's quantities, each a few lines."""

    def __init__(
        self,
        model: Shape,
        division: Division,
        batch: int,
        machine: Machine,
        flash: bool,
        overlap: Overlap,
        bytes_: Bytes,
        products: float | None,
    ) -> None:
        self.model, self.division, self.batch, self.machine = model, division, batch, machine
        self.flash, self.overlap, self.bytes = flash, overlap, bytes_
        name = machine.gpus.name
        self.rate = PEAK_FLOPS[name] * (products or PRODUCTS.get(name, NEWER_PRODUCTS))
        self.bandwidth = HBM[name].bandwidth
        self.layers = division.layers(model)
        self.held = max(held_parameters(model, division, stage) for stage in (0, 1))
        self.microbatches = division.microbatches(batch)
        self.tokens = model.length / division.context * division.microbatch  # that a rank works on at a time

    def step(self, held: Memory) -> Step:
        d, forward = self.division, self.forward()
        again = {"none": 0.0, "selective": self.attention_seconds(), "full": forward}[d.recompute]
        computing = self.layers * (3 * forward + again) + self.ends() / d.pipeline
        sent, tensor = self.tensor()
        context_sent, context = self.context()
        microbatch = computing + tensor + context
        pipeline_sent, pipeline = self.pipeline()
        data_sent, data = self.data(self.layers * forward, computing)
        compute = self.microbatches * computing
        seconds = {
            "compute": compute,
            "tensor": self.microbatches * tensor,
            "context": self.microbatches * context,
            "bubble": (d.pipeline - 1) / d.chunks * microbatch,
            "pipeline": pipeline,
            "data": data,
            "optimizer": self.optimizer(),
        }
        sent = {"tensor": sent, "context": context_sent, "pipeline": pipeline_sent, "data": data_sent}
        return Step(self.model, d, self.machine, self.batch, held, sent, seconds)

    # --- computing ------------------------------------------------------------------------

    def product_seconds(self, parameters: float) -> float:
        """Of all tokens of a microbatch with a matrix of so many parameters."""
        return max(2 * parameters * self.tokens / self.rate, 2 * parameters / self.bandwidth)

    def attention_seconds(self) -> float:
        """Of a layer: scores, softmax, the sum of values."""
        flops = self.tokens * self.model.attention_flops(causal=self.flash) / self.division.tensor
        if self.flash:
            return flops / (self.rate * FLASH)
        kept = (4 + self.model.dropout) * self.model.heads * self.model.length * self.tokens / self.division.tensor
        return flops / self.rate + PASSES * kept / self.bandwidth

    def forward(self) -> float:
        """Seconds of a layer and a microbatch."""
        between = layer_activations(self.model, self.division, "selective") * PASSES / self.bandwidth
        return self.product_seconds(self.model.matrices / self.division.tensor) + self.attention_seconds() + between

    def ends(self) -> float:
        """Seconds of the output's product, forward and backward, and of the logits in float32."""
        logits = 4 * self.model.vocabulary * self.tokens / self.division.tensor
        return 3 * (
            self.product_seconds(self.model.embedding / self.division.tensor) + PASSES * logits / self.bandwidth
        )

    def optimizer(self) -> float:
        d = self.division
        updated = self.held / (d.data * d.context if d.shard else 1)
        return updated * ADAM_BYTES / self.bandwidth

    # --- sending --------------------------------------------------------------------------

    def collective(self, name: str, nbytes: float, kind: str) -> float:
        """Seconds among the GPUs of one group: tensor ranks are neighbours, the others lie as far apart as those within."""
        d = self.division
        ranks, apart = {
            "tensor": (d.tensor, 1),
            "context": (d.context, d.tensor),
            "data": (d.context * d.data, d.tensor),
            "pipeline": (2, d.tensor * d.context * d.data),
        }[kind]
        return _price(name, self.machine, ranks, apart)(nbytes).seconds

    def tensor(self) -> tuple[float, float]:
        """(bytes a step, seconds a microbatch): four all_reduces a layer, or an all_gather and a reduce_scatter for each."""
        t, d = self.division.tensor, self.division
        if t == 1:
            return 0.0, 0.0
        whole = 2 * self.tokens * self.model.hidden
        times = 4 + 2 * (d.recompute == "full")
        if d.sequence:
            one = self.collective("all_gather", whole, "tensor") + self.collective("reduce_scatter", whole, "tensor")
        else:
            one = self.collective("all_reduce", whole, "tensor")
        sent = self.microbatches * self.layers * times * 2 * (t - 1) / t * whole
        return sent, self.layers * times * one * (1 - self.overlap.tensor)

    def context(self) -> tuple[float, float]:
        """(bytes a step, seconds a microbatch): keys and values forward, again backward, and their gradients."""
        c, d = self.division.context, self.division
        if c == 1:
            return 0.0, 0.0
        whole = 2 * 2 * self.model.kv_width / d.tensor * self.tokens * c
        times = 3 + (d.recompute == "full")
        one = self.collective("all_gather", whole, "context")
        exposed = self.layers * max(0.0, times * one - self.overlap.context * 3 * self.attention_seconds())
        return self.microbatches * self.layers * times * (c - 1) / c * whole, exposed

    def pipeline(self) -> tuple[float, float]:
        """(bytes, seconds) a step: an activation forward and its gradient backward at each border of a rank's stages."""
        d = self.division
        if d.pipeline == 1:
            return 0.0, 0.0
        nbytes = 2 * self.tokens * self.model.hidden / d.tensor  # the tensor ranks send a part each
        messages = 2 * d.chunks * self.microbatches
        seconds = messages * self.collective("send", nbytes, "pipeline") * (1 - self.overlap.pipeline)
        return messages * nbytes, seconds

    def data(self, forward: float, computing: float) -> tuple[float, float]:
        """(bytes, seconds) a step, of what computing does not hide."""
        d = self.division
        n = d.data * d.context
        if n == 1:
            return 0.0, 0.0
        gradients, parameters = self.held * self.bytes.gradient, self.held * self.bytes.parameter
        share = (n - 1) / n
        if d.shard == 0:
            exposed = self.collective("all_reduce", gradients, "data")
            return 2 * share * gradients, max(0.0, exposed - self.overlap.data * (computing - forward))
        scatter = self.collective("reduce_scatter", gradients, "data")
        gather = self.collective("all_gather", parameters, "data")
        if d.shard < 3:
            times = self.microbatches if d.shard == 2 else 1
            hidden = self.overlap.data * (computing - forward)
            exposed = times * max(0.0, scatter - hidden) + max(0.0, gather - self.overlap.data * forward)
            return share * (times * gradients + parameters), exposed
        gather = self.layers * self.collective("all_gather", parameters / self.layers, "data")  # layer by layer
        scatter = self.layers * self.collective("reduce_scatter", gradients / self.layers, "data")
        exposed = max(0.0, gather - self.overlap.data * forward)
        exposed += max(0.0, gather + scatter - self.overlap.data * (computing - forward))
        return self.microbatches * share * (2 * parameters + gradients), self.microbatches * exposed


@lru_cache(maxsize=4096)
def _price(name: str, machine: Machine, ranks: int, apart: int) -> Nccl:
    return nccl(name, machine, np.arange(ranks) * apart)
