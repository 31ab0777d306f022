"""The bytes that a GPU holds under a division of a model, and how far to trust them."""

from typing import NamedTuple

from ..format import size
from .division import Division
from .shape import Shape


class Bytes(NamedTuple):
    """Bytes per parameter, and per number of an activation."""

    parameter: int
    gradient: int
    optimizer: int
    activation: int = 2


MIXED = Bytes(2, 2, 12)  # half precision, and Adam's copy, mean and square in float32: Rajbhandari et al. 2020, ZeRO
FLOAT32 = Bytes(4, 4, 8, 4)  # everything in float32, as torch trains by default

LEFT_OUT = "the allocator's gaps, kernels' workspaces, NCCL's buffers and CUDA's context"
# A logit's bytes: in half precision, in float32, its softmax and its gradients.
LOGIT_BYTES = 12
# Per parameter gathered for a whole step: its value, its gradient, and the gradients' sum in float32.
GATHERED_BYTES = 8
# Kept free besides, as a share of the plan: nine of ten published peaks are below (validation.py).
MARGIN = 0.2


class Memory(NamedTuple):
    """Bytes per GPU, by part.  gathered: sharded parameters that are whole while they are used."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def states(self) -> float:
        """Bytes that stay between two steps."""
        return self.parameters + self.gradients + self.optimizer

    def __repr__(self) -> str:
        parts = [f"{name} {size(nbytes)}" for name, nbytes in self._asdict().items() if nbytes]
        return f"{size(self.total)} per GPU: {', '.join(parts)}"


class HeldParameters(NamedTuple):
    """Parameters that a GPU computes with: its experts', and all others."""

    dense: float
    experts: float = 0.0

    @property
    def total(self) -> float:
        return self.dense + self.experts


def held_parameters(model: Shape, division: Division, stage: int = 0) -> HeldParameters:
    """Parameters that a GPU of the first (0) or second (1) pipeline rank computes with."""
    layers = division.layers(model, stage) if division.pipeline > 1 else model.layers
    experts = layers * model.expert_parameters
    if division.pipeline == 1:
        dense = model.parameters - experts
    else:
        dense = layers * model.layer - experts + model.embedding * (stage == 0)
    cut = division.experts if division.experts > 1 else division.tensor
    return HeldParameters(dense / division.tensor, experts / cut)


def memory(model: Shape, division: Division, batch: int, bytes_: Bytes = MIXED, flash: bool = True) -> Memory:
    """The Memory of a GPU of the first pipeline rank, or of the second where that is more: it may have one more layer.

    Parameters, gradients, optimizer: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).  Activations:
    Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5.  Without LEFT_OUT.  Raises ValueError for an
    impossible division.
    """
    division.check(model, batch)
    kept = [activations(model, division, batch, stage, flash, bytes_) for stage in range(min(2, division.pipeline))]
    held = [states(model, division, bytes_, stage) for stage in range(len(kept))]
    return max((Memory(*s[:3], k, s[3]) for s, k in zip(held, kept)), key=lambda memory: memory.total)


def states(model: Shape, division: Division, bytes_: Bytes, stage: int) -> tuple[float, float, float, float]:
    """Bytes of parameters, gradients, the optimizer's state, and of what is gathered."""
    held = held_parameters(model, division, stage)
    shards = division.shards, division.expert_replicas // division.expert_copies

    def share(level: int) -> float:
        """Parameters of which this GPU holds something, where `level` is the least stage of ZeRO that shards it."""
        return sum(count / (ranks if division.shard >= level else 1) for count, ranks in zip(held, shards))

    whole = 0.0
    if division.shard == 3 and shards[0] > 1:
        if division.gather == "step":
            whole = held.total * GATHERED_BYTES
        else:
            expert_layer = model.expert_parameters / (division.experts if division.experts > 1 else division.tensor)
            whole = ((model.layer - model.expert_parameters) / division.tensor + expert_layer) * 2 * bytes_.parameter
    return share(3) * bytes_.parameter, share(2) * bytes_.gradient, share(1) * bytes_.optimizer, whole


def activations(
    model: Shape, division: Division, batch: int, stage: int = 0, flash: bool = True, bytes_: Bytes = MIXED
) -> float:
    """Bytes that backward needs, of all microbatches in flight on the first (0) or second (1) pipeline rank."""
    p, v = division.pipeline, division.chunks
    # In flight: p - stage microbatches by 1F1B, p (1 + (p - 1) / (p v)) - 2 stage / v by v interleaved chunks.
    flying = min(division.microbatches(batch), p - stage if v == 1 else p + (p - 1 - 2 * stage) / v)
    kept = flying * division.layers(model, stage) * layer_activations(model, division, division.recompute, flash)
    if division.recompute in ("mlp", "full"):  # and the layer that is being computed again
        again = "pointwise" if division.recompute == "mlp" else "none"
        kept += layer_activations(model, division, again, flash)
    tokens = model.length / division.context * division.microbatch
    if division.tensor > 1 and division.sequence:  # and one gathered input, and its gradient
        kept += 4 * model.hidden * tokens
    logits = LOGIT_BYTES * model.vocabulary / division.tensor * tokens if p == 1 else 0.0
    return kept * bytes_.activation / 2 + logits


def layer_activations(model: Shape, division: Division, recompute: str, flash: bool = True) -> float:
    """Bytes that one layer keeps of one microbatch: s b h (10 + 24/t + 5 a s/(h t)) for GPT, in two bytes per element.

    With sequence parallelism all of it is divided by t; flash attention never has the 5 a s/h, "selective" drops it.
    """
    h, t = model.hidden, division.tensor
    tokens = model.length / division.context * division.microbatch
    between = h if division.sequence else h * t  # divided by t below
    if recompute == "full":
        return tokens * 2 * between / t
    outside = (8 + 2 * model.dropout) * between  # two norms' inputs, what goes into attention and MLP, two masks
    attention = 2 * model.attended  # q, k, v, and what goes into the last matrix
    inner = 6 if model.gated else 4  # what goes into the activation function, comes out, and its product
    if recompute in ("pointwise", "mlp"):
        outside -= 4 * between
        inner -= 2
    mlp = inner * model.dense_width
    if model.experts:  # each token is copied to its experts, and what they return is weighted
        mlp += model.routed * model.active * (inner * model.expert + 4 * h)
    if recompute == "mlp":
        mlp = 0.0
    scores = 0.0 if flash or recompute != "none" else (4 + model.dropout) * model.heads * model.length
    return tokens * (outside + attention + mlp + scores) / t
