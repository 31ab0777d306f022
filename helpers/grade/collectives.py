"""The result of a call of torch.distributed on each rank, computed from what all ranks passed in."""

from __future__ import annotations

from typing import Any

import torch

from ..record.calls import Call
from ..record.event import Event
from .inside.protocol import numel

_PAIRWISE = {
    "SUM": torch.add,
    "AVG": torch.add,  # and then divided
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


class Impossible(Exception):
    """The tensors do not fit the call. The message says which."""


def left_with(
    event: Event, call: Call, given: dict[int, Any], room: list[tuple[torch.dtype, tuple[int, ...]]]
) -> list[torch.Tensor]:
    """The tensors this rank is left with, new ones, in the shapes it has room for.

    given: per rank what it passed in.  room: dtype and shape of each tensor to be filled.
    Raises Impossible where they do not fit.
    """
    try:
        if event.op == "reduce_scatter_single":
            _check_rows(given[event.rank].shape, room[0][1], len(event.group))
        came = _result(event, call, given)
    except Impossible:
        raise
    except Exception:  # whatever tensors that do not belong together lead to
        raise Impossible(f"{event.op}: the tensors of the ranks do not fit together.") from None
    if not came:
        return []
    if len(came) != len(room):
        raise Impossible(f"{event.op} gives {len(came)} tensors, and there is room for {len(room)}.")
    for value, (dtype, shape) in zip(came, room):
        if event.reduce_op == "AVG" and value.dtype != dtype and value.numel() == numel(shape):
            raise Impossible(f"{event.op} by AVG gives fractions, which {dtype} cannot hold.")
        if value.dtype != dtype or value.numel() != numel(shape):
            raise Impossible(
                f"{event.op} gives {value.numel()} numbers of {value.dtype}, and there is room for {numel(shape)} of {dtype}."
            )
    return [value.reshape(shape).clone() for value, (_, shape) in zip(came, room)]


def _result(event: Event, call: Call, given: dict[int, Any]) -> list[torch.Tensor]:
    op, group = event.op, event.group
    me = group.index(event.rank)
    if event.nbytes == 0 and not event.is_message and not op.startswith("all_to_all"):
        return []  # nothing to move
    if op in ("send", "barrier"):
        return []
    if op == "recv":
        return [given[event.src]]
    if op == "broadcast":
        return [given[event.src]]
    if op == "scatter":
        return [given[event.src][me]]
    if op in ("gather", "reduce") and event.rank != event.dst:
        return [] if op == "gather" else [given[event.rank]]
    values = [given[rank] for rank in group]
    if op in ("gather", "all_gather"):
        return values
    if op == "all_gather_single":
        return [torch.cat([value.reshape(-1) for value in values])]
    if op in ("reduce", "all_reduce"):
        return [_combined(values, event.reduce_op)]
    if op == "reduce_scatter":
        return [_combined([chunks[me] for chunks in values], event.reduce_op)]
    if op == "reduce_scatter_single":
        return [_combined(values, event.reduce_op).reshape(-1).chunk(len(group))[me]]
    if op == "all_to_all":
        return [chunks[me] for chunks in values]
    splits = {e.rank: e.splits[0] for e in call}
    parts = [
        value.split(splits[rank] or value.shape[0] // len(group), dim=0)[me].reshape(-1)
        for rank, value in zip(group, values)
    ]
    return [torch.cat(parts)]  # all_to_all_single


def _check_rows(passed: tuple[int, ...], room: tuple[int, ...], world_size: int) -> None:
    """Raises Impossible where gloo refuses a reduce_scatter_single: it cuts the input by rows, and not by numbers."""
    rows, wanted = passed[:1], room[:1]
    if not rows or not wanted or wanted[0] * world_size != rows[0]:
        raise Impossible(
            f"reduce_scatter_single: an input of shape {list(passed)} for {world_size} ranks needs an output with "
            f"1/{world_size} of its rows, and got one of shape {list(room)}."
        )


def _combined(values: list[torch.Tensor], reduce_op: str) -> torch.Tensor:
    result = values[0]
    for value in values[1:]:
        result = _PAIRWISE[reduce_op](result, value)
    return result / len(values) if reduce_op == "AVG" else result
