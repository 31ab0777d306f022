"""Expert parallel: a rank has some of a block's experts, and tokens travel to theirs and back."""

from functools import partial

import torch
import torch.distributed as dist
from model import Experts


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.exchanged = receive, send, group
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived

    @staticmethod
    def backward(ctx, slopes):  # each row's gradient goes back to where the row came from
        return AllToAll.apply(slopes, *ctx.exchanged), None, None, None


def to_experts(experts, group, rows, counts):
    """What MoE.apply_experts does, with experts of several ranks. rows: in the order of their experts."""
    n, local = dist.get_world_size(group), len(experts)
    recv_counts = torch.empty_like(counts)
    dist.all_to_all_single(recv_counts, counts, group=group)  # of each rank, for each of my experts
    send, receive = (c.view(n, local).sum(1).tolist() for c in (counts, recv_counts))
    here = AllToAll.apply(rows, send, receive, group)
    expert_of = torch.arange(local, device=rows.device).repeat(n).repeat_interleave(recv_counts)
    order, out = expert_of.argsort(stable=True), torch.zeros_like(here)
    out[order] = experts(here[order], recv_counts.view(n, local).sum(0).tolist())
    return AllToAll.apply(out, receive, send, group)


def cut_experts(block, group):
    """Keep this rank's experts, which keep their names."""
    moe, rank, n = block.mlp, dist.get_rank(group), dist.get_world_size(group)
    local = len(moe.experts) // n
    moe.experts = Experts({str(k): moe.experts[str(k)] for k in range(rank * local, (rank + 1) * local)})
    moe.apply_experts = partial(to_experts, moe.experts, group)
