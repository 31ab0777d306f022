"""The ends of one training step that chapter 20 splits among ranks; the ways to split it are the trainer's files.

    from helpers.model.split_step import backward, update

A rank's step ends in `update`, whose dict `Ways` reads.  group: the ranks along one dimension of a mesh; None: all.
With this module, the trainer's files can be imported: `from tensor import Copy, Sum, cut_block`.
"""

import sys
from typing import Any, Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from ..course import TRAINER
from .decoder import decoder, initialise, loss_of
from .training import adam

sys.path.append(str(TRAINER))

Group = dist.ProcessGroup | None


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


def pipeline(
    stage: nn.Module,
    tokens: torch.Tensor,
    targets: torch.Tensor,
    parts: int = 1,
    group: Group = None,
    last: Callable = lambda: None,
) -> float | None:
    """Run both passes in microbatches of two rows, by the trainer's `Stage`; the loss on the last stage.

    parts: as in `backward`.  last: called before the last microbatch's backward pass.
    """
    from config import Config
    from pipeline import Stage

    rows, length = tokens.shape
    config = Config(width=next(stage.parameters()).shape[-1], rows=parts * rows, length=length)
    step = Stage(stage, config, group or dist.group.WORLD, group or dist.group.WORLD)
    loss = step.step(tokens.split(2), targets.split(2), last)
    return parts * loss.item() if step.rank == step.n - 1 else None


def sparse_decoder(layers: int, experts: int, width: int = 64) -> nn.Sequential:
    """The decoder with the trainer's experts, two for a token, instead of each MLP."""
    from config import Config
    from model import MoE

    model = decoder(layers=layers, width=width)
    for block in model[1:-1]:
        block.mlp = MoE(Config(width=width, experts=experts))
    return initialise(model)
