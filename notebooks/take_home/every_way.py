"""Several ways at once: matrices cut over two ranks, shards and batch over the rest (chapter 20).

torchrun --nproc-per-node 4 every_way.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def operator(forward, backward):
    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group=None):
            ctx.group = group
            return forward(x, group)

        @staticmethod
        def backward(ctx, d):
            return backward(d, ctx.group), None

    return Operator.apply


def same(x, group):
    return x.view_as(x)


def add_up(x, group):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def shard_linear(layer, dim, group):
    part = layer.weight.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]
    layer.weight = nn.Parameter(part.clone())


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh(device.type, (n // 2, 2) if n % 2 == 0 else (n, 1), mesh_dim_names=("fs", "tp"))
    tp, place, copies = mesh.get_group("tp"), mesh.get_local_rank("fs"), mesh.size(0)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(16, 64, False), nn.GELU(), nn.Linear(64, 16, False)) for _ in range(3))
    )
    alone, x = copy.deepcopy(model), torch.randn(4 * copies, 16)
    enter, leave = operator(same, add_up), operator(add_up, same)
    for mlp in model:  # first the matrices are cut, then what is left of them is sharded
        shard_linear(mlp[0], 0, tp)
        shard_linear(mlp[2], 1, tp)
        mlp.register_forward_pre_hook(lambda module, inputs: (enter(inputs[0], tp),))
        mlp.register_forward_hook(lambda module, inputs, output: leave(output, tp))
        fully_shard(mlp, mesh=mesh["fs"])
    model(x.chunk(copies)[place]).square().mean().backward()
    alone(x).square().mean().backward()
    for mlp, want in zip(model, alone):
        for layer, dim in ((0, 0), (2, 1)):
            gradient = want[layer].weight.grad.chunk(mesh.size(1), dim)[mesh.get_local_rank("tp")]
            torch.testing.assert_close(mlp[layer].weight.grad.full_tensor(), gradient, rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: {copies} x {mesh.size(1)} ranks, the gradients of one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
