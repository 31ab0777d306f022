"""A division: how many GPUs share what, and what each keeps.  An impossible one is refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .shape import Shape

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Division:
    """Degrees of parallelism; GPUs are numbered with tensor fastest, then context, data, pipeline.

    shard: ZeRO's stage, what the data ranks shard: 0 nothing, 1 the optimizer's state, 2 the gradients too,
        3 the parameters too, which is fully sharded data parallel.  Context ranks hold shards as data ranks do.
    sequence: sequence parallelism, where the tensor ranks also shard the activations between attention and MLP.
    pipeline: ranks with equally many layers each; or the first and the last one less, for embedding and output.
    chunks: stages per pipeline rank, one for 1F1B, more for the interleaved schedule.
    microbatch: sequences.
    recompute: "none"; "selective", attention's scores and weights; "full", every layer from its input.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    shard: int = 1
    sequence: bool = True
    chunks: int = 1
    microbatch: int = 1
    recompute: str = "none"

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism that it mixes; "sharded" for data ranks that shard the parameters too."""
        kinds = tuple(kind for kind in ("data", "tensor", "pipeline", "context") if getattr(self, kind) > 1)
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
        for name in ("data", "tensor", "pipeline", "context", "chunks", "microbatch"):
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
        stages = self.pipeline * self.chunks
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
        if batch < 1 or batch % (self.data * self.microbatch):
            raise ValueError(f"data x microbatch, {self.data * self.microbatch}, must divide the batch of {batch} sequences.")  # fmt: skip
        if self.chunks > 1 and self.microbatches(batch) % self.pipeline:
            raise ValueError(
                f"pipeline {self.pipeline} must divide the {self.microbatches(batch)} microbatches of a replica: "
                "the interleaved schedule takes them in groups of so many."
            )

    def __str__(self) -> str:
        """'data 8 tensor 8 pipeline 16 x 4', without what is 1."""
        degrees = {kind: getattr(self, kind) for kind in ("data", "tensor", "pipeline", "context")}
        words = [f"{kind} {degree}" for kind, degree in degrees.items() if degree > 1]
        words = [w + f" x {self.chunks}" * (w.startswith("pipeline") and self.chunks > 1) for w in words]
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
