"""Tensor parallel: a block's matrices by columns, then by rows. --sequence 1: between them, a rank has some positions."""

import torch
import torch.distributed as dist
from model import MoE
from torch import nn

PLAN = {"q": 0, "k": 0, "v": 0, "up": 0, "o": 1, "down": 1}  # columns of the product are rows of .weight


def cut_of(name):
    """The dimension along which a parameter is cut, None for a copy on each rank."""
    return PLAN.get(name.split(".")[-2])


def autograd_op(forward, backward):
    """An operator, from a function of a tensor and a group for each pass."""

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group=None):
            ctx.group = group
            return forward(x, group)

        @staticmethod
        def backward(ctx, d):
            return backward(d, ctx.group), None

    return Operator.apply


def identity(x, group):
    return x.view_as(x)


def sum_over_ranks(x, group):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def gather_positions(x, group):
    """All ranks' positions, the last dimension but one."""
    n = dist.get_world_size(group)
    whole = x.new_empty(n * x.shape[0], *x.shape[1:])
    dist.all_gather_single(whole, x.contiguous(), group=group)
    return torch.cat(whole.chunk(n), -2)


def scatter_positions(z, group):
    """This rank's positions of the sum over ranks."""
    parts = z.chunk(dist.get_world_size(group), -2)
    own = z.new_empty(parts[0].shape)
    dist.reduce_scatter_single(own, torch.cat(parts), group=group)
    return own


Copy = autograd_op(identity, sum_over_ranks)  # into the cut layers: the input's gradient is the sum of the ranks'
Sum = autograd_op(sum_over_ranks, identity)  # out of them: the output is the sum of the ranks'
AllGather = autograd_op(gather_positions, scatter_positions)  # in Copy's place, where a rank has some positions
ReduceScatter = autograd_op(scatter_positions, gather_positions)  # in Sum's


def shard_weight(layer, dim, group):
    part = layer.weight.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    layer.weight = nn.Parameter(part.detach().clone())


def around(part, input_op, output_op, group):
    """Put an operator on either side of a module."""
    part.register_forward_pre_hook(lambda module, inputs: (input_op(inputs[0], group), *inputs[1:]))
    part.register_forward_hook(lambda module, inputs, output: output_op(output, group))


def cut_block(block, group, input_op=Copy, output_op=Sum):
    """Keep this rank's part of each matrix, between two operators."""
    for name, module in block.named_modules():
        dim = cut_of(f"{name}.weight")
        if dim is not None:
            shard_weight(module, dim, group)
    # A router takes whole positions itself with Copy; with AllGather, its gradient is a partial sum, as a norm's.
    inside = isinstance(block.mlp, MoE) and input_op is Copy
    for part in (block.attention, block.mlp.experts if inside else block.mlp):
        around(part, input_op, output_op, group)


def sum_copies(model, group):
    """In sequence parallelism, the gradient of what isn't cut is each rank's for its own positions: sum it."""
    for name, p in model.named_parameters():
        if cut_of(name) is None:
            p.register_hook(lambda d: sum_over_ranks(d, group))
