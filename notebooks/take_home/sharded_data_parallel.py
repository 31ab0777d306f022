"""Sharded data parallel (FSDP, ZeRO 3): torch's fully_shard, layer by layer (chapter 12).

torchrun --nproc-per-node 4 sharded_data_parallel.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn


def fsdp(model, batches, mesh=None, **options):
    from torch.distributed.fsdp import fully_shard

    rank, n, losses = dist.get_rank(), dist.get_world_size(), []
    mesh = mesh or dist.init_device_mesh("cpu", (n,))
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)  # after fully_shard
    for tokens, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model(tokens.chunk(n)[rank]), targets.chunk(n)[rank])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    named = dict(model.named_parameters())
    shards = {name: p.to_local() for name, p in named.items()}
    gradients = {name: p.grad.to_local() for name, p in named.items()}
    return dict(losses=losses, parameters=shards, gradients=gradients)


def loss_of(y, target):
    return nn.functional.mse_loss(y, target)


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # fully_shard takes each rank's own weights, so begin with the same ones
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    alone = copy.deepcopy(model)
    batches = [(torch.randn(8 * n, 16), torch.randn(8 * n, 16)) for _ in range(5)]
    mesh = dist.init_device_mesh(device.type, (n,))
    kept = sum(shard.nbytes for shard in fsdp(model, batches, mesh=mesh)["parameters"].values())
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.003)
    for x, target in batches:
        optimizer.zero_grad()
        loss_of(alone(x), target).backward()
        optimizer.step()
    whole = [p.full_tensor() for p in model.parameters()]
    torch.testing.assert_close(whole, list(alone.parameters()), rtol=1e-4, atol=1e-5)
    print(
        f"rank {rank} of {n}: the weights of one process; {kept:,} of {sum(p.nbytes for p in whole):,} bytes",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
