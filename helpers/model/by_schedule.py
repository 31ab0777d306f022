"""A training step of the small decoder by any pipeline schedule, on real ranks, to compare with one process.

run(train_by(schedule, blocks=6, batch=batch(0, rows=16), microbatches=8), world_size=schedule.ranks)
"""

from typing import Callable

import torch
import torch.distributed as dist

from collectives.algorithms.pipeline import Pipeline, modules

from .decoder import decoder, loss_of

Gradients = list[tuple[str, torch.Tensor]]


def train_by(
    schedule: Pipeline, blocks: int, batch: tuple[torch.Tensor, torch.Tensor], microbatches: int
) -> Callable[[], tuple[float, Gradients]]:
    """The rank function of one step: the loss of the microbatches that end on this rank, and its stages' gradients.

    blocks: of the decoder, which the schedule's stages share evenly with its embedding and its head.  batch: tokens and
    targets, [rows, length].  Losses add up over the ranks, and the gradients of a stage that two ranks hold too.
    """
    step = schedule.program()

    def training() -> tuple[float, Gradients]:
        layers = decoder(layers=blocks)
        each = len(layers) // schedule.stages
        stages = {k: layers[k * each : (k + 1) * each] for k in schedule.held(dist.get_rank())}
        tokens, targets = (part.chunk(microbatches) for part in batch)
        losses: list[float] = []

        def loss(y: torch.Tensor, k: int) -> torch.Tensor:
            mean = loss_of(y, targets[k]) / microbatches
            losses.append(mean.item())
            return mean

        compute = modules(stages, schedule.stages - 1, tokens, loss)
        width = next(layers.parameters()).shape[1]
        step(compute, torch.empty(*tokens[0].shape, width))
        named = [pair for stage in stages.values() for pair in stage.named_parameters()]
        return sum(losses), [(name, p.grad) for name, p in named]

    return training
