"""Training by hand: optimizers as functions of tensors, and one process's results, to compare with.

torch.optim does the same, but making its first optimizer imports torch._dynamo, which takes seconds.
"""

import copy
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch
import torch.nn as nn

from .decoder import loss_of

Batch = tuple[torch.Tensor, torch.Tensor]


@torch.no_grad()
def sgd(p, g, m, step: int = 1, lr: float = 0.1, momentum: float = 0.9) -> None:
    """Update a parameter (or any piece of it) and its momentum in place, as torch.optim.SGD does, bit for bit.

    p, g, m: parameter, gradient, momentum; same shape.  m is zero before the first step.
    """
    m.mul_(momentum).add_(g)
    p.sub_(m, alpha=lr)


@torch.no_grad()
def adam(p, g, m, v, step: int, lr: float = 0.003, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
    """Update a parameter (or any piece of it) and its two averages in place, as torch.optim.Adam does, bit for bit.

    p, g: parameter and gradient; m, v: averages of g and of g squared, zero at first; step: 1 for the first.
    """
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    spread = (v.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
    p.addcdiv_(m, spread, value=-lr / (1 - beta1**step))


STATES = {sgd: 1, adam: 2}  # tensors that an optimizer keeps for each parameter


@dataclass
class Training:
    """One process's results: a loss per step, before its update; gradients per step; the last parameters; by name."""

    losses: list[float]
    gradients: list[dict[str, torch.Tensor]]
    parameters: dict[str, torch.Tensor]

    def __repr__(self) -> str:
        losses = " ".join(f"{loss:.4f}" for loss in self.losses)
        steps = f"{len(self.losses)} step{'s' * (len(self.losses) != 1)}"
        return f"one process, {steps}, {len(self.parameters)} parameters; losses: {losses}"

    def off(self, results: Sequence[Mapping[str, Any]], *kinds: str) -> float:
        """The largest difference between this training and a job that keeps shards of each layer's flat tensor.

        results: one per rank, with the losses of its part of each batch, and with what `kinds` names: "parameters",
        "gradients" of the last step; layer -> shard.
        """
        losses = [sum(of_step) / len(results) for of_step in zip(*(result["losses"] for result in results))]
        furthest = difference(losses, self.losses)
        for kind, values in ("parameters", self.parameters), ("gradients", self.gradients[-1]):
            for layer in dict.fromkeys(name.partition(".")[0] for name in values) if kind in kinds else ():
                flat = torch.cat([t.flatten() for name, t in values.items() if name.partition(".")[0] == layer])
                shards = torch.cat([result[kind][layer] for result in results])
                furthest = max(furthest, difference(shards[: len(flat)], flat))  # zeros fill the last shard
        return furthest


def one_process(model: nn.Module, batches: Sequence[Batch], optimizer: Callable = sgd, **options: Any) -> Training:
    """Train a copy of the model in this process, one step per batch: the reference for every parallel run.

    optimizer: sgd or adam, or a function called as they are that is listed in STATES; options: passed on, lr=0.1 say.
    """
    model, threads = copy.deepcopy(model), torch.get_num_threads()
    named = dict(model.named_parameters())
    states = {name: [torch.zeros_like(p) for _ in range(STATES[optimizer])] for name, p in named.items()}
    losses, gradients = [], []
    torch.set_num_threads(1)  # as ranks do: sums are taken in the same order
    try:
        for step, (tokens, targets) in enumerate(batches, start=1):
            loss = loss_of(model(tokens), targets)
            grads = dict(zip(named, torch.autograd.grad(loss, list(named.values()))))
            for name, p in named.items():
                optimizer(p, grads[name], *states[name], step=step, **options)
            losses.append(loss.item())
            gradients.append(grads)
    finally:
        torch.set_num_threads(threads)
    return Training(losses, gradients, {name: p.detach() for name, p in named.items()})


def flatten(layer: nn.Module, n: int) -> torch.Tensor:
    """A tensor of all the layer's parameters, end to end, which become views of it, and zeros up to a multiple of n."""
    flat, at = torch.cat([p.detach().flatten() for p in layer.parameters()]), 0
    flat = nn.functional.pad(flat, (0, -len(flat) % n))
    for p in layer.parameters():
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    return flat


def nbytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of all these tensors together."""
    return sum(t.nbytes for t in tensors)


def difference(got: Any, want: Any, at: str = "") -> float:
    """The largest |got - want| over tensors, numbers, and lists, tuples and mappings of them, alike in both.

    at: their name in an error.  Raises ValueError where they are not alike: a name that only one of them has,
    a different shape.
    """
    if isinstance(want, (list, tuple)):
        if len(got) != len(want):
            raise ValueError(f"{at or 'they'}: {len(got)} items against {len(want)}")
        got, want = dict(enumerate(got)), dict(enumerate(want))
    if isinstance(want, Mapping):
        if set(got) != set(want):
            only = sorted(map(str, set(got) ^ set(want)))
            raise ValueError(f"{at or 'they'}: only one of the two has {', '.join(only[:6])}")
        return max((difference(got[k], want[k], f"{at}[{k!r}]") for k in want), default=0.0)
    got, want = (
        t.detach().double() if isinstance(t, torch.Tensor) else torch.tensor(t, dtype=torch.float64)
        for t in (got, want)
    )
    if got.shape != want.shape:
        raise ValueError(f"{at or 'they'}: shape {list(got.shape)} against {list(want.shape)}")
    return (got - want).abs().max().item() if want.numel() else 0.0
