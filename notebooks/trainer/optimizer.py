"""AdamW on this rank's pieces, with the gradient clipped by the norm over all ranks."""

import torch
import torch.distributed as dist


@torch.no_grad()
def adamw(p, g, m, v, step, lr, decay, beta1=0.9, beta2=0.95, eps=1e-8):
    m.lerp_(g, 1 - beta1)
    v.lerp_(g * g, 1 - beta2)
    p.mul_(1 - lr * decay)
    p.sub_(lr / (1 - beta1**step) * m / ((v / (1 - beta2**step)).sqrt() + eps))


def sums_over_ranks(pieces, loss, copies):
    """The gradient's global norm and the loss, in one all_reduce: each rank adds its share of what several have."""
    squares = sum((piece.gradient.square().sum() / piece.copies for piece in pieces), torch.zeros_like(loss))
    sums = torch.stack([squares, loss / copies])
    dist.all_reduce(sums)
    return sums[0].sqrt().item(), sums[1].item()


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
