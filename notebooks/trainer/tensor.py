"""Tensor parallel: a block's matrices by columns, then by rows. --sequence 1: between them, a rank has some positions."""

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


def gather_positions(x, group):
    """All ranks' positions, the last dimension but one."""
    n = dist.get_world_size(group)
    whole = x.new_empty(n * x.shape[0], *x.shape[1:])
    dist.all_gather_single(whole, x.contiguous(), group=group)
    return torch.cat(whole.chunk(n), -2)


def scatter_positions(x, group):
    """This rank's positions of the sum over ranks."""
    parts = x.chunk(dist.get_world_size(group), -2)
    own = x.new_empty(parts[0].shape)
    dist.reduce_scatter_single(own, torch.cat(parts), group=group)
    return own


class Gather(torch.autograd.Function):
    """Into the cut layers where a rank has some positions: Copy's place in sequence parallelism."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return gather_positions(x, group)

    @staticmethod
    def backward(ctx, d):
        return scatter_positions(d, ctx.group), None


class Scatter(torch.autograd.Function):
    """Out of them: Sum's place."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return scatter_positions(x, group)

    @staticmethod
    def backward(ctx, d):
        return gather_positions(d, ctx.group), None


def shard_linear(layer, dim, group):
    part = layer.weight.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    layer.weight = nn.Parameter(part.detach().clone())


def cut_block(block, group, enter=Copy, leave=Sum):
    """Keep this rank's part of each matrix, between two operators."""
    for name, module in block.named_modules():
        dim = cut_of(f"{name}.weight")
        if dim is not None:
            shard_linear(module, dim, group)
    # A router takes whole positions itself with Copy; with Gather, its gradient is a partial sum, as a norm's.
    for part in (block.attention, block.mlp.experts if isinstance(block.mlp, MoE) and enter is Copy else block.mlp):
        part.register_forward_pre_hook(lambda module, inputs: (enter.apply(inputs[0], group), *inputs[1:]))
        part.register_forward_hook(lambda module, inputs, output: leave.apply(output, group))


def add_up_replicas(model, group):
    """In sequence parallelism, the gradient of what isn't cut is each rank's for its own positions: sum it."""
    for name, p in model.named_parameters():
        if cut_of(name) is None:
            p.register_hook(lambda d: add_up(d, group))
