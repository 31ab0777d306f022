"""Long context: ranks exchange some positions of all heads for all positions of some heads (Ulysses, chapter 16).

torchrun --nproc-per-node 4 long_context.py
"""

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F


def operator(forward, backward):
    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, d):
            return backward(d)

    return Operator.apply


def swap_all_to_all(x, take, put, group=None):  # cut along `take`, join what arrives along `put`
    pieces = torch.stack(x.chunk(dist.get_world_size(group), take))
    arrived = torch.empty_like(pieces)
    dist.all_to_all_single(arrived, pieces, group=group)
    return torch.cat(list(arrived), put)


def ulysses_operators(group=None):
    to_heads = functools.partial(swap_all_to_all, take=1, put=2, group=group)
    to_positions = functools.partial(swap_all_to_all, take=2, put=1, group=group)
    return operator(to_heads, to_positions), operator(to_positions, to_heads)


def ulysses_attention(q, k, v):
    to_heads, to_positions = ulysses_operators()
    return to_positions(F.scaled_dot_product_attention(*map(to_heads, (q, k, v)), is_causal=True))


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2 * n, 16 * n, 8, requires_grad=True) for _ in range(3))  # rows, heads, positions, size
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected.square().sum().backward()
    mine = [x.detach().chunk(n, 2)[rank].requires_grad_() for x in (q, k, v)]  # positions
    y = ulysses_attention(*mine)
    y.square().sum().backward()
    whole = [expected, q.grad, k.grad, v.grad]
    torch.testing.assert_close([y, *(x.grad for x in mine)], [x.chunk(n, 2)[rank] for x in whole], rtol=1e-4, atol=1e-4)
    print(
        f"rank {rank} of {n}: {mine[0].shape[2]} of {q.shape[2]} positions, output and gradients of one process",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
