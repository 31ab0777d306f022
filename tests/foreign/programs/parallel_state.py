"""Groups kept in globals, messages in batches both ways round a ring, and a vocabulary cut over the ranks."""

import argparse

import torch
import torch.distributed as dist

_GROUPS = {}


def arguments():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    group = parser.add_argument_group("model parallel")
    group.add_argument("--tensor-model-parallel-size", type=int, default=1)
    group.add_argument("--use-distributed", action="store_true")
    args, _ = parser.parse_known_args()
    return args


def initialize(tensor):
    world = dist.get_world_size()
    for first in range(0, world, tensor):
        ranks = list(range(first, first + tensor))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            _GROUPS["tensor"] = group
    for offset in range(tensor):
        ranks = list(range(offset, world, tensor))
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            _GROUPS["data"] = group


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=_GROUPS["tensor"])
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def ring(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = torch.empty_like(x), torch.empty_like(x)
    sends = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.isend, -x, (rank - 1) % size)]
    receives = [dist.P2POp(dist.irecv, left, (rank - 1) % size), dist.P2POp(dist.irecv, right, (rank + 1) % size)]
    order = sends + receives if rank % 2 == 0 else receives[::-1] + sends[::-1]
    for work in dist.batch_isend_irecv(order):
        work.wait()
    return left, right


def main():
    args = arguments()
    dist.init_process_group("gloo")
    initialize(args.tensor_model_parallel_size)
    torch.manual_seed(dist.get_rank())
    vocabulary = torch.randn(10, 6, requires_grad=True)
    for step in range(2):
        loss = Reduced.apply(vocabulary.sum(0)).square().mean()
        loss.backward()
        dist.all_reduce(vocabulary.grad, group=_GROUPS["data"])
        print(step, loss.item().hex(), vocabulary.grad.sum().item().hex(), flush=True)
    print([part.sum().item().hex() for part in ring(torch.randn(3))], args, flush=True)
    dist.destroy_process_group()


main()
