"""A division: the number of GPUs per kind of parallelism; an impossible one is refused, with the reason."""

from dataclasses import dataclass, replace
from functools import cache

from .shape import Shape

KINDS = ("data", "tensor", "pipeline", "context", "experts")  # of parallelism
RECOMPUTE = ("none", "selective", "pointwise", "mlp", "full")
GATHER = ("microbatch", "step")


@dataclass(frozen=True)
class Division:
    """Degrees of parallelism; GPUs are numbered with tensor fastest, then context, data, pipeline.

    shard: ZeRO's stage, what the data and context ranks shard: 0 nothing, 1 the optimizer's state, 2 the gradients
        too, 3 the parameters too, which is fully sharded data parallel.
    copies: of the shards: that many groups of the data and context ranks each hold all of them, and sum gradients with
        each other.  1 shards over all; more is hybrid sharding (HSDP).
    experts: ranks that share a layer's experts; they are neighbors, even across tensor, context and data ranks, and
        each has whole experts.
    gather: when sharded parameters are gathered: for each microbatch, or once a step, and kept until its end.
    recompute: in the backward pass: none; "selective", attention's scores and weights; "pointwise", norms and
        activation functions' results; "mlp", the feed-forward block too; "full", every layer from its input.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1  # ranks with equally many layers; or the first and the last one less, for embedding and output
    context: int = 1
    shard: int = 1
    sequence: bool = True  # the tensor ranks also shard the activations between attention and MLP
    chunks: int = 1  # stages per pipeline rank: one for 1F1B, more for the interleaved schedule
    microbatch: int = 1  # sequences
    recompute: str = "none"
    copies: int = 1
    experts: int = 1
    gather: str = "microbatch"
    with_ = replace  # a division like this one but for the fields named

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def replicas(self) -> int:
        """Ranks with the same part of the layers and matrices: data and context ranks."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Ranks that share out the states."""
        return self.replicas // self.copies

    @property
    def expert_replicas(self) -> int:
        """Ranks with the same experts."""
        return self.replicas * (self.tensor if self.experts > 1 else 1) // self.experts

    @property
    def expert_copies(self) -> int:
        """Copies of the experts' shards: fewer than of the others where there are no more replicas of them."""
        return min(self.copies, self.expert_replicas)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism that it mixes; "sharded" for data ranks that shard the parameters too."""
        kinds = tuple(kind for kind in KINDS if getattr(self, kind) > 1)
        return kinds + ("sharded",) * (self.shard == 3 and self.shards > 1)

    def microbatches(self, batch: int) -> int:
        """Microbatches that each replica of the model computes in a step of `batch` sequences."""
        return batch // (self.data * self.microbatch)

    def layers(self, model: Shape, stage: int = 1) -> int:
        """Layers of the second pipeline rank (1), the fullest, or of the first (0), where the embedding may be one."""
        stages = self.pipeline * self.chunks
        ends = _ends(model.layers, stages)  # embedding and output, where each takes the place of a layer
        return -(-(model.layers + ends) // stages) * self.chunks - (stage == 0 and ends > 0)

    def check(self, model: Shape, batch: int) -> None:
        """Raise ValueError with the violated condition if the model cannot be divided like this."""
        if reason := self.obstacle(model, batch):
            raise ValueError(reason)

    def obstacle(self, model: Shape, batch: int) -> str | None:
        """The condition that this division of the model violates, as a sentence; None if it is possible."""
        for name in (*KINDS, "chunks", "microbatch", "copies"):
            if getattr(self, name) < 1:
                return f"{name} is 1 or more, not {getattr(self, name)}."
        if self.shard not in range(4):
            return f"shard is a stage of ZeRO, 0 to 3, not {self.shard}."
        if self.recompute not in RECOMPUTE:
            return f"recompute is one of {', '.join(RECOMPUTE)}, not {self.recompute!r}."
        if self.gather not in GATHER:
            return f"gather is one of {', '.join(GATHER)}, not {self.gather!r}."
        return self._layer_obstacle(model) or self._stage_obstacle(model, batch)

    def _layer_obstacle(self, model: Shape) -> str | None:
        """The condition on a layer's heads, widths, tokens and experts that is violated; None if there isn't one."""
        tensor = self.tensor
        if model.heads % tensor:
            return f"tensor {tensor} must divide the {model.heads} heads of {model.name}: a rank computes whole heads."
        heads = f"{model.kv} key/value heads of {model.name}"
        if model.kv % tensor and tensor % model.kv:
            return f"tensor {tensor} must divide the {heads}, or be a multiple of them."
        if model.width % tensor:
            return f"tensor {tensor} must divide the feed-forward width of {model.name}, {model.width}."
        if model.experts and self.experts == 1 and model.expert % tensor:
            return f"tensor {tensor} must divide the width of {model.name}'s experts, {model.expert}."
        if self.context > 1 and model.length % (2 * self.context):
            why = "a rank takes a piece from its front and one from its back, so every rank has the same amount to attend to."
            return f"2 x context, {2 * self.context}, must divide the sequence of {model.length} tokens: {why}"
        if self.experts > 1:
            if (model.experts or 0) % self.experts or not model.experts:
                have = f"the {model.experts} experts of {model.name}" if model.experts else f"{model.name} has none"
                return f"experts {self.experts} must divide the experts of a layer: {have}."
            if self.replicas * tensor % self.experts:
                ranks = self.replicas * tensor
                return f"experts {self.experts} must divide the {ranks} ranks of tensor x context x data."
        return None

    def _stage_obstacle(self, model: Shape, batch: int) -> str | None:
        """The condition on stages, shards and the batch that is violated; None if there isn't one."""
        stages, batched = self.pipeline * self.chunks, self.data * self.microbatch
        if self.chunks > 1 and self.pipeline == 1:
            return "chunks are stages of a pipeline rank: one where pipeline is 1."
        if model.layers % stages and _ends(model.layers, stages) is None:
            rest = "or one to three more: embedding, output and what predicts further tokens may each take one's place."
            return f"pipeline x chunks, {stages}, must divide the {model.layers} layers of {model.name}, {rest}"
        if self.replicas % self.copies:
            return f"copies {self.copies} must divide the {self.replicas} data and context ranks."
        if self.expert_replicas % self.expert_copies:
            return f"copies {self.copies} must divide the {self.expert_replicas} ranks that have the same experts."
        if batch < 1 or batch % batched:
            return f"data x microbatch, {batched}, must divide the batch of {batch} sequences."
        if self.chunks > 1 and (many := self.microbatches(batch)) % self.pipeline:
            why = "the interleaved schedule takes them in groups of that many."
            return f"pipeline {self.pipeline} must divide the {many} microbatches of a replica: {why}"
        return None

    def __str__(self) -> str:
        """'data 8, tensor 8, pipeline 16 x 4', without what is 1."""
        chunks = {"pipeline": f" x {self.chunks}" * (self.chunks > 1), "tensor": " by all_reduce" * (not self.sequence)}
        words = [f"{kind} {getattr(self, kind)}{chunks.get(kind, '')}" for kind in KINDS if getattr(self, kind) > 1]
        words += [f"ZeRO-{self.shard}" + f" in {self.shards}" * (self.copies > 1)] * (self.shard > 1 or self.copies > 1)
        words += ["gathered once a step"] * self.gathered_once
        words += [f"microbatch {self.microbatch}"] * (self.microbatch > 1)
        words += [f"recompute {self.recompute}"] * (self.recompute != "none")
        return ", ".join(words) or "one GPU"

    @property
    def gathered_once(self) -> bool:
        """Whether sharded parameters are gathered once per step."""
        return self.shard == 3 and self.gather == "step"

    @property
    def short(self) -> str:
        """The same in few characters: 'data 8 tensor 8 pipe 16x4 mb 2 full'."""
        tensor = f"tensor {self.tensor}" + " all_reduce" * (self.tensor > 1 and not self.sequence)
        words = [f"data {self.data}", tensor, f"pipe {self.pipeline}x{self.chunks}".removesuffix("x1")]
        zero = f"ZeRO-{self.shard}" + f"/{self.shards}" * (self.copies > 1)
        words += [f"ctx {self.context}", f"exp {self.experts}", zero * (self.shard > 1 or self.copies > 1)]
        words += ["once" * self.gathered_once, f"mb {self.microbatch}"]
        words = [word for word in words if word and not word.endswith(" 1")]
        return " ".join(words + [self.recompute] * (self.recompute != "none"))


@cache
def _ends(layers: int, stages: int) -> int | None:
    """The parts that count as layers so that stages divide them: 0, or one to three; None if no number works."""
    return next((ends for ends in (0, 2, 1, 3) if (layers + ends) % stages == 0), None)
