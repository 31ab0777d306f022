"""Data parallel: gradients are added up over all ranks with the same parameters, while the backward pass goes on."""

import torch.distributed as dist


class Replicas:
    """Sums in flight. A loss is a share of the whole batch's, so gradients add up and nothing is divided."""

    def __init__(self, group):
        self.group, self.works = group, []

    def start(self, gradient):
        self.works.append(dist.all_reduce(gradient, group=self.group, async_op=True))

    def wait(self):
        for work in self.works:
            work.wait()
        self.works.clear()
