"""The parts of one training step that is split among ranks, as chapters 11 to 16 build them: chapter 20 combines them.

    from helpers.model.split_step import Copy, Sum, backward, cut_block, update

A rank's step ends in `update`, whose dict `Ways` reads.  group: the ranks along one dimension of a mesh; None: all.
"""

from typing import Any, Callable, Iterable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .decoder import MLP, Attention, Block, decoder, initialise, loss_of, turned
from .training import adam

Group = dist.ProcessGroup | None


# --- a step's ends ------------------------------------------------------------------------


def batch_part(batch: Sequence[torch.Tensor], dim: int, group: Group = None) -> list[torch.Tensor]:
    """This rank's rows (dim 0) or positions (dim 1) of a batch."""
    return [t.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)] for t in batch]


def backward(model: nn.Module, batch: Sequence[torch.Tensor], parts: int = 1) -> float:
    """Run both passes, and return the loss.  parts: into how many the batch is cut, if their gradients are summed."""
    loss = loss_of(model(batch[0]), batch[1])
    (loss / parts).backward()
    return loss.item()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, which may be a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def update(part: nn.Module, loss: float | None) -> dict[str, Any]:
    """Update this rank's part of a model by Adam; its loss, gradients and optimizer states."""
    parameters = {name: local(p).detach() for name, p in part.named_parameters()}
    gradients = {name: local(p.grad) for name, p in part.named_parameters()}
    states = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in parameters.items()}
    for name, p in parameters.items():
        adam(p, gradients[name], *states[name], step=1)
    return dict(loss=loss, gradients=gradients, optimizer=states)


def update_shards(model: nn.Module, loss: float) -> dict[str, Any]:
    """ZeRO 1's update: gradients are reduce-scattered by rows, a rank updates its rows, and all are gathered."""
    rank, n = dist.get_rank(), dist.get_world_size()
    gradients, states = {}, {}
    for name, p in model.named_parameters():
        shard = p.detach().chunk(n)[rank]
        gradients[name] = torch.empty_like(shard)
        dist.reduce_scatter_single(gradients[name], p.grad, dist.ReduceOp.AVG)
        states[name] = [torch.zeros_like(shard), torch.zeros_like(shard)]
        adam(shard, gradients[name], *states[name], step=1)
        dist.all_gather_single(p.detach(), shard.clone())
    return dict(loss=loss, gradients=gradients, optimizer=states)


def add_up_gradients(parameters: Iterable[nn.Parameter], group: Group = None) -> None:
    """Sum the parameters' gradients over the group, in one call."""
    gradients = [local(p.grad) for p in parameters]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(part.view_as(g))


# --- tensor parallel (chapter 13) ---------------------------------------------------------


def _unchanged(x: torch.Tensor, group: Group) -> torch.Tensor:
    return x.view_as(x)


def _all_reduce(x: torch.Tensor, group: Group) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _all_gather(x: torch.Tensor, group: Group) -> torch.Tensor:
    n = dist.get_world_size(group)
    parts = torch.empty(n * x.shape[0], *x.shape[1:])
    dist.all_gather_single(parts, x.contiguous(), group=group)
    return torch.cat(parts.chunk(n), -2)


def _reduce_scatter(x: torch.Tensor, group: Group) -> torch.Tensor:
    parts = x.chunk(dist.get_world_size(group), -2)
    part = torch.empty(parts[0].shape)
    dist.reduce_scatter_single(part, torch.cat(parts), group=group)
    return part


def _operator(forward: Callable, backward: Callable) -> Callable[[torch.Tensor, Group], torch.Tensor]:
    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group=None):
            ctx.group = group
            return forward(x, group)

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, ctx.group), None

    return Operator.apply


# Positions, which Gather and Scatter join and cut, are the last dimension but one.
Copy, Sum = _operator(_unchanged, _all_reduce), _operator(_all_reduce, _unchanged)
Gather, Scatter = _operator(_all_gather, _reduce_scatter), _operator(_reduce_scatter, _all_gather)


def is_cut(name: str) -> bool:
    """Whether cut_block cuts the parameter of this name."""
    return "attention" in name or "mlp" in name


def cut_block(block: Block, enter: Callable, leave: Callable, group: Group = None) -> None:
    """Keep this rank's columns of the first matrices of each pair and its rows of the second, between two operators."""

    def cut(layer, dim):  # nn.Linear stores the transpose: dimension 0 has the columns
        part = layer.weight.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
        layer.weight = nn.Parameter(part.clone())

    attention, mlp = block.attention, block.mlp
    for layer in (attention.q, attention.k, attention.v, mlp.up):
        cut(layer, 0)
    for layer in (attention.o, mlp.down):
        cut(layer, 1)
    for part in (attention, mlp):
        part.register_forward_pre_hook(lambda module, inputs: (enter(inputs[0], group),))
        part.register_forward_hook(lambda module, inputs, output: leave(output, group))


# --- pipeline parallel (chapter 14) -------------------------------------------------------


def _order_1f1b(place: int, n: int, m: int) -> list[tuple[str, int]]:
    warmup = min(n - 1 - place, m)
    order = [("F", k) for k in range(warmup)]
    for k in range(m - warmup):
        order += [("F", warmup + k), ("B", k)]
    return order + [("B", k) for k in range(m - warmup, m)]


def pipeline(
    stage: nn.Module,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    parts: int = 1,
    group: Group = None,
    last: Callable = lambda: None,
) -> float | None:
    """Run both passes in microbatches of two rows, in 1F1B order; the loss on the last stage.

    parts: as in `backward`.  last: called before the last microbatch's backward pass.
    """
    place, n, group = dist.get_rank(group), dist.get_world_size(group), group or dist.group.WORLD
    before = dist.get_global_rank(group, place - 1) if place > 0 else None
    after = dist.get_global_rank(group, place + 1) if place < n - 1 else None
    tokens, targets = tokens.split(2), targets.split(2)
    m, stored, sending, loss = len(tokens), {}, [], 0.0
    for action, k in _order_1f1b(place, n, m):
        if action == "F":
            x = tokens[k]
            if before is not None:
                x = torch.empty(*x.shape, next(stage.parameters()).shape[-1])
                dist.recv(x, before)
                x.requires_grad_()
            y = stage(x)
            if after is not None:
                sending.append(dist.isend(y.detach(), after))
            else:
                y = loss_of(y, targets[k]) / m
                loss += y.item()
            stored[k] = x, y
        else:
            x, y = stored.pop(k)
            gradient = torch.tensor(1 / parts)  # of the loss
            if after is not None:
                gradient = torch.empty_like(y)
                dist.recv(gradient, after)
            if k == m - 1:
                last()
            y.backward(gradient)
            if before is not None:
                sending.append(dist.isend(x.grad, before))
    for work in sending:
        work.wait()
    return loss if after is None else None


# --- context parallel (chapter 16) --------------------------------------------------------


def attend_across(attention: Attention, group: Group, x: torch.Tensor) -> torch.Tensor:
    """Attention.forward where x is this rank's positions: keys and values are gathered from all ranks."""
    layers = attention.q, attention.k, attention.v
    q, k, v = (f(x).unflatten(-1, (-1, attention.size)).transpose(1, 2) for f in layers)
    length = x.shape[1]
    first = dist.get_rank(group) * length
    angles = attention.angles[first : first + length]
    k, v = Gather(turned(k, angles), group), Gather(v, group)
    sees = torch.ones(length, k.shape[-2]).tril(first).bool()
    y = F.scaled_dot_product_attention(turned(q, angles), k, v, attn_mask=sees)
    return attention.o(y.transpose(1, 2).flatten(2))


# --- expert parallel (chapter 15) ---------------------------------------------------------


class Experts(nn.Module):
    """A router, and an MLP for each expert: a token goes to the one that the router prefers."""

    def __init__(self, width: int, n: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, n, bias=False)
        self.experts = nn.ModuleDict({str(k): MLP(width, bias=False) for k in range(n)})

    def forward(self, x):
        rows = x.flatten(0, -2)
        weight, chosen = self.router(rows).softmax(-1).max(-1)
        order, y = chosen.argsort(stable=True), torch.zeros_like(rows)
        y[order] = self.apply_experts(rows[order], chosen.bincount(minlength=self.router.out_features))
        return (weight[:, None] * y).view_as(x)

    def apply_experts(self, rows, counts):  # rows in the order of their experts
        if len(self.experts) == len(counts):
            return torch.cat([self.experts[str(k)](part) for k, part in enumerate(rows.split(counts.tolist()))])
        (expert,) = self.experts.values()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, receive = counts.tolist(), arriving.tolist()
        return AllToAll.apply(expert(AllToAll.apply(rows, send, receive)), receive, send)

    def keep_one(self, k: int) -> None:
        """Keep expert k alone: tokens travel to the rank that has theirs, and back."""
        self.experts = nn.ModuleDict({str(k): self.experts[str(k)]})


class AllToAll(torch.autograd.Function):
    """Rows to their ranks; backward, gradients return the way that their rows came."""

    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.exchanged = receive, send
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send)
        return arrived

    @staticmethod
    def backward(ctx, gradients):
        return AllToAll.apply(gradients, *ctx.exchanged), None, None


def sparse_decoder(layers: int, experts: int, width: int = 64) -> nn.Sequential:
    """The decoder with experts instead of each MLP."""
    model = decoder(layers=layers, width=width)
    for block in model[1:-1]:
        block.mlp = Experts(width, experts)
    return initialise(model)
