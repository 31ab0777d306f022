"""The price of an optimizer step: what a division sends, how long it computes, and what it waits for.

Every figure is for one GPU of the fullest pipeline rank.  Computing is a roofline (Williams et al. 2009): a product
takes its operations at a share of the peak, or its bytes at the memory's bandwidth, whichever is longer; all between
takes the memory's time for what a layer keeps for backward.  Messages take what NCCL takes for them (cost/tuner.py).
"""

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from ...format import duration, size
from ...frontend import show
from ...lazy import Later
from ...machines.gpu import gpu as gpu_of
from ...machines.model import Machine
from ...machines.presets import nvlink_node, rails
from ...record.collectives import least
from ..tuner import Nccl, nccl
from .division import MIXED, Bytes, Division, Memory, held_parameters, layer_activations, memory
from .shape import Shape

PLANNER = "the planner"  # who needs a GPU's figures

# Times that the memory carries what a layer keeps for backward: in a forward; in a backward twice as often.  Fitted on
# the rows of machines/training_runs.csv that say so, as is the share of a GPU's peak in gpus.csv.
PASSES = 2.25
# Assumed are:
FLASH = 0.6  # of what products reach, what flash attention does; on A100 at best 50 to 73 % (arXiv 2307.08691)
USABLE = 0.97  # of the memory: CUDA and NCCL take the rest
# A parameter's, in an update: copy, mean and square are read and written (24), the gradient read (4), it written (2).
ADAM_BYTES = 30


class Overlap(NamedTuple):
    """Shares, 0 to 1, of each kind's message seconds that can hide behind computing."""

    tensor: float = 0.0
    data: float = 1.0
    pipeline: float = 1.0
    context: float = 1.0


class Messages(NamedTuple):
    """What one kind of parallelism sends in an optimizer step, for one GPU of the fullest pipeline rank."""

    sent: float = 0.0  # bytes per step
    exposed: float = 0.0  # seconds per round that no computing hides
    rounds: int = 1  # per step: a round is a microbatch, or the whole step


class Step:
    """The price of an optimizer step of `batch` sequences, for one GPU of the fullest pipeline rank.

    flash: attention in one kernel that never writes the scores, and computes only the causal half.
    products: the share of the peak that matrix products reach, 0 to 1; None for gpus.csv's.
    .sent: bytes per step of each kind of parallelism.  .seconds: of each part; they add up to .time.
    Raises ValueError for a division that is not possible, or whose product is not the machine's number of GPUs.
    """

    def __init__(
        self,
        model: Shape,
        division: Division,
        batch: int,
        machine: Machine,
        *,
        flash: bool = True,
        overlap: Overlap = Overlap(),
        bytes_: Bytes = MIXED,
        products: float | None = None,
    ) -> None:
        self.model, self.division, self.batch, self.machine = model, division, batch, machine
        self.memory: Memory = memory(model, division, batch, bytes_, flash)
        self.capacity = capacity(machine)
        if division.gpus != machine.gpus.count:
            there = f"{machine.name} has {machine.gpus.count} GPUs: the product must be the number of GPUs."
            raise ValueError(f"data x tensor x pipeline x context is {division.gpus}, and {there}")
        d, figure = division, partial(gpu_of(machine.gpus.name).value, needed_by=PLANNER)
        self._flash, self._overlap = flash, overlap
        self._rate = figure("peak") * (products or figure("products"))
        self._bandwidth = figure("memory_bandwidth")
        self._layers, self._microbatches = d.layers(model), d.microbatches(batch)
        self._parameters = max(held_parameters(model, d, stage) for stage in (0, 1))
        self._bytes = Bytes(*(self._parameters * each for each in bytes_))
        self._tokens = model.length / d.context * d.microbatch  # that a rank works on at a time
        self._groups = {  # ranks that communicate, and the distance of two: tensor ranks are neighbors
            "tensor": (d.tensor, 1),
            "context": (d.context, d.tensor),
            "pipeline": (d.pipeline, d.tensor * d.context * d.data),
            "data": (d.context * d.data, d.tensor),
        }
        # Seconds per microbatch. Backward takes twice as long as forward, so both together take three times.
        between = layer_activations(model, d, "selective") * PASSES / self._bandwidth  # a layer's products
        layer = self._product(model.matrices / d.tensor) + self._attention() + between  # forward
        logits = 4 * model.vocabulary * self._tokens / d.tensor  # bytes, in float32
        ends = 3 * (self._product(model.embedding / d.tensor) + PASSES * logits / self._bandwidth)  # the output's
        again = {"none": 0.0, "selective": self._attention(), "full": layer}[d.recompute]
        compute = self._layers * (3 * layer + again) + ends / d.pipeline
        self._forward = self._layers * layer
        self._backward = compute - self._forward  # and what is recomputed
        prices = {"tensor": self._tensor, "context": self._context, "pipeline": self._pipeline, "data": self._data}
        messages = {kind: price() if self._groups[kind][0] > 1 else Messages() for kind, price in prices.items()}
        exposed = {kind: each.rounds * each.exposed for kind, each in messages.items()}  # seconds per step
        microbatch = compute + messages["tensor"].exposed + messages["context"].exposed  # seconds
        self.sent = {kind: each.sent for kind, each in messages.items()}
        updated = self._parameters / (self._groups["data"][0] if d.shard else 1)
        self.seconds = {
            "compute": self._microbatches * compute,
            "tensor": exposed["tensor"],
            "context": exposed["context"],
            "bubble": (d.pipeline - 1) / d.chunks * microbatch,
            "pipeline": exposed["pipeline"],
            "data": exposed["data"],
            "optimizer": updated * ADAM_BYTES / self._bandwidth,
        }
        self.time = sum(self.seconds.values())  # seconds per step
        self.tokens = model.length * batch / (self.time * d.gpus)  # per second and GPU
        self.flops = model.flops() * model.length * batch / (self.time * d.gpus)  # that are needed, per second and GPU
        self.mfu = self.flops / figure("peak")
        self.fits = self.memory.total <= self.capacity

    def __repr__(self) -> str:
        sent = [f"{kind} {size(nbytes)}" for kind, nbytes in self.sent.items() if nbytes]
        parts = [f"{part} {duration(seconds)}" for part, seconds in self.seconds.items() if seconds > self.time / 1e4]
        return (
            f"{self.model.name} on {self.division.gpus:,} x {self.machine.gpus.name}: {self.division}\n"
            f"  step     {duration(self.time)}, {self.flops / 1e12:.0f} TFLOP/s a GPU, MFU {self.mfu:.1%}\n"
            f"           {', '.join(parts)}\n"
            f"  memory   {self.memory!r}; {'fits' if self.fits else 'does not fit'} into {size(self.capacity)}\n"
            f"  sends    {', '.join(sent) or 'nothing'}, a GPU and step"
        )

    draw = Later(".picture", "draw_step")

    def _ipython_display_(self) -> None:
        show(self.draw(), repr(self))

    def _product(self, parameters: float) -> float:
        """Seconds of all tokens times a matrix of so many parameters."""
        return max(2 * parameters * self._tokens / self._rate, 2 * parameters / self._bandwidth)

    def _attention(self) -> float:
        """Seconds of a layer's attention forward: scores, softmax, the sum of values."""
        flops = self._tokens * self.model.attention_flops(causal=self._flash) / self.division.tensor
        if self._flash:
            return flops / (self._rate * FLASH)
        kept = (4 + self.model.dropout) * self.model.heads * self.model.length * self._tokens / self.division.tensor
        return flops / self._rate + PASSES * kept / self._bandwidth

    def _seconds(self, op: str, nbytes: float, kind: str) -> float:
        """Seconds of one call in one group."""
        ranks, apart = self._groups[kind]
        return _price(op, self.machine, 2 if op == "send" else ranks, apart)(nbytes).seconds

    def _sent(self, op: str, nbytes: float, kind: str, calls: int = 1) -> float:
        """Bytes that a rank sends for so many calls, as record.traffic has it."""
        return calls * least(op, self._groups[kind][0]) * nbytes

    def _tensor(self) -> Messages:
        """Four all_reduces per layer, or an all_gather and a reduce_scatter for each, and two more to recompute."""
        nbytes = 2 * self._tokens * self.model.hidden
        calls = self._layers * (4 + 2 * (self.division.recompute == "full"))  # per microbatch
        ops = ("all_gather", "reduce_scatter") if self.division.sequence else ("all_reduce",)
        sent = sum(self._sent(op, nbytes, "tensor", self._microbatches * calls) for op in ops)
        seconds = calls * sum(self._seconds(op, nbytes, "tensor") for op in ops)
        return Messages(sent, seconds * (1 - self._overlap.tensor), self._microbatches)

    def _context(self) -> Messages:
        """All keys and values forward, again backward, and their gradients; attention hides them."""
        d = self.division
        nbytes = 2 * 2 * self.model.kv_width / d.tensor * self._tokens * d.context
        calls = 3 + (d.recompute == "full")  # per layer and microbatch
        sent = self._sent("all_gather", nbytes, "context", self._microbatches * self._layers * calls)
        seconds = calls * self._seconds("all_gather", nbytes, "context")
        exposed = max(0.0, seconds - self._overlap.context * 3 * self._attention())
        return Messages(sent, self._layers * exposed, self._microbatches)

    def _pipeline(self) -> Messages:
        """An activation forward and its gradient backward, at each border of a rank's stages."""
        nbytes = 2 * self._tokens * self.model.hidden / self.division.tensor  # the tensor ranks send a part each
        calls = 2 * self.division.chunks * self._microbatches  # per step
        seconds = calls * self._seconds("send", nbytes, "pipeline")
        return Messages(calls * nbytes, seconds * (1 - self._overlap.pipeline))

    def _data(self) -> Messages:
        """Gradients, and parameters where they are sharded; one microbatch's forward and backward hide them."""
        shard, gradients, parameters = self.division.shard, self._bytes.gradient, self._bytes.parameter
        forward, backward = self._overlap.data * self._forward, self._overlap.data * self._backward  # that hide
        if shard == 0:
            exposed = max(0.0, self._seconds("all_reduce", gradients, "data") - backward)
            return Messages(self._sent("all_reduce", gradients, "data"), exposed)
        share = self._sent("all_gather", 1, "data")  # per byte; that of a reduce_scatter too
        if shard < 3:
            scatters = self._microbatches if shard == 2 else 1  # per step
            exposed = scatters * max(0.0, self._seconds("reduce_scatter", gradients, "data") - backward)
            exposed += max(0.0, self._seconds("all_gather", parameters, "data") - forward)
            return Messages(share * (scatters * gradients + parameters), exposed)
        gather = self._layers * self._seconds("all_gather", parameters / self._layers, "data")  # layer by layer
        scatter = self._layers * self._seconds("reduce_scatter", gradients / self._layers, "data")
        exposed = max(0.0, gather - forward) + max(0.0, gather + scatter - backward)
        return Messages(self._microbatches * share * (2 * parameters + gradients), exposed, self._microbatches)


step = Step  # as one asks for it: step(shape("Llama 3 8B"), Division(8), 64, cluster("H100", 8))


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
    if machine.gpus is None:
        raise ValueError(f"{machine.name} has no GPUs that there are figures for: take cluster().")
    return USABLE * gpu_of(machine.gpus.name).value("memory", PLANNER)


@lru_cache(maxsize=4096)
def _price(op: str, machine: Machine, ranks: int, apart: int) -> Nccl:
    return nccl(op, machine, np.arange(ranks) * apart)
