"""DiLoCo: islands, each a job of its own on its own mesh, that meet after every few steps (chapter 24)."""

from datetime import timedelta

import torch
import torch.distributed as dist


def due_fragment(step, every, fragments):
    gap = every // fragments
    return None if step % gap else (step // gap - 1) % fragments


def outer_step(weights, anchor, momentum, lr, mu, group=None):
    moved = (anchor - weights) / dist.get_world_size(group)
    dist.all_reduce(moved, group=group)
    momentum.mul_(mu).add_(moved)
    return anchor - lr * (moved + mu * momentum)


class Islands:
    """This rank's group with the ranks of its number on the other islands, whose meshes are equal: they have the same shards."""

    def __init__(self, shards, config):
        self.shards, self.config, rank = shards, config, dist.get_rank()
        self.anchors = [shard.cpu().clone() for shard in shards]  # on which all islands agree
        self.momenta = [torch.zeros_like(anchor) for anchor in self.anchors]
        host, port = config.meet.rsplit(":", 1)
        first = config.island == 0 and rank == 0
        self.store = dist.TCPStore(host, int(port), is_master=first, wait_for_workers=False)
        names = dist.PrefixStore(f"rank {rank}", self.store)
        self.group = dist.ProcessGroupGloo(names, config.island, config.islands, timedelta(minutes=10))

    def meet(self, step):
        """The outer step of the layers that are due after this step of the job, if any are."""
        due = due_fragment(step, self.config.talk, self.config.fragments)
        for k in [] if due is None else range(due, len(self.shards), self.config.fragments):
            shard, anchor = self.shards[k], self.anchors[k]
            settings = self.config.outer_lr, self.config.outer_momentum
            anchor.copy_(outer_step(shard.cpu(), anchor, self.momenta[k], *settings, self.group))
            shard.copy_(anchor)
