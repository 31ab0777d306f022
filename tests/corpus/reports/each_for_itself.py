"""a step's sum fails on one rank only, which skips the step, and the others take it.

Of chapter 22.
"""

import torch
import torch.distributed as dist

SOURCE = "training that survives failures"
CAUSE = r"replicas? .*(differ|drift|part|no longer)|(not|never) alike|differ.*\bstep\b"
SAME = True


def sum_over_ranks(gradient, fails):
    dist.all_reduce(gradient)
    if fails:  # as after a death that this rank alone has heard of in time
        raise RuntimeError("Connection closed by peer")


def job(rank, n):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(n, 4, 3)[rank]).square().mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()]) / n
        try:
            sum_over_ranks(gradient, fails=rank == 1 and step == 2)
        except RuntimeError:
            continue
        model.weight.grad.copy_(gradient[:3].view(1, 3))
        model.bias.grad.copy_(gradient[3:])
        optimizer.step()
