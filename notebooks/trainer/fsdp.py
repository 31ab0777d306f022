"""Sharded data parallel (ZeRO 3): a rank keeps a shard of each layer, which is complete only while it is used."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from model import Experts
from tensor import cut_of
from torch import nn


class Place(NamedTuple):
    """Where a piece belongs: of a matrix [rows, width], in the columns first : first + size, its numbers start : stop."""

    width: int
    first: int
    size: int
    start: int
    stop: int


class Piece(NamedTuple):
    """What this rank's shard has of one parameter."""

    name: str
    place: Place
    value: torch.Tensor  # a view of the shard, as is its gradient
    gradient: torch.Tensor
    first: bool  # whether this rank is the first of those that have it


def flatten(parameters, n):
    """A tensor that holds all the parameters, which become views of it; its length is a multiple of n."""
    count, at = sum(p.numel() for p in parameters), 0
    flat = parameters[0].new_zeros(-(-count // n) * n)
    for p in parameters:
        flat[at : at + p.numel()] = p.detach().flatten()
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    return flat.detach()


class ShardedLayer:
    def __init__(self, module, parameters, group, replicas):
        self.named, self.parameters, self.group, self.replicas = parameters, list(parameters.values()), group, replicas
        self.n, self.rank, self.last = dist.get_world_size(group), dist.get_rank(group), True
        self.flat = flatten(self.parameters, self.n)
        self.shard = self.flat.chunk(self.n)[self.rank].clone()
        self.gradient = torch.zeros_like(self.shard)
        self.reshard()
        module.register_forward_pre_hook(self.unshard)
        module.register_forward_hook(self.after_forward)
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.arrived)

    def unshard(self, *_):
        self.flat.untyped_storage().resize_(self.flat.nbytes)
        dist.all_gather_single(self.flat, self.shard, group=self.group)

    def reshard(self):
        self.flat.untyped_storage().resize_(0)

    def after_forward(self, module, inputs, output):
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.unshard)  # called when the backward pass comes to this output

    def arrived(self, _):
        if all(p.grad is not None for p in self.parameters):
            self.gradient += self.reduce_gradients()
            self.reshard()
            if self.last:  # of the step's microbatches
                self.replicas.start(self.gradient)

    def reduce_gradients(self):
        """This rank's shard of the sum over its group; the layer's own gradients are freed."""
        gradients = torch.cat([p.grad.flatten() for p in self.parameters])
        whole = nn.functional.pad(gradients, (0, len(self.flat) - len(gradients)))
        shard = torch.empty_like(self.shard)
        dist.reduce_scatter_single(shard, whole, group=self.group)
        for p in self.parameters:
            p.grad = None
        return shard


def pieces_of(layer, mesh):
    """The pieces of a ShardedLayer's shard, by parameter."""
    at, tp, tp_rank = 0, mesh["tp"].size(), mesh["tp"].get_local_rank()
    size = len(layer.shard)
    begin = layer.rank * size
    for name, p in layer.named.items():
        start, stop = max(begin - at, 0), min(begin + size - at, p.numel())
        if start < stop:
            dim, here = cut_of(name), slice(at + start - begin, at + stop - begin)
            part = p.shape[1] if dim == 1 else p.numel()
            n, k = (1, 0) if dim is None else (tp, tp_rank)
            place = Place(part * n, part * k, part, start, stop)
            first = dist.get_rank(layer.replicas.group) == 0 and (dim is not None or tp_rank == 0)
            yield Piece(name, place, layer.shard[here], layer.gradient[here], first)
        at += p.numel()


def shard_model(model, group, replicas, expert_replicas):
    """A ShardedLayer for each layer, and for each block's experts."""
    layers = []
    for top, layer in model.named_children():
        experts = {f"{top}.{path}.": module for path, module in layer.named_modules() if isinstance(module, Experts)}
        named = {f"{top}.{name}": p for name, p in layer.named_parameters()}
        dense = {name: p for name, p in named.items() if not name.startswith(tuple(experts))}
        layers.append(ShardedLayer(layer, dense, group, replicas))
        for path, module in experts.items():
            own = {name: p for name, p in named.items() if name.startswith(path)}
            layers.append(ShardedLayer(module, own, group, expert_replicas))
    return layers
