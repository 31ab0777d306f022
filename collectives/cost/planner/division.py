"""A division: how many GPUs share what, and the bytes that each then holds; an impossible one is refused."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from ...format import size
from .shape import Shape

KINDS = ("data", "tensor", "pipeline", "context")  # of parallelism
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Division:
    """Degrees of parallelism; GPUs are numbered with tensor fastest, then context, data, pipeline.

    shard: ZeRO's stage, what the data and context ranks shard: 0 nothing, 1 the optimizer's state, 2 the gradients
        too, 3 the parameters too, which is fully sharded data parallel.
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
    with_ = replace  # a division like this one but for the fields named

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism that it mixes; "sharded" for data ranks that shard the parameters too."""
        kinds = tuple(kind for kind in KINDS if getattr(self, kind) > 1)
        return kinds + ("sharded",) * (self.shard == 3 and self.data * self.context > 1)

    def microbatches(self, batch: int) -> int:
        """Microbatches that each replica of the model computes in a step of `batch` sequences."""
        return batch // (self.data * self.microbatch)

    def layers(self, model: Shape, stage: int = 1) -> int:
        """Layers of the second pipeline rank (1), the fullest, or of the first (0), where the embedding may be one."""
        stages = self.pipeline * self.chunks
        ends = 2 if model.layers % stages else 0  # embedding and output, where each takes the place of a layer
        return -(-(model.layers + ends) // stages) * self.chunks - (stage == 0 and ends > 0)

    def check(self, model: Shape, batch: int) -> None:
        """Raise ValueError, which says what must divide what, where the model cannot be divided like this."""
        if reason := self.obstacle(model, batch):
            raise ValueError(reason)

    def obstacle(self, model: Shape, batch: int) -> str | None:
        """What must divide what, where the model cannot be divided like this; None where it can."""
        for name in (*KINDS, "chunks", "microbatch"):
            if getattr(self, name) < 1:
                return f"{name} is 1 or more, not {getattr(self, name)}."
        tensor, stages, batched = self.tensor, self.pipeline * self.chunks, self.data * self.microbatch
        if self.shard not in range(4):
            return f"shard is a stage of ZeRO, 0 to 3, not {self.shard}."
        if self.recompute not in RECOMPUTE:
            return f"recompute is one of {', '.join(RECOMPUTE)}, not {self.recompute!r}."
        if model.heads % tensor:
            return f"tensor {tensor} must divide the {model.heads} heads of {model.name}: a rank computes whole heads."
        heads = f"{model.kv} key/value heads of {model.name}"
        if model.kv % tensor and tensor % model.kv:
            return f"tensor {tensor} must divide the {heads}, or be a multiple of them."
        if model.width % tensor:
            return f"tensor {tensor} must divide the feed-forward width of {model.name}, {model.width}."
        if self.chunks > 1 and self.pipeline == 1:
            return "chunks are stages of a pipeline rank: one where pipeline is 1."
        if model.layers % stages and (model.layers + 2) % stages:
            rest = "or two more, where embedding and output take the place of a layer each."
            return f"pipeline x chunks, {stages}, must divide the {model.layers} layers of {model.name}, {rest}"
        if self.context > 1 and model.length % (2 * self.context):
            why = "a rank takes a piece from its front and one from its back, so that all look at as much."
            return f"2 x context, {2 * self.context}, must divide the sequence of {model.length} tokens: {why}"
        if batch < 1 or batch % batched:
            return f"data x microbatch, {batched}, must divide the batch of {batch} sequences."
        if self.chunks > 1 and (many := self.microbatches(batch)) % self.pipeline:
            why = "the interleaved schedule takes them in groups of so many."
            return f"pipeline {self.pipeline} must divide the {many} microbatches of a replica: {why}"
        return None

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


class Bytes(NamedTuple):
    """Bytes per parameter."""

    parameter: int
    gradient: int
    optimizer: int


MIXED = Bytes(2, 2, 12)  # half precision, and Adam's copy, mean and square in float32: Rajbhandari et al. 2020, ZeRO
FLOAT32 = Bytes(4, 4, 8)  # everything in float32, as torch trains by default


class Memory(NamedTuple):
    """Bytes per GPU, by part.  gathered: two layers of sharded parameters, whole while they are used."""

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
        return f"{size(self.total)} a GPU: {', '.join(parts)}"


def held_parameters(model: Shape, division: Division, stage: int = 0) -> float:
    """Parameters that a GPU of the first (0) or second (1) pipeline rank computes with."""
    if division.pipeline == 1:
        return model.parameters / division.tensor
    own = division.layers(model, stage) * model.layer
    return (own + model.embedding * (stage == 0)) / division.tensor


def memory(model: Shape, division: Division, batch: int, bytes_: Bytes = MIXED, flash: bool = True) -> Memory:
    """The Memory of a GPU of the first pipeline rank, or of the second where that is more: it may have one more layer.

    Parameters, gradients, optimizer: ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).  Activations:
    Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5.  Without the allocator's losses and the kernels'
    workspace.  Raises ValueError for an impossible division.
    """
    division.check(model, batch)
    p, v, ranks = division.pipeline, division.chunks, division.data * division.context
    gathered = 2 * model.layer / division.tensor * bytes_.parameter if division.shard == 3 and ranks > 1 else 0.0

    def of(stage: int) -> Memory:
        count = held_parameters(model, division, stage)
        sizes = (count / (ranks if division.shard >= k else 1) * each for each, k in zip(bytes_, (3, 2, 1)))
        # In flight: p - stage microbatches by 1F1B, p (1 + (p - 1) / (p v)) - 2 stage / v by v interleaved chunks.
        flying = min(division.microbatches(batch), p - stage if v == 1 else p + (p - 1 - 2 * stage) / v)
        kept = flying * division.layers(model, stage) * layer_activations(model, division, division.recompute, flash)
        if division.recompute == "full":  # and the layer that is being computed again
            kept += layer_activations(model, division, "none", flash)
        if p == 1:  # and the logits
            kept += 4 * model.vocabulary / division.tensor * model.length / division.context * division.microbatch
        return Memory(*sizes, kept, gathered)

    return max((of(stage) for stage in range(min(2, p))), key=lambda memory: memory.total)


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
