"""The recorder inside a rank: one TorchDispatchMode that sees every torch.distributed call.

torch.distributed's functions end in operators of the c10d namespace, so a dispatch mode
sees them all, also those DistributedDataParallel and fully_shard make from C++.  Nothing
is patched.  An operator returns a Work; the recorder hands on a Work of its own, which
notes when it is waited for and otherwise passes everything to the original.  So nothing
that was asynchronous becomes synchronous.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.utils._python_dispatch import TorchDispatchMode

from .memory import LARGE, each, extent, has_gaps, overlap, summarise
from .record import Event, Line, Value

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
# The same for functional collectives (DTensor uses them): they return a new tensor, which is
# ready after wait_tensor.
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "all_gather_into_tensor": "all_gather_single",
    "all_gather_into_tensor_out": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "reduce_scatter_tensor_out": "reduce_scatter_single",
    "all_to_all_single": "all_to_all_single",
}
# These take a tensor only to make another like it.
_READ_NOTHING = {f"aten::{n}" for n in ("empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros")}
# What a call of these looks like to the learner who made it.
SAME_CALL = {
    "isend": "send",
    "irecv": "recv",
    "all_gather_into_tensor": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
}
_REDUCE_OPS = {int(getattr(dist.ReduceOp.RedOpType, n)): n for n in dist.ReduceOp.RedOpType.__members__}
# Coalesced operators carry a list; the others wrap their one tensor (or list) in a list.
_LISTS = {"all_reduce_coalesced", "all_gather_coalesced", "reduce_scatter_coalesced", "all_to_all"}

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_RANK = _HERE + "rank.py"


class Tracer(TorchDispatchMode):
    """Records every torch.distributed call made while it is entered.

    rank: this process's global rank.
    emit: called with ("call", Event), ("wait", index, seconds) and
        ("done", index, after, seconds, waited, src) as things happen, so that whoever
        listens knows where this rank stands even when it hangs or dies.  The tensors are
        the program's own: they must be written down before it returns.
    began: time.perf_counter() when the run began; times are seconds since then.
    whole: keep tensors of more than LARGE elements whole instead of summarising them.
    """

    def __init__(self, rank: int, emit: Callable[..., None], began: float, whole: bool = False) -> None:
        super().__init__()
        self._rank, self._emit, self._began, self._whole = rank, emit, began, whole
        self._count = 0
        self._open: dict[int, TracedWork | _Pending] = {}
        self._guarded = 0  # open calls whose memory must not be used yet
        self._touched: set[int] = set()
        self._lock = threading.Lock()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap the method below with torch._dynamo.disable, whose import costs
        # every rank a second. Nothing here is ever compiled.
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t.__name__ == "AsyncCollectiveTensor" for t in types):
            return NotImplemented  # it waits first, and then comes here with what it waited for
        kwargs = kwargs or {}
        namespace, name = _name_of(func)
        if namespace == "c10d":
            if name in OPS:
                return self._collective(name, func, args, kwargs)
        elif namespace == "_c10d_functional":
            if name == "wait_tensor":
                return self._wait_tensor(func, args, kwargs)
            if name in FUNCTIONAL:
                return self._functional(name, func, args, kwargs)
        elif self._guarded and not func.is_view and func._schema.name not in _READ_NOTHING:
            self._watch(func, args, kwargs)
        return func(*args, **kwargs)

    def finish(self) -> None:
        """Closes the events nobody waited for, with what stands in their tensors now."""
        for traced in list(self._open.values()):
            self._done(traced, waited=False, complete=traced.completed())

    # --- the c10d operators -------------------------------------------------------------

    def _collective(self, name: str, func, args, kwargs):
        given = _arguments(func, args, kwargs)
        op, source, target = OPS[name]
        group = ProcessGroup.unbox(given["process_group"])
        ranks = tuple(dist.get_process_group_ranks(group))
        inputs, outputs = _unwrap(op, given.get(source)), _unwrap(op, given.get(target))
        event, entry = self._event(op, ranks, group.group_name)
        event.async_op = bool(given.get("async_op", False))
        if "root_rank" in given:
            root = ranks[given["root_rank"]] if given["root_rank"] < len(ranks) else given["root_rank"]
            event.src, event.dst = (root, None) if op in ("broadcast", "scatter") else (None, root)
            inputs = inputs if self._rank == root or op != "scatter" else None
            outputs = outputs if self._rank == root or op != "gather" else None
        if "reduce_op" in given:
            event.reduce_op = _REDUCE_OPS.get(given["reduce_op"].op(), "?")
        if op == "all_to_all_single":
            event.splits = (tuple(given["input_split_sizes"]), tuple(given["output_split_sizes"]))
        if event.is_message:
            event.tag = given["tag"]
            event.async_op = entry in ("isend", "irecv", "batch_isend_irecv")
            if op == "send":
                event.dst = ranks[given["dst"]]
            elif name == "recv_":
                event.src = ranks[given["src"]]
        self._describe(event, inputs if inputs is not None else outputs)
        event.gaps = ("in",) * any(map(has_gaps, each(inputs))) + ("out",) * any(map(has_gaps, each(outputs)))
        event.flaw = "aliased" if overlap(outputs) else None
        event.before = self._capture(inputs)
        self._emit("call", event)

        if name == "monitored_barrier_":  # the one operator that blocks by itself
            self._emit("wait", event.index, self._now(), True)
            func(*args, **kwargs)
            self._emit("done", event.index, None, self._now(), True, None)
            return None
        # What func itself calls, after a slow look for stand-ins of torch.compile, of which there are none here.
        out = func._op(*args, **kwargs)
        boxed = out[-1] if isinstance(out, (tuple, list)) else out
        any_source = name == "recv_any_source_"
        traced = TracedWork(self, Work.unbox(boxed), event.index, outputs, ranks if any_source else None)
        if event.async_op:
            only_sent = op == "send" or op == "broadcast" and self._rank == event.src
            traced.guard(inputs, None if only_sent else outputs)
        with self._lock:
            self._guarded += bool(traced.guarded)
            self._open[event.index] = traced  # also keeps the Python half of the Work alive
        return (*out[:-1], traced.boxed()) if isinstance(out, (tuple, list)) else traced.boxed()

    # --- functional collectives ---------------------------------------------------------

    def _functional(self, name: str, func, args, kwargs):
        from torch.distributed.distributed_c10d import _resolve_process_group

        given = _arguments(func, args, kwargs)
        group = _resolve_process_group(given["group_name"])
        event, _ = self._event(FUNCTIONAL[name], tuple(dist.get_process_group_ranks(group)), group.group_name)
        event.async_op = True
        if "src" in given:
            event.src = event.group[given["src"]]
        if "reduce_op" in given:
            event.reduce_op = given["reduce_op"].upper()
        if event.op == "all_to_all_single":
            event.splits = (tuple(given["input_split_sizes"]), tuple(given["output_split_sizes"]))
        self._describe(event, given["input"])
        event.before = self._capture(given["input"])
        self._emit("call", event)
        out = func(*args, **kwargs)
        self._open[event.index] = _Pending(event.index, out)
        return out

    def _wait_tensor(self, func, args, kwargs):
        pending = next(
            (p for p in self._open.values() if isinstance(p, _Pending) and p.ready.data_ptr() == args[0].data_ptr()),
            None,
        )
        if pending is None:
            return func(*args, **kwargs)
        self._emit("wait", pending.index, self._now(), False)
        out = func(*args, **kwargs)
        self._done(pending)
        return out

    # --- events -------------------------------------------------------------------------

    def _event(self, op: str, ranks: tuple[int, ...], group_name: str) -> tuple[Event, str | None]:
        """A new event, and the name of the torch function that the learner called."""
        line, entry = _callers()
        within = None if SAME_CALL.get(entry, entry) == op else entry
        with self._lock:
            index, self._count = self._count, self._count + 1
        start = self._now()
        return Event(self._rank, index, op, ranks, line=line, within=within, group_name=group_name, start=start), entry

    @staticmethod
    def _describe(event: Event, tensors) -> None:
        all_of_it = each(tensors)
        if all_of_it:
            first = all_of_it[0]
            event.dtype, event.shape = first.dtype, tuple(first.shape)
            event.layout = None if first.is_contiguous() else first.stride()
            event.nbytes = sum(t.numel() * t.element_size() for t in all_of_it)

    def _watch(self, func, args, kwargs) -> None:
        """Notes a use of memory that a call still under way reads or fills."""
        for value, argument in zip((*args, *kwargs.values()), func._schema.arguments):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in each(value):
                if not isinstance(tensor, torch.Tensor):
                    continue
                for traced in list(self._open.values()):
                    if traced.index not in self._touched and traced.touched_by(tensor, writes):
                        self._touched.add(traced.index)
                        line, _ = _callers()
                        self._emit("touched", traced.index, "written" if writes else "read", line)

    def _done(self, traced: TracedWork | _Pending, waited: bool = True, complete: bool = True) -> None:
        with self._lock:
            if self._open.pop(traced.index, None) is None:
                return
            self._guarded -= bool(traced.guarded)
        src = traced.source() if complete else None
        with torch._C._DisableTorchDispatch():  # our own use of tensors is nobody's business
            after = self._capture(traced.ready)
            self._emit("done", traced.index, after, self._now() if complete else None, waited, src)

    def _capture(self, value: Any) -> Value:
        if value is None:
            return None
        if isinstance(value, list):
            return [self._capture(v) for v in value]
        if type(value) is not torch.Tensor:
            value = value.detach()  # a Parameter, say: what travels is a tensor
        if value.numel() > LARGE and not self._whole:
            return summarise(value)
        return value if value.is_cpu else value.cpu()

    def _now(self) -> float:
        return time.perf_counter() - self._began


class TracedWork(Work):
    """A torch.distributed Work that tells the recorder when it is waited for."""

    def __init__(self, tracer: Tracer, inner: Work, index: int, ready, any_source: tuple[int, ...] | None) -> None:
        super().__init__()
        self._tracer, self._inner, self._any_source = tracer, inner, any_source
        self.index, self.ready = index, ready
        self.guarded: list[tuple[int, int, bool]] = []  # first byte, end, whether reading is too early too
        self._waiting = False

    def guard(self, inputs, outputs) -> None:
        """From now until the wait, inputs must not be written, outputs not be used at all."""
        self.guarded = [(*extent(t), False) for t in each(inputs)] + [(*extent(t), True) for t in each(outputs)]

    def touched_by(self, tensor: torch.Tensor, writes: bool) -> bool:
        if self._waiting:  # gloo's reduce_scatter_single fills its output in here
            return False
        first, last = extent(tensor)
        return any(first < end and start < last and (writes or at_all) for start, end, at_all in self.guarded)

    def source(self) -> int | None:
        """For a recv from anyone: the global rank it came from."""
        return self._any_source[self._inner._source_rank()] if self._any_source else None

    def wait(self, *timeout) -> bool:
        if self.index in self._tracer._open:
            # A wait with a limit of its own ends by itself, so nobody may call it stuck.
            limited = bool(timeout) and timeout[0].total_seconds() > 0
            self._tracer._emit("wait", self.index, self._tracer._now(), limited)
        self._waiting = True
        result = self._inner.wait(*timeout)
        self._waiting = False
        self._tracer._done(self)
        return result

    def completed(self) -> bool:
        return self._inner.is_completed()

    def is_completed(self) -> bool:
        done = self.completed()
        if done:  # as good as a wait
            self._tracer._done(self)
        return done

    def get_future(self):
        def note(future):
            self._tracer._done(self)
            return future.value()

        return self._inner.get_future().then(note)

    def is_success(self) -> bool:
        return self._inner.is_success()

    def exception(self):
        return self._inner.exception()

    def result(self):
        return self._inner.result()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def _source_rank(self) -> int:
        return self._inner._source_rank()

    source_rank = _source_rank


class _Pending:
    """A functional collective whose result has not been waited for."""

    guarded = ()

    def __init__(self, index: int, ready: torch.Tensor) -> None:
        self.index, self.ready = index, ready

    def completed(self) -> bool:
        return False  # there is no way to ask

    def source(self) -> None:
        return None


@functools.cache
def _name_of(func) -> tuple[str, str]:
    """'c10d', 'allreduce_'"""
    namespace, _, name = func._schema.name.partition("::")
    return namespace, name


@functools.cache
def _parameters(func) -> dict[str, Any]:
    return {a.name: a.default_value for a in func._schema.arguments}


def _arguments(func, args, kwargs) -> dict[str, Any]:
    """Arguments by name, with defaults: the dispatcher leaves out trailing ones."""
    parameters = _parameters(func)
    return {**parameters, **dict(zip(parameters, args)), **kwargs}


def _unwrap(op: str, value: Any) -> Any:
    if op in _LISTS or not isinstance(value, (list, tuple)):
        return list(value) if isinstance(value, (list, tuple)) else value
    if not value:
        return None
    return list(value[0]) if isinstance(value[0], (list, tuple)) else value[0]


@functools.cache
def _owner(file: str) -> str:
    """Whose source file it is: "torch", "rank" (of what runs the learner's function), "other" or "learner"."""
    if file.startswith(_TORCH):
        return "torch"
    if file == _RANK:
        return "rank"
    if file.startswith((_HERE, "<frozen")) or file.startswith(_STDLIB) and "-packages" not in file:
        return "other"
    return "learner"


def is_learners(file: str) -> bool:
    """Whether a source file is the learner's own: not torch's, Python's or ours."""
    return _owner(file) == "learner"


def _callers() -> tuple[Line | None, str | None]:
    """The learner's line that led to this call, and the torch function it called."""
    frame, entry = sys._getframe(1), None
    while frame is not None:
        code = frame.f_code
        owner = _owner(code.co_filename)
        if owner == "learner":
            return Line(code.co_filename, frame.f_lineno, code.co_name), _name(entry)
        if owner == "rank":
            return None, _name(entry)  # below are only ourselves
        if owner == "torch" and code.co_name != "wrapper":
            entry = frame
        frame = frame.f_back
    return None, None


def _name(frame) -> str | None:
    """'all_reduce', 'Tensor.backward', 'DistributedDataParallel.forward'"""
    if frame is None:
        return None
    name = frame.f_code.co_name
    owner = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
    if owner is None:
        return name
    return f"{type(owner).__name__}.{'forward' if name in ('_wrapped_call_impl', '_call_impl') else name}"
