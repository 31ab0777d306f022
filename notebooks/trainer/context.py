"""Context parallel: a rank has some of the positions, and keys and values go around a ring, or (--gather 1) to all."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensor import AllGather

NOTHING = -1e30  # the lse of no keys at all; -inf would give nan where two of them meet


def attend(q, k, v, mask):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True).clamp(min=NOTHING)
    return (scores - lse).exp() @ v, lse


def merge_parts(means, lses):
    lses = torch.stack(lses)
    return ((lses - lses.logsumexp(0)).exp() * torch.stack(means)).sum(0)


def merge(o, lse, o2, lse2):
    return merge_parts([o, o2], [lse, lse2]), torch.logaddexp(lse, lse2)


def ring_shift(x, group):
    """To the right neighbor, while the left one's arrives."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    arriving = torch.empty_like(x)
    send = dist.P2POp(dist.isend, x, group=group, group_peer=(rank + 1) % n)
    receive = dist.P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % n)
    return arriving, dist.batch_isend_irecv([send, receive])


def wait(works):
    for work in works:
        work.wait()


def halves(positions, others):
    """Which halves of a rank's queries see which halves of a rank's keys: two of four, or three of its own."""
    for rows in torch.arange(len(positions)).chunk(2):
        for columns in torch.arange(len(others)).chunk(2):
            mask = positions[rows][:, None] >= others[columns]
            if mask.any():
                yield slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1), mask


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, positions, group):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        kv, o, lse = torch.stack([k, v]), torch.zeros_like(q), torch.full_like(q[..., :1], NOTHING)
        for hop in range(n):
            if hop < n - 1:
                arriving, works = ring_shift(kv, group)
            for a, b, mask in halves(positions[rank], positions[(rank - hop) % n]):  # whose keys these are
                found = attend(q[..., a, :], *kv[..., b, :], mask.to(q.device))
                o[..., a, :], lse[..., a, :] = merge(o[..., a, :], lse[..., a, :], *found)
            if hop < n - 1:
                wait(works)
                kv = arriving
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.positions, ctx.group = positions, group
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        rank, n = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        scale, inner = q.shape[-1] ** -0.5, (do * o).sum(-1, keepdim=True)
        kv, dq = torch.stack([k, v]), torch.zeros_like(q)
        dkv = torch.zeros_like(kv)
        for hop in range(n):
            if hop < n - 1:
                arriving, works = ring_shift(kv, ctx.group)
            for a, b, mask in halves(ctx.positions[rank], ctx.positions[(rank - hop) % n]):
                (k, v), q_a, do_a = kv[..., b, :], q[..., a, :], do[..., a, :]
                scores = (q_a @ k.mT * scale).masked_fill(~mask.to(q.device), -torch.inf)
                p = (scores - lse[..., a, :]).exp()
                ds = p * (do_a @ v.mT - inner[..., a, :]) * scale
                dq[..., a, :] += ds @ k
                dkv[..., b, :] += torch.stack([ds.mT @ q_a, p.mT @ do_a])
            dkv, others = ring_shift(dkv, ctx.group)  # with the keys; after n hops it is at home
            wait(others)
            if hop < n - 1:
                wait(works)
                kv = arriving
        return dq, *dkv, None, None


def ring_attention(q, k, v, positions, group):
    return Ring.apply(q, k, v, positions, group)


def gather_attention(q, k, v, positions, group):
    """The same in one call for the keys and one for the values, which each rank then has whole."""
    mask = positions[dist.get_rank(group)][:, None] >= torch.cat(list(positions))
    k, v = AllGather(k, group), AllGather(v, group)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.device))


def cut_context(block, positions, group, way=ring_attention):
    attention = block.attention
    attention.angles = attention.angles[positions[dist.get_rank(group)]]
    attention.kernel = partial(way, positions=positions, group=group)
