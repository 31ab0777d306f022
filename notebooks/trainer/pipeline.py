"""Pipeline parallel: a rank has some of the layers, and alternates one forward with one backward (1F1B)."""

import torch
import torch.distributed as dist
from model import loss_of


def shard_range(length, rank, n):
    size, left = divmod(length, n)
    first = rank * size + min(rank, left)
    return first, first + size + (rank < left)


def order_1f1b(rank, ranks, microbatches):
    warm = min(ranks - 1 - rank, microbatches)
    order = [f"F{k}" for k in range(warm)]
    for k in range(microbatches - warm):
        order += [f"F{warm + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(microbatches - warm, microbatches)]


class Stage:
    """forward, backward: two groups of the same ranks, as NCCL would make one direction wait for the other."""

    def __init__(self, layers, config, forward, backward):
        self.layers, self.config, self.forward, self.backward = layers, config, forward, backward
        self.rank, self.n = dist.get_rank(forward), dist.get_world_size(forward)

    def step(self, tokens, targets, last):
        """This rank's share of the loss, 0 but on the last stage. last() is called before the last backward."""
        kept, sending = {}, []
        self.loss = torch.zeros((), device=self.config.device, dtype=getattr(torch, self.config.dtype))
        for action in order_1f1b(self.rank, self.n, len(tokens)):
            kind, k = action[0], int(action[1:])
            if kind == "F":
                kept[k] = self.run_forward(tokens[k], targets[k], sending)
            else:
                if k == len(tokens) - 1:
                    last()
                self.run_backward(*kept.pop(k), sending)
        for work, _ in sending:
            work.wait()
        return self.loss

    def run_forward(self, tokens, targets, sending):
        x = tokens
        if self.rank > 0:
            x = self.loss.new_empty(*tokens.shape, self.config.width)
            dist.recv(x, group=self.forward, group_src=self.rank - 1)
            x.requires_grad_()
        y = self.layers(x)
        if self.rank < self.n - 1:
            sent = y.detach()
            sending.append((dist.isend(sent, group=self.forward, group_dst=self.rank + 1), sent))
        else:
            y = loss_of(y, targets, self.config.rows * self.config.length)
            self.loss += y.detach()
        return x, y

    def run_backward(self, x, y, sending):
        dy = None
        if self.rank < self.n - 1:
            dy = torch.empty_like(y)
            dist.recv(dy, group=self.backward, group_src=self.rank + 1)
        y.backward(dy)  # gradients of microbatches add up
        if self.rank > 0:
            sending.append((dist.isend(x.grad, group=self.backward, group_dst=self.rank - 1), x.grad))
