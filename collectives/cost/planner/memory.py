"""Bytes that a GPU of the pipeline's first ranks, the fullest, holds under a division, by part."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from ...format import size
from .division import Division
from .shape import Shape


class Bytes(NamedTuple):
    """Bytes per parameter."""

    parameter: int
    gradient: int
    optimizer: int


MIXED = Bytes(2, 2, 12)  # half precision, and Adam's copy, mean and square in float32: Rajbhandari et al. 2020, ZeRO
FLOAT32 = Bytes(4, 4, 8)  # everything in float32, as torch trains by default


@dataclass(frozen=True)
class Memory:
    """Bytes per GPU, by part.  gathered: two layers of sharded parameters, whole while they are used."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def states(self) -> float:
        """Bytes that stay between two steps."""
        return self.parameters + self.gradients + self.optimizer

    def __repr__(self) -> str:
        parts = [f"{name} {size(nbytes)}" for name, nbytes in self.parts.items() if nbytes]
        return f"{size(self.total)} a GPU: {', '.join(parts)}"


def held_parameters(model: Shape, division: Division, stage: int = 0) -> float:
    """Parameters that a GPU of the first (0) or second (1) pipeline rank computes with."""
    if division.pipeline == 1:
        return model.parameters / division.tensor
    own = division.layers_of(model, stage) * model.layer
    return (own + model.embedding * (stage == 0)) / division.tensor


def memory(model: Shape, division: Division, batch: int, bytes_: Bytes = MIXED, flash: bool = True) -> Memory:
    """The Memory of a GPU of the first pipeline rank, or of the second where that is more: it may have one more layer.

    Parameters, gradients and the optimizer's state: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).
    Activations: Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5.  The allocator's losses and the
    kernels' workspace aren't counted.  Raises ValueError for an impossible division.
    """
    division.check(model, batch)
    ranks = division.data * division.context
    gathered = 2 * model.layer / division.tensor * bytes_.parameter if division.shard == 3 and ranks > 1 else 0.0

    def of(stage: int) -> Memory:
        count = held_parameters(model, division, stage)
        parameters, gradients, optimizer = (count / ranks if division.shard >= least else count for least in (3, 2, 1))
        sizes = parameters * bytes_.parameter, gradients * bytes_.gradient, optimizer * bytes_.optimizer
        return Memory(*sizes, activations(model, division, batch, flash, stage), gathered)

    return max((of(stage) for stage in range(min(2, division.pipeline))), key=lambda memory: memory.total)


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
    attention = 2 * (2 * h + 2 * model.kv_width)  # q, k, v, and what goes into the last matrix
    mlp = (6 if model.gated else 4) * model.width
    scores = 0.0 if flash or recompute == "selective" else (4 + model.dropout) * model.heads * model.length
    return tokens * (outside + attention + mlp + scores) / t


def activations(model: Shape, division: Division, batch: int, flash: bool = True, stage: int = 0) -> float:
    """Bytes that a pipeline rank keeps at most, for all microbatches in flight; without a pipeline, the logits too.

    In flight are p - stage microbatches by 1F1B, and p (1 + (p - 1) / (p v)) - 2 stage / v by v interleaved chunks.
    """
    p, v = division.pipeline, division.chunks
    flying = p - stage if v == 1 else p + (p - 1 - 2 * stage) / v
    flying = min(division.microbatches(batch), flying)
    kept = flying * division.layers_of(model, stage) * layer_activations(model, division, division.recompute, flash)
    if division.recompute == "full":  # and the layer that is being computed again
        kept += layer_activations(model, division, "none", flash)
    if p == 1:
        kept += 4 * model.vocabulary / division.tensor * model.length / division.context * division.microbatch
    return kept
