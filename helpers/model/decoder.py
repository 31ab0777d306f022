"""The model of chapters 11 to 17, 20 and 21, and the book it learns to write: plain torch, nothing of helpers.

A decoder of today's make, small enough to train on a laptop in seconds.  It is a Sequential of named layers:
a pipeline stage is a slice of it, fully_shard takes its layers one by one, and a parameter keeps its name
wherever it is.  Every size is a multiple of 8, so that 2, 4 and 8 ranks share it evenly.

The book is Lewis Carroll's "Alice's Adventures in Wonderland" (1865), in the public domain: the Canterbury
corpus's alice29.txt, without its layout.  A token is the ASCII code of a character.
"""

import functools
import zlib
from collections import OrderedDict
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 128  # ASCII
BOOK = Path(__file__).with_name("alice.txt")


# --- the model ----------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal attention; several query heads share a key/value head where kv_heads < heads.

    The number of heads follows from what `q` returns: a rank that holds a quarter of q's rows has a quarter
    of the heads.  The table of angles is a buffer that no checkpoint stores: what a model made on the meta
    device has there must be computed again.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, length: int, bias: bool) -> None:
        super().__init__()
        self.size = width // heads  # of a head
        self.q = nn.Linear(width, heads * self.size, bias)
        self.k = nn.Linear(width, kv_heads * self.size, bias)
        self.v = nn.Linear(width, kv_heads * self.size, bias)
        self.o = nn.Linear(heads * self.size, width, bias)
        self.register_buffer("angles", angles(length, self.size), persistent=False)

    def forward(self, x):  # [rows, length, width]
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        turns = self.angles[: x.shape[1]]
        y = self.kernel(turned(q, turns), turned(k, turns), v)
        return self.o(y.transpose(1, 2).flatten(2))

    def kernel(self, q, k, v):  # where ranks share a sequence, a different one
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def angles(length: int, size: int) -> torch.Tensor:
    """The rotary embedding's angle of each position and pair of numbers (Su et al. 2021, arXiv 2104.09864)."""
    return torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(0, size, 2) / size))


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * turns.cos() - b * turns.sin(), a * turns.sin() + b * turns.cos()), -1).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias)
        self.down = nn.Linear(4 * width, width, bias)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, length: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, heads, kv_heads, length, bias)
        self.norm2, self.mlp = nn.RMSNorm(width), MLP(width, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))


def decoder(
    layers: int = 2,
    width: int = 64,
    heads: int = 8,
    kv_heads: int | None = None,
    length: int = 64,
    bias: bool = False,
    dropout: float = 0.0,
    tied: bool = False,
    seed: int = 0,
) -> nn.Sequential:
    """A Sequential of "embed", "block0", ..., "head": tokens int64 [rows, length] -> logits [rows, length, 128].

    RMSNorm, as in Llama: a single parameter a norm, and no mean, so that its gradient is the one thing to watch
    where ranks share a sequence.  kv_heads: None for as many as heads.  bias: for all Linear layers but the last.
    tied: embedding and output are one parameter.  length: the longest sequence.
    """
    if width % heads or width // heads % 2:
        raise ValueError(f"width {width} over {heads} heads: a head needs an even whole number of features")
    if heads % (kv_heads or heads):
        raise ValueError(f"{heads} heads cannot share {kv_heads} key/value heads evenly")
    blocks = {f"block{k}": Block(width, heads, kv_heads or heads, length, bias, dropout) for k in range(layers)}
    model = nn.Sequential(OrderedDict(embed=nn.Embedding(VOCABULARY, width), **blocks, head=Head(width)))
    if tied:
        model.head.out.weight = model.embed.weight
    return initialise(model, seed)


@torch.no_grad()
def initialise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill all parameters, in place; return the model.

    A parameter's first values depend on its name and the seed alone: not on the rank, the world size, or which
    other layers there are.  So a rank that makes one stage has the same weights there as a process that makes all.
    """
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.fill_(1.0 if name.endswith("weight") else 0.0)  # a norm's scale; a bias
        else:
            p.copy_(torch.randn(p.shape, generator=_draws(seed, name)) * p.shape[1] ** -0.5)
    return model


def _draws(seed: int, what: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {what}".encode()))


# --- the book -----------------------------------------------------------------------------


def encode(text: str) -> torch.Tensor:
    """ASCII codes, int64 [characters].  Raises UnicodeEncodeError for anything else than ASCII."""
    return torch.tensor(list(text.encode("ascii")))


def decode(tokens: torch.Tensor) -> str:
    return bytes(tokens.tolist()).decode("ascii", errors="replace")


@functools.cache
def book() -> torch.Tensor:
    """The whole book as tokens, int64 [143,090]."""
    return encode(BOOK.read_text(encoding="ascii"))


def batch(step: int, rows: int = 16, length: int = 64, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a training step: passages, and for each character the next; int64 [rows, length] both.

    Depends on the step, not on the rank: ranks that each take their part see, together, what one process sees.
    """
    starts = torch.randint(len(book()) - length, (rows, 1), generator=_draws(seed, step))
    passages = book()[starts + torch.arange(length + 1)]
    return passages[:, :-1].clone(), passages[:, 1:].clone()


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats, the mean over all tokens."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@torch.no_grad()
def write(model: nn.Module, prompt: str = "Alice ", count: int = 200, length: int = 64, seed: int = 0) -> str:
    """The prompt and `count` characters more, drawn from the model's prediction."""
    tokens, generator = encode(prompt), _draws(seed, prompt)
    for _ in range(count):
        odds = model(tokens[None, -length:])[0, -1].softmax(-1)
        tokens = torch.cat((tokens, torch.multinomial(odds, 1, generator=generator)))
    return decode(tokens)
