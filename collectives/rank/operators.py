"""c10d operators, and how a call of one becomes an Event. Asks no process group."""

import functools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..log.collectives import of
from ..log.event import Event, Value, as_list
from .point_to_point import peer
from .tensors import aliased, non_dense
from .torch_private import schema

# c10d operator -> (torch.distributed's name, argument that the rank passes in, argument with its result)
# gather_into_tensor_ exists from torch 2.14 onward.
OPS = {
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce_coalesced", "tensors", "tensors"),
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "reduce_": ("reduce", "tensors", "tensors"),
    "allgather_": ("all_gather", "input_tensors", "output_tensors"),
    "_allgather_base_": ("all_gather_single", "input_tensor", "output_tensor"),
    "allgather_coalesced_": ("all_gather_coalesced", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather_coalesced", "inputs", "outputs"),
    "gather_": ("gather", "input_tensors", "output_tensors"),
    "gather_into_tensor_": ("gather_single", "input_tensor", "output_tensor"),
    "scatter_": ("scatter", "input_tensors", "output_tensors"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter_single", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_coalesced", "inputs", "outputs"),
    "alltoall_": ("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base_": ("all_to_all_single", "input", "output"),
    "barrier": ("barrier", None, None),
    "monitored_barrier_": ("monitored_barrier", None, None),
    "send": ("send", "tensors", "tensors"),
    "recv_": ("recv", "tensors", "tensors"),
    "recv_any_source_": ("recv", "tensors", "tensors"),
}
# Coalesced operators that are called with one tensor, as functional collectives do -> torch.distributed's name.
OF_ONE = {
    "allgather_into_tensor_coalesced_": "all_gather_single",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_single",
}
# Operators that call those above, and are recorded as those: functional collectives, DTensor's own.
MADE_OF_OPS = {
    "_c10d_functional": {
        "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "broadcast_",
        "all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced",
        "all_to_all_single", "isend", "irecv", "batch_p2p_ops",
    },
    "_c10d_functional_autograd": {"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"},
    "_dtensor": {"shard_dim_alltoall"},
}  # fmt: skip
# The learner's name for a call -> the recorded one.
SAME_CALL = {
    "isend": "send",
    "irecv": "recv",
    "all_gather_into_tensor": "all_gather_single",
    "gather_into_tensor": "gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
}
REDUCE_OPS = {int(getattr(dist.ReduceOp.RedOpType, n)): n for n in dist.ReduceOp.RedOpType.__members__}


@functools.cache
def _parameters(op) -> dict[str, Any]:
    return {a.name: a.default_value for a in schema(op).arguments}


def arguments(op, args, kwargs) -> dict[str, Any]:
    """Arguments by name, with defaults: the dispatcher omits trailing ones."""
    parameters = _parameters(op)
    return {**parameters, **dict(zip(parameters, args)), **kwargs}


class Reading(NamedTuple):
    """A call of an operator, as read from its arguments."""

    event: Event  # without index, line, times and values
    inputs: Value  # the tensor, or the list of them, that this rank passes in; None if it passes none
    outputs: Value  # likewise, with the result
    all_in: list[torch.Tensor]  # each tensor of the inputs
    all_out: list[torch.Tensor]  # each tensor of the outputs


def read(operator: str, given: dict[str, Any], ranks: tuple[int, ...], rank: int) -> Reading:
    """A call of a c10d operator on one rank.

    given: the arguments by name, with defaults. Their ranks are ranks of the group; the event's are global.
    ranks: the group's global ranks, in group order.  rank: this process's global one.
    """
    kind, source, target = OPS[operator]
    if operator in OF_ONE and len(given[source]) == 1:
        kind = OF_ONE[operator]
    inputs = _unwrapped(kind, given.get(source))
    outputs = inputs if target == source else _unwrapped(kind, given.get(target))
    event = Event(rank, 0, kind, ranks)
    event.async_op = bool(given.get("async_op", False))
    if "root_rank" in given:
        root = given["root_rank"]
        root = ranks[root] if root < len(ranks) else root
        collective = of(kind)
        setattr(event, collective.root, root)
        if rank != root and not collective.in_place:  # only the root has a list for all ranks
            inputs = inputs if collective.gives == "own" else None
            outputs = outputs if collective.gets == "own" else None
    if "reduce_op" in given:
        event.reduce_op = _reduction(given["reduce_op"])
    if kind == "all_to_all_single":
        event.splits = (tuple(given["input_split_sizes"]), tuple(given["output_split_sizes"]))
    if kind == "send":
        event.dst, event.tag = peer(ranks, given["dst"], "send to"), given["tag"]
    elif kind == "recv":
        src = None if operator == "recv_any_source_" else peer(ranks, given["src"], "receive from")
        event.src, event.tag = src, given["tag"]
    all_in = as_list(inputs)
    all_out = all_in if outputs is inputs else as_list(outputs)
    if tensors := all_in or all_out:  # what the rank passes in, or its buffer if it passes none
        first = tensors[0]
        event.dtype, event.shape = first.dtype, tuple(first.shape)
        strided = first.layout == torch.strided
        event.strides = first.stride() if strided and not first.is_contiguous() else None
        event.nbytes = sum([t.numel() * t.element_size() for t in tensors])
    if any([t.layout == torch.strided and not t.is_contiguous() for t in (*all_in, *all_out)]):
        event.non_dense = non_dense(all_in, all_out)
    event.misuse = "aliased" if len(all_out) > 1 and aliased(all_out) else None
    return Reading(event, inputs, outputs, all_in, all_out)


def _reduction(reduce_op: torch.ScriptObject) -> str | None:
    """Its name; None if torch doesn't expose it, as in 2.8."""
    code = getattr(reduce_op, "op", None)
    return None if code is None else REDUCE_OPS.get(code(), "?")


def _unwrapped(kind: str, value: Any) -> Value:
    """An operator's argument as torch.distributed's function takes it."""
    if not isinstance(value, (list, tuple)):
        return value
    if kind == "all_to_all" or kind.endswith("_coalesced"):
        return as_list(value)  # the others wrap their only tensor (or list) in a list
    first = value[0] if value else None
    return list(first) if isinstance(first, (list, tuple)) else first
