"""Every private name of torch that this package uses, each with the feature that needs it.

torch promises nothing about these names, and any release may move one.  A missing name stops
the import with the feature it takes away, rather than some run later with an AttributeError.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import torch
import torch.distributed

FEATURES: dict[str, str] = {}  # name, as pkgutil.resolve_name takes it -> the feature that needs it


def private(name: str, feature: str) -> Any:
    """The object that a private name of torch stands for. Raises ImportError if this torch has none."""
    FEATURES[name] = feature
    try:
        return resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"torch {torch.__version__} has no {name}, which is needed for {feature}. torch 2.13 has it."
        ) from error


_RECORDING = "recording collectives"
DispatchKey = private("torch._C.DispatchKey", _RECORDING)
keys_after = private("torch._C._dispatch_keyset_full_after", _RECORDING)
private("torch.ops:c10d.allreduce_.default._schema", _RECORDING)

_TOUCHING = "noticing a tensor that is used before its call was waited for"
TorchDispatchMode = private("torch.utils._python_dispatch.TorchDispatchMode", _TOUCHING)
mode_count = private("torch._C._len_torch_dispatch_stack", _TOUCHING)
mode_at = private("torch._C._get_dispatch_stack_at", _TOUCHING)
push_mode = private("torch._C._push_on_torch_dispatch_stack", _TOUCHING)
pop_mode = private("torch._C._pop_torch_dispatch_stack", _TOUCHING)
NoModes = private("torch._C._DisableTorchDispatch", _TOUCHING)
private("torch.ops:aten.add.Tensor._op", _TOUCHING)
backward_task = private("torch._C._current_graph_task_id", _TOUCHING)  # -1 outside a backward pass
current_node = private("torch._C._current_autograd_node", _TOUCHING)  # None outside one
run_backward = private("torch.autograd._engine_run_backward", _TOUCHING)

_COMPILING = "recording what a program does that torch.compile has compiled"
_set_strategy = private("torch._C._dynamo.eval_frame.set_code_exec_strategy", _COMPILING)
_Strategy = private("torch._C._dynamo.eval_frame._FrameExecStrategy", _COMPILING)
_Action = private("torch._C._dynamo.eval_frame._FrameAction", _COMPILING)

private("torch.distributed.Work._source_rank", "naming the source of a recv from anyone")
backend = private("torch.distributed.ProcessGroup._get_backend", "recording messages and knowing a group's time limit")
private("torch.distributed.ProcessGroupGloo._Options._timeout", "knowing a group's own time limit")

_PICKLING = "functions that name torch.ops or torch.classes"
Ops = private("torch._ops._Ops", _PICKLING)
OpNamespace = private("torch._ops._OpNamespace", _PICKLING)
OpOverloadPacket = private("torch._ops.OpOverloadPacket", _PICKLING)
OpOverload = private("torch._ops.OpOverload", _PICKLING)
Classes = private("torch._classes._Classes", _PICKLING)
ClassNamespace = private("torch._classes._ClassNamespace", _PICKLING)

# Importing it registers the backend "fake", which moves nothing.
private("torch.testing._internal.distributed.fake_pg", "warming ranks up before their first call")


def never_compiled(function, callees: bool = True):
    """The function, which torch.compile leaves alone from now on, with all that it calls or by itself."""
    _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP if callees else _Action.DEFAULT))
    return function


def schema(op) -> Any:
    """The schema of an operator: its qualified name and its arguments."""
    return op._schema


def source_rank(work: torch.distributed.Work) -> int:
    """The rank, within the group, that a recv from anyone received from."""
    return work._source_rank()


def time_limit(group: torch.distributed.ProcessGroup) -> float | None:
    """Seconds after which this group's calls give up; None where the backend does not tell."""
    try:
        return backend(group, torch.device("cpu")).options._timeout.total_seconds()
    except (RuntimeError, AttributeError):
        return None


def set_run_backward(function) -> None:
    """Have every backward pass go through this function, which must call `run_backward`."""
    torch.autograd._engine_run_backward = function


def local_part(tensor):
    """Shape and first index, in the whole, of the part of a DTensor that this rank holds. Imports DTensor."""
    where = private(
        "torch.distributed.tensor._utils.compute_local_shape_and_global_offset", "locating the shards of a DTensor"
    )
    return where(tensor.shape, tensor.device_mesh, tensor.placements)


def pipeline_orders(schedule: str, ranks: int, microbatches: int, chunks: int | None) -> list[list]:
    """Per rank, the actions of a schedule of torch.distributed.pipelining, in order. Imports pipelining."""
    orders = private(
        "torch.distributed.pipelining._schedule_visualizer.get_schedule_ops", "reading torch's pipeline schedules"
    )
    return orders(schedule, ranks, microbatches, chunks)
