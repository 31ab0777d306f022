"""Tensor parallel: a block's matrices by columns, then by rows, with one all_reduce in each pass."""

import torch
import torch.distributed as dist
from model import MoE
from torch import nn

PLAN = {"q": 0, "k": 0, "v": 0, "up": 0, "o": 1, "down": 1}  # columns of the product are rows of .weight


def cut_of(name):
    """The dimension along which a parameter is cut, None for a copy on each rank."""
    return PLAN.get(name.split(".")[-2])


def add_up(x, group):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class Copy(torch.autograd.Function):
    """Into the cut layers: each rank's gradient is one addend of the input's."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, d):
        return add_up(d, ctx.group), None


class Sum(torch.autograd.Function):
    """Out of them: each rank's output is one addend."""

    @staticmethod
    def forward(ctx, x, group):
        return add_up(x, group)

    @staticmethod
    def backward(ctx, d):
        return d, None


def shard_linear(layer, dim, group):
    part = layer.weight.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    layer.weight = nn.Parameter(part.detach().clone())


def cut_block(block, group):
    for name, module in block.named_modules():
        dim = cut_of(f"{name}.weight")
        if dim is not None:
            shard_linear(module, dim, group)
    for part in (block.attention, block.mlp.experts if isinstance(block.mlp, MoE) else block.mlp):
        part.register_forward_pre_hook(lambda module, inputs: (Copy.apply(inputs[0], group), *inputs[1:]))
        part.register_forward_hook(lambda module, inputs, output: Sum.apply(output, group))
