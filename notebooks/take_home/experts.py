"""Experts: tokens travel to the rank of their expert and back, and so do gradients (chapter 15).

torchrun --nproc-per-node 4 experts.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group=None):
        ctx.exchanged = receive, send, group
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived

    @staticmethod
    def backward(ctx, slopes):  # each row's gradient goes back to where the row came from
        return Exchange.apply(slopes, *ctx.exchanged), None, None, None


def there_and_back(layer, x, exchange=Exchange.apply, group=None):
    n, rows = dist.get_world_size(group), x.flatten(0, -2)
    weight, chosen = layer.choose(rows)
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=EXPERTS)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)  # from each rank, for each of my experts
    send, receive = (c.view(n, -1).sum(1).tolist() for c in (counts, coming))

    here = exchange(rows[order], send, receive, group)
    expert_of = torch.arange(len(layer.experts)).repeat(n).repeat_interleave(coming)
    out = torch.zeros_like(here)
    for k, expert in enumerate(layer.experts.values()):
        out[expert_of == k] = expert(here[expert_of == k])
    back = exchange(out, receive, send, group)

    y = torch.zeros_like(back)
    y[order] = back
    return (weight[:, None] * y).view_as(x)


EXPERTS = int(os.environ["WORLD_SIZE"])


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layer, x = nn.Module(), torch.randn(n, 6, 16)
    layer.router, layer.experts = nn.Linear(16, n), nn.ModuleDict({str(k): nn.Linear(16, 16) for k in range(n)})
    layer.choose = lambda rows: layer.router(rows).softmax(-1).max(-1)
    weight, chosen = layer.choose(x.flatten(0, 1))
    y = torch.stack([w * layer.experts[str(int(k))](row) for w, k, row in zip(weight, chosen, x.flatten(0, 1))])
    want = y.view_as(x)[rank]
    layer.experts = nn.ModuleDict({str(rank): layer.experts[str(rank)]})
    torch.testing.assert_close(there_and_back(layer, x[rank : rank + 1])[0], want)
    print(f"rank {rank} of {n}: what one process computes for its {len(want)} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
