"""Every collective: who is special, what goes in, what comes out, in words and as a call. One table for all.

Ranks import this module, so it imports nothing that draws.
"""

from __future__ import annotations

from typing import Callable, Literal, NamedTuple

import torch
import torch.distributed as dist

# The part of a rank's slots that a call takes or fills: one whole tensor, the rank's own slot of a row
# with a slot for every rank, or all of that row.
Shape = Literal["whole", "own", "all"]


class Collective(NamedTuple):
    op: str  # torch.distributed's name, without the form its tensors take
    root: Literal["src", "dst"] | None  # the argument that names the root
    reduces: bool
    gives: Shape | None  # what each rank passes in; None: no tensor
    gets: Shape | None  # what each rank is left with
    promise: str  # a sentence with {src}, {dst}, {reduce_op}
    signature: str
    needs: str  # who brings what, in words
    leaves: str  # who has what afterwards, in words
    use: str
    make: Callable[[torch.Tensor], None]  # the call, on a full buffer of this rank's numbers


def family(op: str) -> str:
    """The op without the form its tensors take: 'all_gather_single' -> 'all_gather'."""
    return op.removesuffix("_single").removesuffix("_coalesced")


def shapes(op: str) -> tuple[Shape | None, Shape | None]:
    """What a rank passes to an op, and what it is left with; (None, None) for an op not in the table."""
    found = COLLECTIVES.get(family(op))
    return (found.gives, found.gets) if found else (None, None)


def _parts(full: torch.Tensor) -> list[torch.Tensor]:
    return [part.clone() for part in full.chunk(dist.get_world_size())]


def _mine(full: torch.Tensor) -> torch.Tensor:
    return _parts(full)[dist.get_rank()]


def _buffers(full: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(part) for part in _parts(full)]


def _on_root(value):
    return value if dist.get_rank() == 0 else None


COLLECTIVES = {
    each.op: each
    for each in (
        Collective(
            "broadcast", "src", False, "whole", "whole",
            "after a broadcast everybody holds what rank {src} had",
            "dist.broadcast(tensor, src)",
            "src: the data; the others: a buffer of the same shape", "all: what src had",
            "first weights, settings, decisions of one rank",
            lambda full: dist.broadcast(full, src=0),
        ),
        Collective(
            "scatter", "src", False, "all", "own",
            "scatter gives rank r the r-th of rank {src}'s list",
            "dist.scatter(tensor, scatter_list, src)",
            "src: a list of N equal tensors; all: a buffer for one", "rank r: the r-th of the list",
            "handing out equal parts (data is mostly read by each rank)",
            lambda full: dist.scatter(_buffers(full)[0], _on_root(_parts(full)), src=0),
        ),
        Collective(
            "gather", "dst", False, "own", "all",
            "gather gives rank {dst} the tensors of all ranks, in rank order",
            "dist.gather(tensor, gather_list, dst)",
            "all: a tensor; dst: a list of N buffers", "dst: the tensors of all ranks, in a list",
            "predictions, things to look at",
            lambda full: dist.gather(_mine(full), _on_root(_buffers(full)), dst=0),
        ),
        Collective(
            "reduce", "dst", True, "whole", "whole",
            "reduce leaves the {reduce_op} over all ranks on rank {dst}",
            "dist.reduce(tensor, dst, op)",
            "all: a tensor", "dst: the sum, in place; the others: undefined",
            "metrics; a shard's gradients, to its owner (ZeRO 1, 2)",
            lambda full: dist.reduce(full, dst=0),
        ),
        Collective(
            "all_gather", None, False, "own", "all",
            "all_gather gives everybody the tensors of all ranks, in rank order",
            "dist.all_gather_single(output, input)",
            "all: a tensor, and a buffer for N of them", "all: the tensors of all ranks",
            "parameters (ZeRO 3, FSDP), sequence parallelism",
            lambda full: dist.all_gather_single(torch.zeros_like(full), _mine(full)),
        ),
        Collective(
            "all_reduce", None, True, "whole", "whole",
            "all_reduce leaves the {reduce_op} over all ranks on every rank",
            "dist.all_reduce(tensor, op)",
            "all: a tensor", "all: the sum, in place",
            "gradients (DDP), partial sums (tensor parallelism)",
            lambda full: dist.all_reduce(full),
        ),
        Collective(
            "reduce_scatter", None, True, "all", "own",
            "reduce_scatter gives rank r the {reduce_op} of all ranks' r-th chunks",
            "dist.reduce_scatter_single(output, input, op)",
            "all: N chunks, and a buffer for one", "rank r: the sum of the r-th chunks",
            "gradients (ZeRO 2 and 3, FSDP), sequence parallelism",
            lambda full: dist.reduce_scatter_single(_buffers(full)[0], full),
        ),
        Collective(
            "all_to_all", None, False, "all", "all",
            "all_to_all gives rank r the r-th chunk of every rank, in rank order",
            "dist.all_to_all_single(output, input)",
            "all: N chunks, a buffer for N; split sizes if uneven", "rank r: the r-th chunk of every rank",
            "tokens to experts and back (mixture of experts)",
            lambda full: dist.all_to_all_single(torch.zeros_like(full), full),
        ),
        Collective(
            "barrier", None, False, None, None,
            "after a barrier every rank has arrived",
            "dist.barrier()",
            "nothing", "all: every rank has arrived",
            "waiting for a file that one rank writes; timing",
            lambda full: dist.barrier(),
        ),
    )
}  # fmt: skip


def make(op: str, numbers: int) -> None:
    """Call this collective once, with a full buffer of so many float32, rank r's starting at r * numbers."""
    COLLECTIVES[op].make(torch.arange(float(numbers)) + numbers * dist.get_rank())
