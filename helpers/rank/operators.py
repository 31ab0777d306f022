"""torch's c10d operators, and what their arguments mean."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

from .tensors import each
from .torch_private import schema

# c10d operator -> (torch.distributed's name, argument the rank passes in, argument it is left with)
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
# What coalesced operators of one tensor are: functional collectives make no others.
OF_ONE = {
    "allgather_into_tensor_coalesced_": "all_gather_single",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_single",
}
# Operators that call those above, and are recorded as them: functional collectives, DTensor's own.
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
# Operators that communicate nothing by themselves. wait_tensor waits for a Work, and that tells of it.
# Two are there once torch._dynamo is imported.
NO_CALLS = {
    "_c10d_functional": {"wait_tensor", "_wrap_tensor_autograd"},
    "c10d": {"check_for_nan"},
    "_dtensor": {"mesh_get_process_group"},
}
# What a call of these looks like to the learner who made it.
SAME_CALL = {
    "isend": "send",
    "irecv": "recv",
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
}
REDUCE_OPS = {int(getattr(dist.ReduceOp.RedOpType, n)): n for n in dist.ReduceOp.RedOpType.__members__}
# Coalesced operators carry a list; the others wrap their one tensor (or list) in a list.
LISTS = {"all_reduce_coalesced", "all_gather_coalesced", "reduce_scatter_coalesced", "all_to_all"}


@functools.cache
def _parameters(op) -> dict[str, Any]:
    return {a.name: a.default_value for a in schema(op).arguments}


def arguments(op, args, kwargs) -> dict[str, Any]:
    """Arguments by name, with defaults: the dispatcher leaves out trailing ones."""
    parameters = _parameters(op)
    return {**parameters, **dict(zip(parameters, args)), **kwargs}


def unwrap(kind: str, value: Any) -> Any:
    if kind in LISTS or not isinstance(value, (list, tuple)):
        return each(value) if isinstance(value, (list, tuple)) else value
    if not value:
        return None
    return list(value[0]) if isinstance(value[0], (list, tuple)) else value[0]
