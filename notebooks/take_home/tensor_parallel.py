"""Tensor parallel: an MLP by columns, then by rows, with one all_reduce each way (chapter 13).

torchrun --nproc-per-node 4 tensor_parallel.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn


def autograd_op(forward, backward):
    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, d):
            return backward(d)

    return Operator.apply


def identity(x):
    return x.view_as(x)


def sum_over_ranks(x):
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def shard_weight(layer, dim):
    rank, n = dist.get_rank(), dist.get_world_size()
    layer.weight = nn.Parameter(layer.weight.chunk(n, dim)[rank].clone())


def around(part, input_op, output_op):
    part.register_forward_pre_hook(lambda module, inputs: (input_op(inputs[0]),))
    part.register_forward_hook(lambda module, inputs, output: output_op(output))


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # all ranks draw the whole matrices, and the same batch
    mlp = nn.Sequential(nn.Linear(16, 8 * n, bias=False), nn.GELU(), nn.Linear(8 * n, 16, bias=False))
    alone, x = copy.deepcopy(mlp), torch.randn(32, 16, requires_grad=True)
    lone_x = x.detach().clone().requires_grad_()
    shard_weight(mlp[0], 0)  # columns of the product: rows of .weight
    shard_weight(mlp[2], 1)
    around(mlp, autograd_op(identity, sum_over_ranks), autograd_op(sum_over_ranks, identity))
    y, expected = mlp(x), alone(lone_x)
    y.square().sum().backward()
    expected.square().sum().backward()
    gradients, expected_gradients = [mlp[0].weight.grad, x.grad], [alone[0].weight.grad.chunk(n)[rank], lone_x.grad]
    torch.testing.assert_close([y, *gradients], [expected, *expected_gradients], rtol=1e-4, atol=1e-4)
    print(
        f"rank {rank} of {n}: {tuple(mlp[0].weight.shape)} of {tuple(alone[0].weight.shape)}, one process's gradient",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
