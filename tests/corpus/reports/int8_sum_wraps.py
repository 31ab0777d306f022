"""gradients in eight bits are summed by all_reduce, and sums above 127 wrap.

NVIDIA/nccl issue 422.
"""

import torch
import torch.distributed as dist

SOURCE = "gradients in eight bits"
CAUSE = r"all_reduce\b.*\bint8\b.*\b(wrap|overflow)|\b(wraps?|overflow(s|ed)?)\b.*\bint8\b"
SAME = True


def job(rank, n):
    gradient = torch.tensor([0.9, -0.2, 0.5]) + 0.01 * rank
    scale = gradient.abs().max()
    dist.all_reduce(scale, dist.ReduceOp.MAX)
    rounded = (gradient / scale * 127).round().to(torch.int8)
    dist.all_reduce(rounded)
    return (rounded * scale / 127 / n).tolist()
