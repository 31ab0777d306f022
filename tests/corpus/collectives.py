"""A call of each form of each collective, and what the literature says that it moves: a new collective has a row here.

What a rank passes to it, and what it is then left with, follow from the one table of collectives; `test_record.py`
compares them with what torch does on real ranks.
"""

from typing import Any, Callable, NamedTuple, Sequence

import torch
import torch.distributed as dist

from collectives.log.collectives import of

SUM = dist.ReduceOp.SUM
Value = Callable[[int, int], Any]  # (global rank, slot): a number of a rank for itself, or for each member of the group


class Case(NamedTuple):
    """busiest: of n ranks, the part of the whole buffer S that the busiest must send, or receive."""

    call: Callable[..., Any]  # (what is passed in, what is filled, root, group, reduce op)
    busiest: Callable[[int], float] = lambda n: 0
    root: tuple = ()  # the parts of S that the root must send, and receive
    others: Callable[[int], tuple] = lambda n: ()  # those that every other rank must


def most(n: int) -> float:
    return (n - 1) / n


# NVIDIA/nccl-tests, doc/PERFORMANCE.md (the factor between algbw and busbw); for scatter and gather its src/scatter.cu and
# src/gather.cu, and Thakur, Rabenseifner and Gropp 2005, doi 10.1177/1094342005051521; all_reduce's is the bound of Patarasuk
# and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002.
CASES = {
    "broadcast": Case(lambda x, y, root, g, op: dist.broadcast(x, root, g), lambda n: 1, (1, 0), lambda n: (0, 1)),
    "scatter": Case(lambda x, y, root, g, op: dist.scatter(y, x, root, g), most, (most, 0), lambda n: (0, 1 / n)),
    "reduce": Case(lambda x, y, root, g, op: dist.reduce(x, root, op, g), lambda n: 1, (0, 1), lambda n: (1, 0)),
    "gather": Case(lambda x, y, root, g, op: dist.gather(x, y, root, g), most, (0, most), lambda n: (1 / n, 0)),
    "all_gather": Case(lambda x, y, root, g, op: dist.all_gather(y, x, g), most),
    "all_gather_single": Case(lambda x, y, root, g, op: dist.all_gather_single(y, x, g), most),
    "all_reduce": Case(lambda x, y, root, g, op: dist.all_reduce(x, op, g), lambda n: 2 * (n - 1) / n),
    "reduce_scatter": Case(lambda x, y, root, g, op: dist.reduce_scatter(y, x, op, g), most),
    "reduce_scatter_single": Case(lambda x, y, root, g, op: dist.reduce_scatter_single(y, x, op, g), most),
    "all_to_all": Case(lambda x, y, root, g, op: dist.all_to_all(y, x, g), most),
    "all_to_all_single": Case(lambda x, y, root, g, op: dist.all_to_all_single(y, x, group=g), most),
    "barrier": Case(lambda x, y, root, g, op: dist.barrier(g)),
}


def given(op: str, group: Sequence[int], value: Value) -> list:
    """What each rank of a group has to give: a value, or a list of one for each member."""
    return of(op).given(len(group), lambda place, slot: value(group[place], slot))


def left(op: str, group: Sequence[int], rank: int, root: int, value: Value, total: Callable = sum) -> Any:
    """What a rank is left with, by the table: a value, a list of one from each member, or None."""
    values = given(op, group, value)
    return of(op).result(values, group.index(rank), group.index(root), total)


def joined(op: str, value: Any) -> Any:
    """Tensors as this form of the collective takes them."""
    return torch.cat(value) if isinstance(value, list) and op.endswith("_single") else value


def passed(op: str, group: Sequence[int], rank: int, root: int, value: Value) -> Any:
    """What a rank passes in."""
    alone = of(op).root == "src" and not of(op).in_place and rank != root
    return None if of(op).gives is None or alone else joined(op, given(op, group, value)[group.index(rank)])


def make(op: str, group: Sequence[int], rank: int, root: int, value: Value, reduce_op=SUM, handle=None) -> None:
    """Make the call on this rank, with room for what it is left with."""
    row, one = of(op), torch.zeros_like(value(rank, 0))
    room = joined(op, [one.clone() for _ in group]) if row.gets == "all" else one
    if row.root == "dst" and rank != root:
        room = None
    CASES[op].call(passed(op, group, rank, root, value), room, root, handle, reduce_op)
