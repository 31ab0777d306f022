"""Every collective in words and as a call: what it needs, what it leaves, what it is for.

Ranks import this module, so it imports nothing that draws.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch
import torch.distributed as dist


class Entry(NamedTuple):
    op: str
    signature: str
    before: str  # who needs what
    after: str  # who has what
    use: str
    make: Callable[[torch.Tensor], None]  # the call: on a full buffer of this rank's numbers


def _parts(full: torch.Tensor) -> list[torch.Tensor]:
    return [part.clone() for part in full.chunk(dist.get_world_size())]


def _mine(full: torch.Tensor) -> torch.Tensor:
    return _parts(full)[dist.get_rank()]


def _buffers(full: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(part) for part in _parts(full)]


def _on_root(value):
    return value if dist.get_rank() == 0 else None


ENTRIES = (
    Entry(
        "broadcast", "dist.broadcast(tensor, src)",
        "src: the data; the others: a buffer of the same shape", "all: what src had",
        "first weights, settings, decisions of one rank",
        lambda full: dist.broadcast(full, src=0),
    ),
    Entry(
        "scatter", "dist.scatter(tensor, scatter_list, src)",
        "src: a list of N equal tensors; all: a buffer for one", "rank r: the r-th of the list",
        "handing out equal parts (data is mostly read by each rank)",
        lambda full: dist.scatter(_buffers(full)[0], _on_root(_parts(full)), src=0),
    ),
    Entry(
        "gather", "dist.gather(tensor, gather_list, dst)",
        "all: a tensor; dst: a list of N buffers", "dst: the tensors of all ranks, in a list",
        "predictions, things to look at",
        lambda full: dist.gather(_mine(full), _on_root(_buffers(full)), dst=0),
    ),
    Entry(
        "reduce", "dist.reduce(tensor, dst, op)",
        "all: a tensor", "dst: the sum, in place; the others: undefined",
        "metrics; a shard's gradients, to its owner (ZeRO 1, 2)",
        lambda full: dist.reduce(full, dst=0),
    ),
    Entry(
        "all_gather", "dist.all_gather_single(output, input)",
        "all: a tensor, and a buffer for N of them", "all: the tensors of all ranks",
        "parameters (ZeRO 3, FSDP), sequence parallelism",
        lambda full: dist.all_gather_single(torch.zeros_like(full), _mine(full)),
    ),
    Entry(
        "all_reduce", "dist.all_reduce(tensor, op)",
        "all: a tensor", "all: the sum, in place",
        "gradients (DDP), partial sums (tensor parallelism)",
        lambda full: dist.all_reduce(full),
    ),
    Entry(
        "reduce_scatter", "dist.reduce_scatter_single(output, input, op)",
        "all: N chunks, and a buffer for one", "rank r: the sum of the r-th chunks",
        "gradients (ZeRO 2 and 3, FSDP), sequence parallelism",
        lambda full: dist.reduce_scatter_single(_buffers(full)[0], full),
    ),
    Entry(
        "all_to_all", "dist.all_to_all_single(output, input)",
        "all: N chunks, a buffer for N; split sizes if uneven", "rank r: the r-th chunk of every rank",
        "tokens to experts and back (mixture of experts)",
        lambda full: dist.all_to_all_single(torch.zeros_like(full), full),
    ),
    Entry(
        "barrier", "dist.barrier()",
        "nothing", "all: every rank has arrived",
        "waiting for a file that one rank writes; timing",
        lambda full: dist.barrier(),
    ),
)  # fmt: skip

BY_NAME = {entry.op: entry for entry in ENTRIES}


def make(op: str, numbers: int) -> None:
    """What a rank does: this collective once, with a full buffer of so many float32, rank r's starting at r * numbers."""
    BY_NAME[op].make(torch.arange(float(numbers)) + numbers * dist.get_rank())
