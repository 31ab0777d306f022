"""Data parallel: buckets of gradients are averaged while the backward pass goes on (chapter 11).

torchrun --nproc-per-node 4 data_parallel.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn


def buckets(cap):
    def averaging(model):
        n, parameters = dist.get_world_size(), list(model.parameters())
        bucket, in_flight, arrived = [], [], []

        def send():
            whole = torch.cat([p.grad.flatten() for p in bucket]) / n
            in_flight.append((list(bucket), whole, dist.all_reduce(whole, async_op=True)))
            bucket.clear()

        def ready(p):
            bucket.append(p)
            arrived.append(p)
            if sum(p.grad.nbytes for p in bucket) >= cap or len(arrived) == len(parameters):
                send()

        def average():  # after one backward
            for members, whole, work in in_flight:
                work.wait()
                for p, part in zip(members, whole.split([p.numel() for p in members])):
                    p.grad.copy_(part.view_as(p))
            in_flight.clear()
            arrived.clear()

        for p in parameters:
            p.register_post_accumulate_grad_hook(ready)
        return average

    return averaging


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # all ranks begin with the same weights
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    alone = copy.deepcopy(model)
    batches = [(torch.randn(8 * n, 16), torch.randn(8 * n, 16)) for _ in range(5)]
    average = buckets(4096)(model)
    optimizers = [torch.optim.Adam(m.parameters()) for m in (model, alone)]
    for x, target in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(model(x.chunk(n)[rank]), target.chunk(n)[rank]).backward()
        average()
        nn.functional.mse_loss(alone(x), target).backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(alone.parameters()), rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: five steps, and the weights of one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
