"""a rank whose gradient isn't finite skips its step, and with it the average of the weights that was due.

pytorch/pytorch issue 76282.
"""

import torch
import torch.distributed as dist

SOURCE = "local SGD with a gradient scaler"
CAUSE = r"rank 1 (skips|leaves out|doesn.t get to) the call in line \d+|skip.*(finite|inf)"


class AveragingSGD(torch.optim.SGD):
    """Averages the weights over ranks in every second step."""

    taken = 0

    def step(self):
        super().step()
        self.taken += 1
        if self.taken % 2 == 0:
            for p in self.param_groups[0]["params"]:
                dist.all_reduce(p.data.div_(dist.get_world_size()))


def job(rank, n):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = AveragingSGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(n, 4, 3)[rank]).square().mean().backward()
        if rank == 1 and step == 1:
            model.weight.grad[0, 0] = float("inf")
        if model.weight.grad.isfinite().all():  # as a scaler does
            optimizer.step()
