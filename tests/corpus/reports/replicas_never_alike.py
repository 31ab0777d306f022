"""each rank draws its own first weights, and only gradients are averaged."""

import torch
import torch.distributed as dist

SOURCE = "data parallelism by hand"
CAUSE = r"these replicas were never alike"
SAME = True


def job(rank, n):
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= n
        optimizer.step()
