"""Ranks have unevenly many batches, and DDP's Join makes up for it; then no_sync accumulates gradients."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
with Join([model]):
    for _ in range(3 + 2 * rank):
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
for micro in range(4):
    with model.no_sync() if micro < 3 else contextlib.nullcontext():
        model(torch.randn(3, 4)).square().mean().div(4).backward()
optimizer.step()
print(sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
dist.destroy_process_group()
