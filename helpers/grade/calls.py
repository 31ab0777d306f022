"""A call as a rank describes it, checked: everything in the description may be a lie."""

from __future__ import annotations

from typing import Any

import torch

from ..record.event import Event
from .inside.protocol import Malformed, text

COLLECTIVES = {
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_single", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_single", "all_to_all", "all_to_all_single", "barrier",
}  # fmt: skip
LISTS = {"scatter", "reduce_scatter", "all_to_all"}  # take a list of tensors
REDUCE_OPS = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"}


class Refused(Exception):
    """An answer that does not play by the rules of the wire. The message says how."""


def described_call(rank: int, index: int, op: str, header: dict[str, Any], world_size: int) -> Event:
    """The call as a rank describes it: to whom, not what. Raises Malformed."""
    group = header.get("group")
    if (
        op not in COLLECTIVES | {"send", "recv"}
        or not isinstance(group, list)
        or len(set(map(str, group))) != len(group)
    ):
        raise Malformed("a call that does not exist")
    if not all(type(r) is int and 0 <= r < world_size for r in group) or rank not in group:
        raise Malformed("a call in a group that does not exist")
    event = Event(rank, index, op, tuple(group), group_name=text(header.get("name"), 100))
    for role, ops in (("src", ("broadcast", "scatter", "recv")), ("dst", ("reduce", "gather", "send"))):
        if op in ops:
            peer = header.get(role)
            if not (type(peer) is int and peer in group or op == "recv" and peer is None):
                raise Malformed("a call to a rank that does not exist")
            setattr(event, role, peer)
    if event.is_message:
        event.tag = header.get("tag")
        if type(event.tag) is not int or not 0 <= event.tag < 1 << 63:
            raise Malformed("a message without a tag")
    elif op in ("reduce", "all_reduce", "reduce_scatter", "reduce_scatter_single"):
        event.reduce_op = header.get("reduce_op")
        if not isinstance(event.reduce_op, str) or event.reduce_op not in REDUCE_OPS:
            raise Refused(f"{op} by {text(str(event.reduce_op), 40)} cannot be graded here.")
    elif op == "all_to_all_single":
        splits = header.get("splits")
        if not isinstance(splits, list) or len(splits) != 2 or not all(_is_sizes(s, len(group)) for s in splits):
            raise Malformed("split sizes that are none")
        event.splits = (tuple(splits[0]), tuple(splits[1]))
    return event


def _is_sizes(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) in (0, count) and all(type(v) is int and v >= 0 for v in value)


def fits(op: str, given: Any) -> bool:
    """Whether this is what such a call takes: a tensor, a list of tensors, or nothing."""
    if op in ("barrier", "recv") or op == "scatter" and given is None:
        return given is None
    if op in LISTS:
        return isinstance(given, list) and all(isinstance(t, torch.Tensor) for t in given)
    return isinstance(given, torch.Tensor)
