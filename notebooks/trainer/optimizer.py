"""AdamW on this rank's pieces, with the gradient clipped by the norm over all ranks."""

import torch
import torch.distributed as dist


@torch.no_grad()
def adamw(p, g, m, v, step, lr, decay, beta1=0.9, beta2=0.95, eps=1e-8):
    m.lerp_(g, 1 - beta1)
    v.lerp_(g * g, 1 - beta2)
    p.mul_(1 - lr * decay)
    p.sub_(lr / (1 - beta1**step) * m / ((v / (1 - beta2**step)).sqrt() + eps))


def norm_of_all(mine, shared):
    total = mine.square().sum()
    dist.all_reduce(total)
    return (total + shared.square().sum()).sqrt()


def norm_and_loss(pieces, loss, copies):
    """The gradient's global norm, to which one rank adds what several have, and the loss, of which each has a share."""
    norms = torch.stack([piece.gradient.norm() * piece.first for piece in pieces])
    total = loss / copies
    dist.all_reduce(total)
    return norm_of_all(norms, norms.new_zeros(())).item(), total.item()


class AdamW:
    def __init__(self, pieces, config):
        self.pieces, self.config, self.steps = pieces, config, 0
        self.states = {piece.name: [torch.zeros_like(piece.value) for _ in "mv"] for piece in pieces}

    def step(self, norm):
        self.steps += 1
        scale = min(1.0, self.config.clip / (norm + 1e-6))
        for piece in self.pieces:
            decay = 0.0 if "norm" in piece.name else self.config.decay
            states = self.states[piece.name]
            adamw(piece.value, piece.gradient * scale, *states, self.steps, self.config.lr, decay)
