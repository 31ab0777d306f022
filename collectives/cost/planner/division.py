"""A division: how many GPUs share what, and the bytes that each then holds.  An impossible one is refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ...format import size
from .shape import Shape

KINDS = ("data", "tensor", "pipeline", "context")  # of parallelism
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Division:
    """Degrees of parallelism; GPUs are numbered with tensor fastest, then context, data, pipeline.

    shard: ZeRO's stage, what the data ranks shard: 0 nothing, 1 the optimizer's state, 2 the gradients too,
        3 the parameters too, which is fully sharded data parallel.  Context ranks hold shards as data ranks do.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1  # ranks with equally many layers; or the first and the last one less, for embedding and output
    context: int = 1
    shard: int = 1
    sequence: bool = True  # the tensor ranks also shard the activations between attention and MLP
    chunks: int = 1  # stages per pipeline rank: one for 1F1B, more for the interleaved schedule
    microbatch: int = 1  # sequences
    recompute: str = "none"  # or "selective", attention's scores and weights; or "full", every layer from its input

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism that it mixes; "sharded" for data ranks that shard the parameters too."""
        kinds = tuple(kind for kind in KINDS if getattr(self, kind) > 1)
        return kinds + ("sharded",) * (self.shard == 3 and self.data * self.context > 1)

    def with_(self, **changes) -> Division:
        """A division like this one but for the fields named."""
        return replace(self, **changes)

    def microbatches(self, batch: int) -> int:
        """Microbatches that each replica of the model computes in a step of `batch` sequences."""
        return batch // (self.data * self.microbatch)

    def layers(self, model: Shape) -> int:
        """Layers of the fullest pipeline rank."""
        stages = self.pipeline * self.chunks
        return -(-(model.layers + self._ends(model)) // stages) * self.chunks

    def layers_of(self, model: Shape, stage: int) -> int:
        """Layers of the first (0) or second (1) pipeline rank: the embedding may take the place of one of the first."""
        return self.layers(model) - (stage == 0 and self._ends(model) > 0)

    def _ends(self, model: Shape) -> int:
        """Embedding and output, where each takes the place of a layer: 0 or 2."""
        return 0 if model.layers % (self.pipeline * self.chunks) == 0 else 2

    def check(self, model: Shape, batch: int) -> None:
        """Raise ValueError, which says what must divide what, where the model cannot be divided like this."""
        stages, batched = self.pipeline * self.chunks, self.data * self.microbatch
        for name in (*KINDS, "chunks", "microbatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more, not {getattr(self, name)}.")
        if self.shard not in range(4):
            raise ValueError(f"shard is a stage of ZeRO, 0 to 3, not {self.shard}.")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, not {self.recompute!r}.")
        if model.heads % self.tensor:
            raise ValueError(f"tensor {self.tensor} must divide the {model.heads} heads of {model.name}: a rank computes whole heads.")  # fmt: skip
        if model.kv % self.tensor and self.tensor % model.kv:
            raise ValueError(f"tensor {self.tensor} must divide the {model.kv} key/value heads of {model.name}, or be a multiple of them.")  # fmt: skip
        if model.width % self.tensor:
            raise ValueError(f"tensor {self.tensor} must divide the feed-forward width of {model.name}, {model.width}.")
        if self.chunks > 1 and self.pipeline == 1:
            raise ValueError("chunks are stages of a pipeline rank: one where pipeline is 1.")
        if model.layers % stages and (model.layers + 2) % stages:
            raise ValueError(
                f"pipeline x chunks, {stages}, must divide the {model.layers} layers of {model.name}, "
                "or two more, where embedding and output take the place of a layer each."
            )
        if model.length % (2 * self.context if self.context > 1 else 1):
            raise ValueError(
                f"2 x context, {2 * self.context}, must divide the sequence of {model.length} tokens: "
                "a rank takes a piece from its front and one from its back, so that all look at as much."
            )
        if batch < 1 or batch % batched:
            raise ValueError(f"data x microbatch, {batched}, must divide the batch of {batch} sequences.")
        if self.chunks > 1 and self.microbatches(batch) % self.pipeline:
            raise ValueError(
                f"pipeline {self.pipeline} must divide the {self.microbatches(batch)} microbatches of a replica: "
                "the interleaved schedule takes them in groups of so many."
            )

    def __str__(self) -> str:
        """'data 8, tensor 8, pipeline 16 x 4', without what is 1."""
        chunks = {"pipeline": f" x {self.chunks}" * (self.chunks > 1)}
        words = [f"{kind} {getattr(self, kind)}{chunks.get(kind, '')}" for kind in KINDS if getattr(self, kind) > 1]
        words += [f"ZeRO-{self.shard}"] * (self.shard > 1) + [f"microbatch {self.microbatch}"] * (self.microbatch > 1)
        words += [f"recompute {self.recompute}"] * (self.recompute != "none")
        return ", ".join(words) or "one GPU"

    @property
    def short(self) -> str:
        """The same in few characters: 'data 8 tensor 8 pipe 16x4 mb 2 full'."""
        words = [f"data {self.data}", f"tensor {self.tensor}", f"pipe {self.pipeline}x{self.chunks}".removesuffix("x1")]
        words += [f"ctx {self.context}", f"ZeRO-{self.shard}" * (self.shard > 1), f"mb {self.microbatch}"]
        words = [word for word in words if word and not word.endswith(" 1")]
        return " ".join(words + [self.recompute] * (self.recompute != "none"))


# --- memory: of a GPU of the pipeline's first ranks, the fullest -------------------------------


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
        return dict(vars(self))

    @property
    def total(self) -> float:
        return sum(vars(self).values())

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
