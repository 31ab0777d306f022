"""A transformer's shape as data: its parameters, and the floating point operations that a token costs."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from ..machines.data_sheets import FOLDER, records


@dataclass(frozen=True)
class Shape:
    """A decoder.  Where some layers have experts, a layer's figures are their average."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    length: int  # tokens of a sequence
    kv_heads: int | None = None  # of keys and values; None for as many as heads (grouped queries: arXiv 2305.13245)
    ffn: int | None = None  # width between the feed-forward block's matrices; None for 4 x hidden
    gated: bool = False  # three such matrices, as in SwiGLU, instead of two
    biases: bool = True  # GPT's make: biases in every linear layer and layer norm, and positions that are learned
    tied: bool = True  # embedding and output are one matrix
    dropout: bool = True  # training drops out, for which masks are kept
    head: int | None = None  # numbers in a head's value; None for hidden / heads
    key: int | None = None  # numbers in a head's query and key; None for as many as in its value
    attention: int | None = None  # parameters of a layer's attention, if it has more than q, k, v and output
    experts: int | None = None  # feed-forward blocks of a layer, of which a router gives each token `active`
    active: int | None = None
    expert: int | None = None  # an expert's width
    shared: int | None = None  # experts that every token takes besides
    dense: int | None = None  # layers, the first ones, with one block of width ffn and no experts
    source: str = field(default="", repr=False)
    with_ = replace  # a shape like this one but for the fields named

    def __post_init__(self) -> None:
        if min(self.layers, self.hidden, self.heads, self.vocabulary, self.length) < 1:
            raise ValueError(f"{self.name}: layers, hidden, heads, vocabulary and length are 1 or more.")
        if self.hidden % self.heads and not self.head:
            raise ValueError(f"{self.name}: {self.heads} heads must divide the hidden size, {self.hidden}.")
        if self.heads % self.kv:
            raise ValueError(f"{self.name}: {self.kv} key/value heads must divide {self.heads} heads.")
        if self.experts and not (self.expert and self.active and self.active <= self.experts):
            raise ValueError(f"{self.name}: experts need a width, `expert`, and `active`, 1 to {self.experts}.")

    @property
    def kv(self) -> int:
        return self.kv_heads or self.heads

    @property
    def value_width(self) -> int:
        """Numbers in a head's value."""
        return self.head or self.hidden // self.heads

    @property
    def key_width(self) -> int:
        """Numbers in a head's query."""
        return self.key or self.value_width

    @cached_property
    def kv_width(self) -> int:
        """Numbers in a token's keys and values, halved."""
        return self.kv * (self.key_width + self.value_width) // 2

    @cached_property
    def attended(self) -> int:
        """Numbers in a token's queries, keys, values and what attention makes of them."""
        return (self.heads + self.kv) * (self.key_width + self.value_width)

    @property
    def width(self) -> int:
        return self.ffn or 4 * self.hidden

    @cached_property
    def routed(self) -> float:
        """The share of the layers that have experts."""
        return (self.layers - (self.dense or 0)) / self.layers if self.experts else 0.0

    @property
    def attention_matrices(self) -> int:
        """Parameters of a layer's attention that multiply every token."""
        return self.attention or self.hidden * self.attended

    def block(self, width: float) -> float:
        """Parameters of a feed-forward block's two or three matrices."""
        return (3 if self.gated else 2) * self.hidden * width

    @cached_property
    def dense_width(self) -> float:
        """Width of the feed-forward blocks that every token takes: of a layer's block, or its shared experts."""
        return self.width * (1 - self.routed) + self.routed * (self.shared or 0) * (self.expert or 0)

    @cached_property
    def matrices(self) -> int | float:
        """Parameters of a layer that multiply a token: attention's, and the feed-forward blocks that it takes."""
        router = self.hidden * (self.experts or 0)
        routed = self.routed * (self.block(self.expert) * self.active + router) if self.experts else 0
        return self.attention_matrices + self.block(self.dense_width) + routed

    @cached_property
    def expert_parameters(self) -> float:
        """Parameters of a layer's experts, all of them but the shared ones: what expert parallelism divides."""
        return self.routed * self.experts * self.block(self.expert) if self.experts else 0.0

    @cached_property
    def layer(self) -> int | float:
        """Parameters of a layer."""
        h = self.hidden
        biases = 2 * h + 2 * self.kv_width + h + self.width  # of q, o, k, v, down, up
        active = self.expert_parameters * self.active / self.experts if self.experts else 0
        return self.matrices - active + self.expert_parameters + 2 * h + (2 * h + biases if self.biases else 0)

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @cached_property
    def parameters(self) -> int | float:
        """All; of GPT's make 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)) (arXiv 2104.04473, eq. 2) and a norm's 2 h."""
        positions, norm = (self.length * self.hidden, 2 * self.hidden) if self.biases else (0, self.hidden)
        return self.layers * self.layer + self.embedding * (1 if self.tied else 2) + positions + norm

    def attention_flops(self, causal: bool = False) -> float:
        """FLOPs per token and layer, forward: queries by keys, weights by values.  causal: for the visible half."""
        return 2.0 * self.length * self.heads * (self.key_width + self.value_width) / (2 if causal else 1)

    def flops(self, causal: bool = False) -> float:
        """FLOPs per token, forward and backward, no recomputing: 72 l h^2 (1 + s/(6 h) + V/(12 l h)) for GPT's make.

        Korthikanti et al. 2022, arXiv 2205.05198, appendix A.  MFU counts these.
        """
        layer = 2.0 * self.matrices + self.attention_flops(causal)
        return 3 * (self.layers * layer + 2 * self.embedding)

    def recomputed_flops(self) -> float:
        """The same where every layer's forward is computed twice: 96 B s l h^2 (1 + s/(6 h) + V/(16 l h)) / (B s).

        Narayanan et al. 2021, equation 3.  Megatron-LM's and BLOOM's FLOP/s count these.
        """
        return self.flops() + self.layers * (2.0 * self.matrices + self.attention_flops())


# Published models by name; the columns of machines/models.csv are Shape's fields.
SHAPES = {row["name"]: Shape(**row) for _, row in records(FOLDER / "models.csv", Shape.__annotations__, ("name",))}


def shape(name: str) -> Shape:
    """A published model by its name.  Raises ValueError for one that is not in SHAPES."""
    if name not in SHAPES:
        raise ValueError(f"no shape of {name!r} here, only of {', '.join(SHAPES)}. Make one: Shape(...).")
    return SHAPES[name]
