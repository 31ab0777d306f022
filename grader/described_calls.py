"""A call as a rank describes it, checked, since all of the description may be false; and its result on each rank."""

from collections.abc import Container
from functools import partial, reduce
from math import prod
from typing import Any

import torch

from collectives.log.backends import GLOO
from collectives.log.calls import Call
from collectives.log.collectives import COLLECTIVES, of
from collectives.log.event import Event

from .inside.protocol import Malformed, one_line

Room = list[tuple[torch.dtype, tuple[int, ...]]]  # dtype and shape of each tensor to be filled


class Ungradable(Exception):
    """An answer that does not play by the rules of the wire. The message names the breach."""


def described_call(rank: int, index: int, op: str, header: dict[str, Any], world_size: int) -> Event:
    """The call as a rank describes it: to whom, not what. Raises Malformed."""
    group, collective = header.get("group"), of(op)
    exists = op in ("send", "recv") or op in COLLECTIVES or op.endswith("_single") and collective.op
    if not exists or not isinstance(group, list) or len(set(map(str, group))) != len(group):
        raise Malformed("a call that does not exist")
    if not all(type(r) is int and 0 <= r < world_size for r in group) or rank not in group:
        raise Malformed("a call in a group that does not exist")
    event = Event(rank, index, op, tuple(group), group_name=one_line(header.get("name"), 100), backend=GLOO.name)
    if role := {"send": "dst", "recv": "src"}.get(op, collective.root):
        peer = header.get(role)
        if not (type(peer) is int and peer in group or op == "recv" and peer is None):
            raise Malformed("a call to a rank that does not exist")
        setattr(event, role, peer)
    # How the rank's tensors are stored, of which gloo and so the course's judgment makes a difference.
    strides, non_dense = header.get("strides"), header.get("non_dense", [])
    if not isinstance(non_dense, list) or strides is not None and not _are_sizes(strides, range(9)):
        raise Malformed("a call that says nothing of its tensors")
    event.strides = strides and tuple(strides)
    event.non_dense = tuple(side for side in ("in", "out", "order") if side in non_dense)
    event.misuse = "aliased" if header.get("aliased") is True else None
    if event.is_message:
        event.tag = number(header, "tag", missing=-1)
    elif collective.reduces:
        event.reduce_op = header.get("reduce_op")
        if not isinstance(event.reduce_op, str) or event.reduce_op not in _PAIRWISE:
            raise Ungradable(f"{op} by {one_line(str(event.reduce_op), 40)} cannot be graded here.")
    elif collective.personal and op not in COLLECTIVES:
        splits = header.get("splits")
        if not isinstance(splits, list) or len(splits) != 2 or not all(_are_sizes(s, (0, len(group))) for s in splits):
            raise Malformed("split sizes that are none")
        event.splits = (tuple(splits[0]), tuple(splits[1]))
    return event


def number(header: dict[str, Any], name: str, missing: int = 0) -> int:
    """A natural number.  missing: stands for one that isn't there. Raises Malformed."""
    if not _is_size(value := header.get(name, missing)):
        raise Malformed(f"something else than a number as its {name}")
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _are_sizes(value: Any, counts: Container[int]) -> bool:
    return isinstance(value, list) and len(value) in counts and all(map(_is_size, value))


def fits(op: str, given: Any) -> bool:
    """Whether such a call takes this argument: a tensor, a list of tensors, or nothing."""
    gives = "whole" if op == "send" else of(op).gives
    if given is None:
        return gives is None or of(op).root == "src" and gives == "all"  # the root alone has something to give
    if op in COLLECTIVES and gives == "all":
        return isinstance(given, list) and all(isinstance(t, torch.Tensor) for t in given)
    return gives is not None and isinstance(given, torch.Tensor)


_PAIRWISE = {  # of AVG the sum is then divided
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


class Impossible(Exception):
    """The tensors do not fit the call. The message names them."""


def result_on_ranks(event: Event, call: Call, given: dict[int, Any], room: Room) -> list[torch.Tensor]:
    """New tensors, in the shapes there is room for, of what each rank passed in. Raises Impossible where none fit."""
    try:
        came = _result(event, call, given)
    except Exception:  # whatever tensors that do not belong together lead to
        raise Impossible(f"{event.op}: the tensors of the ranks do not fit together.") from None
    gives, fit_in = ([(v.dtype, v.numel()) for v in came], [(dtype, prod(shape)) for dtype, shape in room])
    if came and gives != fit_in:
        sides = (" and ".join(f"{numbers} numbers of {dtype}" for dtype, numbers in side) for side in (gives, fit_in))
        raise Impossible(f"{event.op} gives {', and there is room for '.join(sides)}.")
    return [value.reshape(shape).clone() for value, (_, shape) in zip(came, room)]


def _result(event: Event, call: Call, given: dict[int, Any]) -> list[torch.Tensor]:
    group, collective = event.group, of(event.op)
    if event.op == "recv":
        return [given[event.src]]
    if event.nbytes == 0 and not collective.personal:
        return []  # nothing to move
    listed = event.op in COLLECTIVES  # chunks come in a list, not in one tensor
    values = [given.get(rank) for rank in group]
    if collective.gives == "all" and not listed:
        splits = {e.rank: e.splits[0] if e.splits else () for e in call}
        values = [v.split(splits[rank] or v.shape[0] // len(group), dim=0) for rank, v in zip(group, values)]
    root = None if event.root is None else group.index(event.root)
    came = collective.result(values, group.index(event.rank), root, partial(_total, event.reduce_op))
    if came is None:
        return [given[event.rank]] if collective.in_place else []
    if not isinstance(came, list):
        return [came]
    return came if listed else [torch.cat([value.reshape(-1) for value in came])]


def _total(reduce_op: str, values: list[torch.Tensor]) -> torch.Tensor:
    total = reduce(_PAIRWISE[reduce_op], values)
    return total / len(values) if reduce_op == "AVG" else total
