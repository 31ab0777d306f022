"""A pipeline schedule on real ranks: torch.distributed's isend and recv, and whatever computes a stage.

No send is waited for before the end, so a rank is held up by nothing but an input that is not there yet.
"""

import time
from typing import Callable, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .pipeline import KINDS, Action, Costs, Pipeline

Compute = Callable[[Action, Tensor | None], Tensor | None]


class Executed(NamedTuple):
    """An action as it was carried out; seconds of this machine's monotonic clock, which its processes share."""

    action: Action
    start: float
    end: float


def program(s: Pipeline) -> Callable[[Compute, Tensor], list[Executed]]:
    """The rank function of a schedule: call it on every rank with the same schedule.

    It takes `compute(action, arrived)`, which returns the tensor for the next stage (of F: activations; of B and I: the
    gradient of the input; of W: None), and `like`, a tensor of its shape and dtype.  `arrived` is None
    where an action has no input from another stage.  See `modules` for one of them.
    Returns this rank's actions with their times.
    """

    def pipeline(compute: Compute, like: Tensor) -> list[Executed]:
        rank, done, here, sending = dist.get_rank(), [], {}, []
        if dist.get_world_size() != s.ranks:
            raise ValueError(f"{s.name} is a schedule for {s.ranks} ranks, not {dist.get_world_size()}.")
        targets = s.targets()
        for a in s.rows[rank]:
            arrived, need, source = None, s.needs(a), s.source(a)
            if source is not None:
                arrived = torch.empty_like(like)
                dist.recv(arrived, source, tag=_tag(need))
            elif need in here and need.stage != a.stage:
                arrived = here.pop(need)  # the neighboring stage is on this rank too
            start = time.perf_counter()
            result = compute(a, arrived)
            done.append(Executed(a, start, time.perf_counter()))
            if a in targets:
                sending.append(dist.isend(result, targets[a], tag=_tag(a)))
            elif result is not None:
                here[a] = result
        for work in sending:
            work.wait()
        return done

    pipeline.__name__ = pipeline.__qualname__ = s.name
    return pipeline


def _tag(a: Action) -> int:
    """A separate tag for each message: messages of two chunks may cross."""
    return (a.microbatch * 1000 + a.stage) * len(KINDS) + list(KINDS).index(a.kind)


def asleep(s: Pipeline, costs: Costs) -> Callable[[], list[Executed]]:
    """The rank function of a schedule whose stages only sleep: costs in seconds.

    That needs no core, so there may be more ranks than cores.  Returns this rank's actions with their times.
    """
    pipeline = program(s)

    def compute(a: Action, arrived: Tensor | None) -> Tensor:
        time.sleep(costs.of(a.kind) * s.share)
        return torch.zeros(1)

    def sleeping() -> list[Executed]:
        return pipeline(compute, torch.zeros(1))

    sleeping.__name__ = sleeping.__qualname__ = s.name
    return sleeping


def modules(
    stages: dict[int, nn.Module], last: int, inputs: Sequence[Tensor], loss: Callable[[Tensor, int], Tensor]
) -> Compute:
    """Compute with modules and autograd.

    stages: number -> module, on this rank.  last: number of the model's last stage.  inputs: the
    microbatches, for stage 0.  loss(output, k): of microbatch k, already divided by the number of microbatches.
    Gradients add up in `.grad`.  I and W each walk the graph: for four layers, 2.75 forwards' work; a B's is 2.
    """
    graphs: dict[tuple[int, int], tuple] = {}  # kept per microbatch: input, output, the output's gradient

    def compute(a: Action, arrived: Tensor | None) -> Tensor | None:
        module, key = stages[a.stage], (a.stage, a.microbatch)
        if a.kind == "F":
            x = arrived.detach().requires_grad_() if a.stage else inputs[a.microbatch]
            y = module(x)
            if a.stage == last:
                y = loss(y, a.microbatch)
            graphs[key] = x, y, None
            return None if a.stage == last else y.detach()
        x, y, gradient = graphs.pop(key)
        if a.kind == "I":
            graphs[key] = x, y, arrived
            return torch.autograd.grad(y, x, arrived, retain_graph=True)[0] if a.stage else None
        if a.kind == "W":
            torch.autograd.backward(y, gradient, inputs=[p for p in module.parameters() if p.requires_grad])
            return None
        torch.autograd.backward(y, arrived)
        return x.grad

    return compute
