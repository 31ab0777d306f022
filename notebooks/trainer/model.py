"""A small decoder for one process: RMSNorm, rotary positions, an MLP or experts. No other file is needed to run it."""

import zlib
from collections import OrderedDict
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256  # a token is a byte


class Attention(nn.Module):
    """Its number of heads follows from the rows of q, so a rank with half of the rows has half of the heads."""

    def __init__(self, config):
        super().__init__()
        self.size = config.width // config.heads  # of a head
        self.q, self.k, self.v, self.o = (nn.Linear(config.width, config.width, bias=False) for _ in range(4))
        speeds = 10_000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        self.register_buffer("angles", torch.outer(torch.arange(config.length), speeds), persistent=False)
        self.kernel = partial(F.scaled_dot_product_attention, is_causal=True)

    def forward(self, x):  # [rows, length, width]
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = self.kernel(turned(q, self.angles), turned(k, self.angles), v)
        return self.o(y.transpose(1, 2).flatten(2))


def turned(x, angles):
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Experts(nn.ModuleDict):
    def forward(self, rows, counts):  # rows in the order of their experts
        return torch.cat([expert(part) for expert, part in zip(self.values(), rows.split(counts))])


def route(probabilities, k):
    best, experts = probabilities.topk(k)
    return experts, best / best.sum(-1, keepdim=True)


class MoE(nn.Module):
    """A router, which picks some experts per token."""

    def __init__(self, config):
        super().__init__()
        self.chosen, self.router = config.chosen, nn.Linear(config.width, config.experts, bias=False)
        self.experts = Experts({str(k): MLP(config) for k in range(config.experts)})

    def forward(self, x):
        rows = x.flatten(0, -2)
        experts, weights = route(self.router(rows).softmax(-1), self.chosen)
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=len(self.router.weight))
        y = self.apply_experts(rows[order // self.chosen], counts)
        y = torch.zeros_like(y).index_copy(0, order, y).unflatten(0, experts.shape)
        return (weights[..., None] * y).sum(1).view_as(x)

    def apply_experts(self, rows, counts):
        return self.experts(rows, counts.tolist())


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(config.width), Attention(config)
        self.norm2, self.mlp = nn.RMSNorm(config.width), MoE(config) if config.experts else MLP(config)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm, self.out = nn.RMSNorm(config.width), nn.Linear(config.width, VOCABULARY, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))


def decoder(config, layers=slice(None)):
    """A Sequential of "embed", "block0", ..., "head", or those of its layers that a stage has."""
    makers = [("embed", partial(nn.Embedding, VOCABULARY, config.width))]
    makers += [(f"block{k}", partial(Block, config)) for k in range(config.layers)]
    makers += [("head", partial(Head, config))]
    model = nn.Sequential(OrderedDict((name, make()) for name, make in makers[layers]))
    return initialise(model, config.seed).to(config.device, getattr(torch, config.dtype))


@torch.no_grad()
def initialise(model, seed):
    """A parameter's first values depend on its name and the seed, not on the rank or on which other layers exist."""
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.fill_(1.0)  # a norm's scale
        else:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[1] ** -0.5)
    return model


def loss_of(logits, targets, count):
    """Cross-entropy, these tokens' share of the mean over `count`. Shares add up over microbatches and ranks."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum") / count
