"""Experts: tokens travel to the rank of their expert and back, and so do gradients (chapter 15).

torchrun --nproc-per-node 4 experts.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group=None):
        ctx.exchanged = receive, send, group
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived

    @staticmethod
    def backward(ctx, slopes):  # each row's gradient goes back to where the row came from
        return AllToAll.apply(slopes, *ctx.exchanged), None, None, None


def moe_forward(layer, x, exchange=AllToAll.apply, group=None):
    n, rows = dist.get_world_size(group), x.flatten(0, -2)
    gate, chosen = layer.choose(rows)
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=EXPERTS)
    recv_counts = torch.empty_like(counts)
    dist.all_to_all_single(recv_counts, counts, group=group)  # of each rank, for each of my experts
    send, receive = (c.view(n, -1).sum(1).tolist() for c in (counts, recv_counts))

    here = exchange(rows[order], send, receive, group)
    expert_of = torch.arange(len(layer.experts)).repeat(n).repeat_interleave(recv_counts)
    out = torch.zeros_like(here)
    for k, expert in enumerate(layer.experts.values()):
        out[expert_of == k] = expert(here[expert_of == k])
    back = exchange(out, receive, send, group)

    y = torch.zeros_like(back)
    y[order] = back
    return (gate[:, None] * y).view_as(x)


EXPERTS = int(os.environ["WORLD_SIZE"])


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layer, x = nn.Module(), torch.randn(n, 6, 16, requires_grad=True)
    layer.router, layer.experts = nn.Linear(16, n), nn.ModuleDict({str(k): nn.Linear(16, 16) for k in range(n)})
    layer.choose = lambda rows: layer.router(rows).softmax(-1).max(-1)
    gate, chosen = layer.choose(x.flatten(0, 1))
    every = torch.stack([expert(x.flatten(0, 1)) for expert in layer.experts.values()])  # some may get no token
    y = gate[:, None] * every[chosen, torch.arange(len(chosen))]
    y.view_as(x).square().sum().backward()  # one process, all tokens, all experts
    expert, router = layer.experts[str(rank)].weight, layer.router.weight
    expected = [y.view_as(x)[rank], x.grad[rank], expert.grad, router.grad]

    layer.zero_grad()
    layer.experts, mine = nn.ModuleDict({str(rank): layer.experts[str(rank)]}), x.detach()[rank].requires_grad_()
    y = moe_forward(layer, mine)
    y.square().sum().backward()
    dist.all_reduce(router.grad)  # every rank has one
    torch.testing.assert_close([y, mine.grad, expert.grad, router.grad], expected, rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: output and gradients of one process, for its {len(mine)} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
