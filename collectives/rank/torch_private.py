"""Every private name of torch that this package uses, under the feature that needs it.

torch promises nothing about these names, and any release may move one. A missing name switches off the features that
need it, and each says so once, in a sentence; all others keep working. A name in a module that takes long to import is
looked up when its feature is first used, all others here.
"""

import functools
import os
import sys
import warnings
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from operator import attrgetter
from pkgutil import resolve_name
from types import FrameType
from typing import Any, Callable, Iterable, Iterator

import torch
import torch.distributed
from torch.distributed import ProcessGroup, Work

TESTED = ("2.13", "2.14", "2.15")
FEATURES: list["Feature"] = []
_warned: set[str] = set()


class Feature:
    """Something that this package does with private names of torch; true if torch has all of them.

    title: a noun, as in "... is off".
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.names: list[str] = []  # as pkgutil.resolve_name takes them
        self.missing: list[str] = []
        FEATURES.append(self)

    def takes(self, name: str, instead: Any = None) -> Any:
        """torch's object of this private name; `instead` if there is none, and the feature is off."""
        self.names.append(name)
        try:
            return resolve_name(name)
        except (ImportError, AttributeError):
            self.missing.append(name)
            return instead

    def __bool__(self) -> bool:
        return not self.missing

    @property
    def notice(self) -> str:
        """Why it is off, in a sentence."""
        names, tested = " and ".join(self.missing), f"{', '.join(TESTED[:-1])} and {TESTED[-1]}"
        return f"torch {torch.__version__} has no {names}, so {self.title} is off; tested versions are {tested}."

    def require(self) -> None:
        """Raise ImportError if it is off: for code that can't work without it."""
        if not self:
            raise ImportError(self.notice)


def notices() -> list[str]:
    """A sentence for each feature that this torch has no names for."""
    return [feature.notice for feature in FEATURES if not feature]


def warn() -> None:
    """Warn of each feature that is off, once in a process."""
    for notice in notices():
        if notice not in _warned:
            _warned.add(notice)
            warnings.warn(notice, stacklevel=2)


# --- recording ----------------------------------------------------------------------------

RECORDING = Feature("recording what is said through torch.distributed")
RECORDING.takes("torch.ops:c10d.allreduce_.default._schema")
RECORDING.takes("torch._ops.OpOverload.redispatch")
RECORDING.takes("torch.distributed.Work.boxed")
_backend_select = RECORDING.takes("torch._C.DispatchKey.BackendSelect")
_keys_after = RECORDING.takes("torch._C._dispatch_keyset_full_after")
BELOW = _keys_after(_backend_select) if RECORDING else None  # the dispatch keys of what the recorder's kernel calls
process_group = RECORDING.takes("torch.distributed.ProcessGroup.unbox")  # from an operator's argument
work = RECORDING.takes("torch.distributed.Work.unbox")  # from what an operator returned
schema = attrgetter("_schema")  # of an operator: its qualified name and its arguments

FOLDER = os.path.dirname(torch.__file__) + os.sep  # of torch's own source files
OPERATORS_FILE = FOLDER + "_ops.py"  # where torch.ops calls an operator

CATCHES = Feature("noticing, before Python 3.12, an exception that a program catches")
ERROR_LOG = CATCHES.takes("torch.distributed.c10d_logger._c10d_logger")  # of those that leave torch.distributed

UNINSTALLING = Feature("taking the recorder's kernels out of a run with record=False")
destroy = UNINSTALLING.takes("torch.library.Library._destroy")

# Between an operator and its implementation: no program calls these itself.
DISPATCHERS = tuple(
    FOLDER + file.replace("/", os.sep)
    for file in ("_ops.py", "_compile.py", "utils/_python_dispatch.py", "distributed/tensor/_dispatch.py")
)
CALL_A_MODULE = ("_wrapped_call_impl", "_call_impl")  # functions behind Module.__call__
COMPILED = os.sep + "torchinductor_"  # in the path of a file that torch.compile wrote


def dispatched(frame: FrameType) -> str | None:
    """'DTensor.matmul': the operator that DTensor's dispatcher carries out in this frame."""
    op = frame.f_locals.get("op_call")
    return None if op is None else f"DTensor.{op.overloadpacket.__name__.strip('_')}"


SHORT_WAY = Feature("handing messages to their backend without a detour")
TIME_LIMITS = Feature("knowing a group's own time limit")
backend = SHORT_WAY.takes("torch.distributed.ProcessGroup._get_backend")
TIME_LIMITS.takes("torch.distributed.ProcessGroup._get_backend")
TIME_LIMITS.takes("torch.distributed.ProcessGroupGloo._Options._timeout")


def time_limit(group: ProcessGroup) -> float | None:
    """Seconds after which this group's calls give up; None if the backend doesn't expose that."""
    with suppress(RuntimeError, AttributeError):
        return backend(group, torch.device("cpu")).options._timeout.total_seconds() if TIME_LIMITS else None


_METHODS = dict(vars(ProcessGroup))  # which bind to a group: looked up as attributes, they would not
REPEATS = Feature("handing calls that are like an earlier one to their backend at once")
_profiled = REPEATS.takes("torch._C._autograd._profiler_enabled")
_transformed = REPEATS.takes("torch._C._functorch.peek_interpreter_stack")
_Backend = REPEATS.takes("torch._C._distributed_c10d.Backend")
OPTIONS = {
    REPEATS.takes(f"torch.distributed.distributed_c10d.{kind}Options")
    for kind in ("Allreduce", "Allgather", "ReduceScatter")
}
# Methods of ProcessGroup that Python code calls: torch's own, and the name of the backend's that carries it out. A
# missing one is left to the kernel (kernel.py).
REPEATED = {
    name: (getattr(ProcessGroup, name), of_backend)
    for of_backend, names in {
        "send": ("send",),
        "recv": ("recv",),
        "recv_anysource": ("recv_anysource",),
        "allreduce": ("allreduce",),
        "_allgather_base": ("_allgather_base", "all_gather_single"),  # the second from torch 2.13 onward
        "_reduce_scatter_base": ("_reduce_scatter_base", "reduce_scatter_single"),
    }.items()
    for name in names
    if hasattr(ProcessGroup, name) and hasattr(_Backend, of_backend)
}

MESSAGES = [name for name in ("send", "recv", "recv_anysource") if name in REPEATED]


def set_repeated(functions: dict[str, Callable] = {name: _METHODS[name] for name in REPEATED}) -> None:
    """Replace these methods, for calls from Python, by functions that must call REPEATED; or restore torch's own."""
    if REPEATS:
        for name, function in functions.items():
            setattr(ProcessGroup, name, function)


def is_plain(mine: object) -> bool:
    """Whether only this mode would see an operator that is called now: no other mode, no profiler, no torch.func."""
    modes = mode_count()
    return (not modes or modes == 1 and mode_at(0) is mine) and not _profiled() and _transformed() is None


SOURCES = Feature("naming the source of a recv from anyone")
SOURCES.takes("torch.distributed.Work._source_rank")


def source_rank(work: Work) -> int | None:
    """The rank, within the group, that a recv from any source received from; None if torch doesn't expose it."""
    return work._source_rank() if SOURCES else None


BATCHES = Feature("telling when a batch of messages, or a coalesced one of calls, has ended")
start_coalescing = BATCHES.takes("torch.distributed.ProcessGroup._start_coalescing")
end_coalescing = BATCHES.takes("torch.distributed.ProcessGroup._end_coalescing")


def set_coalescing(start=_METHODS.get("_start_coalescing"), end=_METHODS.get("_end_coalescing")) -> None:
    """Make every batch begin and end through these functions, which must call torch's own; or restore those."""
    if BATCHES:
        ProcessGroup._start_coalescing, ProcessGroup._end_coalescing = start, end


def backend_name(group: ProcessGroup, device: torch.device) -> str | None:
    """The backend of a group's calls with tensors on this device: "gloo", "nccl", ..."""
    with suppress(RuntimeError):
        return backend(group, device).name() if SHORT_WAY else None


NAMES = Feature("noticing that the members of a group look for each other under different names")
_name_of = NAMES.takes("torch.distributed.distributed_c10d._hash_ranks_to_str")
_world = NAMES.takes("torch.distributed.distributed_c10d._world")
NAMES.takes("torch.distributed.distributed_c10d._world.pg_names")


def name_among_members(ranks: Iterable[int]) -> tuple[str, int] | None:
    """The name that torch would give a group that only its members make now, and how many groups this process is in.

    None if torch doesn't expose that.
    """
    return (_name_of(ranks), len(_world.pg_names)) if NAMES else None


class HasSource:
    """The method that torch calls on a Work after a recv from any source.  .source_rank(): the rank, within the group."""

    def _source_rank(self) -> int | None:
        return self.source_rank()


WARMING = Feature("warming ranks up before their first call")
world = WARMING.takes("torch.distributed.distributed_c10d._world")  # its group_count is in later groups' names


@functools.cache
def fake_backend() -> bool:
    """Whether torch has the backend "fake", which transfers nothing: importing its module registers it."""
    WARMING.takes("torch.testing._internal.distributed.fake_pg")
    return bool(WARMING)


PRETENDING = Feature("run(..., pretend=True)")
_Groups = PRETENDING.takes("torch.distributed.distributed_c10d._World", object)
PRETENDING.takes("torch.distributed.distributed_c10d._world")
copy_all = PRETENDING.takes("torch._foreach_copy_")
by_thread = PRETENDING.takes("torch._C._distributed_c10d._set_thread_isolation_mode")  # whether C++ keeps groups so


class GroupState(_Groups):
    """The state of a process's groups, which torch keeps once; each rank of one process has its own."""

    pg_map: Any = None  # which torch makes properties
    pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = pg_map
    group_count = 0

    def __init__(self) -> None:
        super().__init__()
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.tags_to_pg, self.pg_to_tag = {}, {}, {}


def groups() -> Any:
    """The state of the groups that torch.distributed's functions use now."""
    return torch.distributed.distributed_c10d._world if PRETENDING else None


def set_groups(state: Any) -> None:
    if PRETENDING:
        torch.distributed.distributed_c10d._world = state


# --- a tensor used too early --------------------------------------------------------------

WATCHING = Feature("noticing a tensor that is used before its call was waited for")
mode_count = WATCHING.takes("torch._C._len_torch_dispatch_stack")
mode_at = WATCHING.takes("torch._C._get_dispatch_stack_at")
push_mode = WATCHING.takes("torch._C._push_on_torch_dispatch_stack")
pop_mode = WATCHING.takes("torch._C._pop_torch_dispatch_stack")
NoModes = WATCHING.takes("torch._C._DisableTorchDispatch", nullcontext)
current_node = WATCHING.takes("torch._C._current_autograd_node")  # None outside a backward pass
WATCHING.takes("torch.ops:aten.add.Tensor._op")
operation = attrgetter("_op")  # what an operator calls, bypassing torch.compile's fake tensors

IDLING = Feature("noticing that a backward pass waits forever inside autograd")
run_backward = IDLING.takes("torch.autograd._engine_run_backward")
WATCHING.takes("torch.autograd._engine_run_backward")


def is_higher_order(operator: Any) -> bool:
    """Whether an operator takes functions of tensors, and so has no schema."""
    return not hasattr(operator, "_schema")


def set_run_backward(function) -> None:
    """Make every backward pass go through this function, which must call `run_backward`."""
    if IDLING:
        torch.autograd._engine_run_backward = function


PASSES = Feature("timing how long a backward pass waits for its calls")
after_graph = PASSES.takes("torch.autograd.Variable._execution_engine.queue_callback", lambda callback: None)
PASSES.takes("torch._C._current_graph_task_id")

OBSERVING = Feature("seeing training whole with watch()")
backward_task = OBSERVING.takes("torch._C._current_graph_task_id", lambda: -1)  # -1 outside a backward pass
WATCHING.takes("torch._C._current_graph_task_id")
OBSERVING.takes("torch.ops:c10d.allreduce_.default._schema")
_latest_hooks = OBSERVING.takes("torch._C._autograd._top_saved_tensors_default_hooks")
_DispatchMode = OBSERVING.takes("torch.utils._python_dispatch.TorchDispatchMode", object)
WATCHING.takes("torch.utils._python_dispatch.TorchDispatchMode")


@contextmanager
def stepping_aside(hooks: torch.autograd.graph.saved_tensors_hooks) -> Iterator[None]:
    """A context in which these hooks leave the transforms of torch.func alone, which refuse to run within any."""
    disabled = torch.autograd.graph.disable_saved_tensors_hooks

    @contextmanager
    def without(message: str) -> Iterator[None]:
        latest = _latest_hooks(True) if OBSERVING else None
        is_latest = latest is not None and latest[0] == hooks.pack_hook
        if is_latest:
            hooks.__exit__(None, None, None)
        try:
            with disabled(message):
                yield
        finally:
            if is_latest:
                hooks.__enter__()

    torch.autograd.graph.disable_saved_tensors_hooks = without
    try:
        yield
    finally:
        torch.autograd.graph.disable_saved_tensors_hooks = disabled


_MODULE_HOOKS = [OBSERVING.takes(f"torch.nn.modules.module._global_forward_{kind}", {}) for kind in ("hooks", "pre_hooks")]
_COMPILE_THEMSELVES = FOLDER + "_higher_order_ops" + os.sep  # torch.cond has no other way to run


@contextmanager
def uncompiled() -> Iterator[None]:
    """A context in which torch.compile compiles nothing, so that hooks and modes see a program layer by layer.

    torch.compiler is loaded only when a program compiles: that costs every rank a second.
    """
    compile = torch.compile
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*when there are global hooks on modules")  # which are not the program's

        @functools.wraps(compile)
        def compiling(*args: Any, **kwargs: Any) -> Any:
            function = compile(*args, **kwargs)
            if sys._getframe(1).f_code.co_filename.startswith(_COMPILE_THEMSELVES):
                return functools.partial(_compiled, function)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            return function

        if "torch._dynamo" in sys.modules:  # something may be compiled already
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        torch.compile = compiling
        stack.callback(setattr, torch, "compile", compile)
        yield


def _compiled(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """The result of a function that is compiled nevertheless, without hooks of this package, which can't be."""
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("default"))
        for hooks in _MODULE_HOOKS:
            for key, hook in list(hooks.items()):
                if getattr(hook, "__module__", "").startswith(__package__.partition(".")[0]):
                    stack.callback(hooks.__setitem__, key, hooks.pop(key))
        return function(*args, **kwargs)


class DispatchMode(_DispatchMode):
    """A TorchDispatchMode that is never compiled, and keeps nothing from being compiled.

    torch would wrap its __torch_dispatch__ with torch._dynamo.disable, whose import costs every rank a second.
    FlexAttention and torch.cond compile themselves, and are higher-order operators, which a mode sees only if it declares support.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# --- torch.compile ------------------------------------------------------------------------

COMPILING = Feature("recording what a program does that torch.compile has compiled")
_set_strategy = COMPILING.takes("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_Strategy = COMPILING.takes("torch._C._dynamo.eval_frame._FrameExecStrategy")
_Action = COMPILING.takes("torch._C._dynamo.eval_frame._FrameAction")

# Logs that torch skips its profiler's marks, including those of its own DistributedDataParallel.
CONTEXT_LOG, CONTEXT_SKIPPED = "torch._dynamo.variables.ctx_manager", "Profiler record function"

# Warns that a part of a plan's key matches no child of a module.
PARALLELIZE = "parallelize_module"
PART_UNMATCHED = "Parallelize plan key"


def never_compiled(function, callees: bool = True):
    """The function, which torch.compile leaves alone from now on, with all that it calls unless `callees` is False."""
    if COMPILING:
        _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP if callees else _Action.DEFAULT))
    return function


# --- what travels -------------------------------------------------------------------------

PICKLING = Feature("functions that name torch.ops or torch.classes")
# Types that are pickled by name -> the name, as pkgutil.resolve_name takes it.
PICKLED_BY_NAME = {
    PICKLING.takes("torch._ops._Ops"): lambda _: "torch.ops",
    PICKLING.takes("torch._ops._OpNamespace"): lambda space: f"torch.ops:{space.name}",
    PICKLING.takes("torch._ops.OpOverloadPacket"): lambda op: f"torch.ops:{op}",
    PICKLING.takes("torch._ops.OpOverload"): lambda op: f"torch.ops:{op}",
    PICKLING.takes("torch._classes._Classes"): lambda _: "torch.classes",
    PICKLING.takes("torch._classes._ClassNamespace"): lambda space: f"torch.classes:{space.name}",
}
PICKLED_BY_NAME.pop(None, None)
UNFINISHED = Feature("waiting for a functional collective whose result is returned")
_FUNCTIONAL = "torch.distributed._functional_collectives"


def unfinished() -> type | None:
    """The class of a functional collective's result, a tensor to be waited for; None if it was never imported."""
    return _looked_up(UNFINISHED, f"{_FUNCTIONAL}.AsyncCollectiveTensor")[0] if _FUNCTIONAL in sys.modules else None


# --- training observed ---------------------------------------------------------------------

VIEWS = Feature("leaving views of parameters out of what autograd keeps")
VIEWS.takes("torch.Tensor._base")
SHARDS = Feature("locating the shards of a DTensor")
LOCALS = Feature("counting what a rank holds of a DTensor")
FSDP = Feature("telling which layer fully_shard gathers ahead of its use")
PIPELINES = Feature("reading torch's pipeline schedules")
_PARAMETERS = "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup"


def base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that this one is a view of."""
    return tensor._base if VIEWS else None


@functools.cache
def _looked_up(feature: Feature, *names: str) -> tuple:
    """torch's objects of these names, looked up once, with a warning for each feature that is off."""
    values = tuple(map(feature.takes, names))
    warn()
    return values


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: a DTensor's local shard."""
    kind = type(tensor).__name__
    if kind == "DTensor":
        _looked_up(LOCALS, "torch.distributed.tensor.DTensor._local_tensor")
        return local(tensor._local_tensor) if LOCALS else tensor
    return local(tensor.elem) if kind == "AsyncCollectiveTensor" else tensor


def local_part(tensor) -> tuple | None:
    """Shape, and first index in the full tensor, of this rank's shard of a DTensor. Imports DTensor."""
    (where,) = _looked_up(SHARDS, "torch.distributed.tensor._utils.compute_local_shape_and_global_offset")
    return where(tensor.shape, tensor.device_mesh, tensor.placements) if SHARDS else None


def sharded_module(frame: FrameType) -> torch.nn.Module | None:
    """The module whose parameters fully_shard gathers, or whose gradients it reduces, in this frame."""
    if frame.f_code.co_name not in ("unshard", "post_backward"):
        return None
    group = frame.f_locals.get("self")
    if type(group).__module__.startswith("torch.distributed.fsdp."):
        _looked_up(FSDP, f"{_PARAMETERS}.unshard", f"{_PARAMETERS}.post_backward")
        if FSDP and type(group).__name__ == "FSDPParamGroup":
            return group.modules[0]
    return None


def pipeline_orders(schedule: str, ranks: int, microbatches: int, chunks: int | None) -> list[list]:
    """Per rank, the actions of a schedule of torch.distributed.pipelining, in order. Imports pipelining.

    Raises ImportError where torch has no name for it.
    """
    (orders,) = _looked_up(PIPELINES, "torch.distributed.pipelining._schedule_visualizer.get_schedule_ops")
    PIPELINES.require()
    return orders(schedule, ranks, microbatches, chunks)
