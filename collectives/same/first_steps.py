"""Records of a rank's first steps: its data, parameters, gradients and calls, around a function that knows nothing of it.

Hooks on every module and optimizer see names, first values, outputs and what an optimizer takes.  A parameter's own hook
sees its gradient as backward made it, before any reduction.  Two modes see draws of random numbers, updates by hand,
and each torch.distributed call.
"""

import os
import sys
from contextlib import ExitStack
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.modules import module as module_hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from ..log.event import Line
from ..rank import torch_private
from ..rank.callers import is_learners, learners_call
from ..rank.operators import OPS, arguments, read
from ..rank.torch_private import DispatchMode, local
from . import marks
from .handling import ADDERS, HANDLED, SMALL, Handling, address
from .records import CallMade, FirstSteps, Parameter, TensorStep
from .replay import Feed, Join, batches_through, every_group_is_its_own, samplers_through
from .variables import containing, leaves, names_read_later, variable

SEED = 1000  # of rank 0
MOST_PASSES = 8  # backward passes of one step that are kept apart
ROUNDED = 2  # times the distance of neighboring numbers: errors that a gradient has on several ranks (see relation.py)
STEPS = 3  # of each parameter that are recorded: numbers of tokens may be equal by chance in one
WRAPPERS = {"module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"}  # parts of names
UNSAVED = (
    "a backward inside no_sync() reduces its gradients all the same, because the forward before it was outside: to save that "
    "communication, put the forward inside, too"
)
DRAWS = {torch.randn, torch.rand, torch.randint, torch.normal}
DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "feature_dropout"}
UPDATES = {
    "sub_", "add_", "__isub__", "__iadd__", "addcdiv_", "addcmul_", "lerp_",
    "_foreach_sub_", "_foreach_add_", "_foreach_addcdiv_",
}  # fmt: skip
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
SOURCES = {torch.tensor, torch.as_tensor, torch.asarray, torch.full}  # of data that is the program's own
HYPERPARAMETERS = ("lr", "weight_decay", "momentum", "betas", "eps")


class recorded:
    """A function that calls `fn`, and returns the FirstSteps of it.

    others: the feeds of the ranks whose data it gets, for one process that does the work of all.
    steps: how many to record.  stop: end `fn` at the first forward after them.
    join: of which tensors the process gets all ranks' rows.
    shaken: 1 or -1 to add to gradients, or subtract, as much as rounding may change them.
    """

    def __init__(
        self,
        fn: Callable,
        others: list[Feed] | None = None,
        steps: int = STEPS,
        stop: bool = False,
        join: Join = Join(),
        shaken: int = 0,
    ) -> None:
        self.fn, self.others, self.steps, self.stop, self.join, self.shaken = fn, others, steps, stop, join, shaken
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self._recorder: Recorder | None = None

    def so_far(self) -> FirstSteps | None:
        """The record, if it has all steps, while `fn` runs on: called from another thread."""
        if self._recorder is None or not self._recorder.has_all:
            return None
        self._recorder.finish()
        return self._recorder.record

    def __call__(self, *args: Any, **kwargs: Any) -> FirstSteps:
        torch.manual_seed(SEED + int(os.environ["RANK"]))  # an unseeded rank draws other numbers than its neighbors
        recorder = self._recorder = Recorder(self.others, self.steps, self.stop, self.join, self.shaken)
        for value in (*args, *kwargs.values()):
            if isinstance(value, nn.Module):
                recorder.register(value, passed=True)
        with recorder.hooks():
            try:
                self.fn(*args, **kwargs)
            except Enough:
                pass
            except Exception as error:
                if not (self.stop and recorder.has_all):  # a neighbor has stopped
                    raise error
        recorder.finish()
        return recorder.record


class Enough(BaseException):
    """All steps are recorded; past handlers of Exception."""


class Recorder:
    """Fills FirstSteps."""

    def __init__(
        self, others: list[Feed] | None, steps: int, stop: bool = False, join: Join = Join(), shaken: int = 0
    ) -> None:
        self.record, self.steps, self.stop, self.busy = FirstSteps(), steps, stop, False
        self.shaken, self._noise = shaken, torch.Generator().manual_seed(0)
        self.others, self.join, self.handling = others, join, Handling(self.record)
        self._names: dict[int, str] = {}  # of modules
        self._modules: list[nn.Module] = []  # kept alive: an id is a name
        self._roots: list[tuple[nn.Module, str]] = []  # with the prefix of their names
        self._passed: set[str] = set()  # names of parameters that were passed in, and not used yet
        self._entered = False
        self._synchronized: dict[nn.Module, bool] = {}  # whether DDP's latest forward prepared to reduce gradients
        self._unfed = False  # the outermost module has keyword arguments alone, which only modules in it show
        self._live: dict[str, torch.Tensor] = {}  # the parameters themselves
        self._leaves: set[str] = set()  # names of those that are in no module or optimizer, as far as is known
        self._stack: list[str] = []
        self._outputs: dict[int, str] = {}  # storage -> name, of outputs with a history
        self._kept: list[torch.Tensor] = []  # these outputs, so that no storage's address is used again
        self._complete: set[tuple[int, int]] = set()  # places of the program of whose tensors no more are kept
        self._made = 0  # steps
        self._stepping: torch.optim.Optimizer | None = None
        self._backward = False

    def hooks(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch_private.uncompiled())
        stack.enter_context(module_hooks.register_module_forward_pre_hook(self._enter))
        stack.enter_context(module_hooks.register_module_forward_hook(self._leave))
        stack.callback(register_optimizer_step_pre_hook(self._step).remove)
        stack.callback(register_optimizer_step_post_hook(self._has_stepped).remove)
        stack.enter_context(batches_through(self._batch))
        stack.enter_context(samplers_through(self.handling.sampled))
        stack.enter_context(self.handling.loads())
        if self.others is not None:
            stack.enter_context(every_group_is_its_own())
        stack.enter_context(_Functions(self))
        if torch_private.OBSERVING:
            stack.enter_context(_Calls(self))
        marks.listener = self
        stack.callback(setattr, marks, "listener", None)
        return stack

    # Names.

    def register(self, root: nn.Module, passed: bool = False) -> None:
        """Give a module, and what it is made of, names.  passed: to the function, which may train a copy of it."""
        names = {_clean(name) for name, _ in root.named_parameters()}
        if passed or not self._has_modules or names <= self._passed:
            prefix = ""
        else:
            prefix = self._numbered(variable(root) or type(root).__name__)
        if not passed:
            self._passed.clear()
        self._roots.append((root, prefix))
        for name, module in root.named_modules(prefix=prefix):
            if id(module) not in self._names:
                self._names[id(module)] = _clean(name)
                self._modules.append(module)
                self._suspect(module)
        self._scan()
        if passed:
            self._passed |= names

    def _suspect(self, module: nn.Module) -> None:
        if getattr(module, "_comm_hooks", None):
            self.record.doubt("a communication hook changes gradients on purpose: leave it out for the comparison")
        if isinstance(module, BATCH_NORMS) and module.training:
            self.record.doubt(
                "batch norm in training uses the statistics of each rank's own rows: replace it, or call its eval()"
            )

    def _scan(self) -> None:
        """Find the parameters of all modules; some may have been replaced: cut, or made a DTensor."""
        known = {id(p) for p in self._live.values()}
        for root, prefix in self._roots:
            for name, p in root.named_parameters(prefix=prefix):
                if type(root).__name__ == "DistributedDataParallel":
                    self.record.in_ddp.add(_clean(name))
                if id(p) not in known:
                    self._add(_clean(name), p)

    def _add(self, name: str, p: torch.Tensor) -> None:
        before = self._live.get(name)
        if type(before).__name__ == "DTensor" and type(p).__name__ != "DTensor":
            return  # gathered for a moment
        steps = self.record.parameters[name].steps if before is not None else []
        self._live[name] = p
        self.record.parameters[name] = _described(p)
        self.record.parameters[name].steps = steps
        if p.requires_grad and p.is_leaf and type(p).__name__ != "DTensor":
            p.register_hook(lambda g, name=name, p=p: self._arrived(name, p, g))

    def _numbered(self, word: str) -> str:
        """A word, with a number if a name begins with it already."""
        numbered = (f"{word}{k}" if k > 1 else word for k in range(1, 10_000))
        return next(name for name in numbered if not any(f"{known}.".startswith(f"{name}.") for known in self._live))

    @property
    def _has_modules(self) -> bool:
        return len(self._live) > len(self._leaves)

    def backward(self, loss: torch.Tensor) -> None:
        """A backward begins.  Where no module is trained, the tensors are whose gradients it makes."""
        if self._unwinding():
            return
        if self.stop and self.has_all and not self._stack:
            raise Enough
        for model, prepared in self._synchronized.items():
            if prepared and not model.require_backward_grad_sync:
                if not set(model.parameters()).isdisjoint(leaves(loss)):
                    self.record.remark(UNSAVED)
        if loss.numel() == 1:
            self.record.losses.append(float(local(loss).detach()))
        if not self._has_modules:
            with self.aside():
                self._after()
                ids = {id(p) for p in self._live.values()}
                for leaf in leaves(loss):
                    if id(leaf) in ids or self.handling.is_received(leaf):
                        continue
                    if word := variable(leaf):  # without a name, nobody updates it
                        name = self._numbered(word)
                        self._leaves.add(name)
                        self._add(name, leaf)

    # Forward.

    def _enter(self, module: nn.Module, args: tuple) -> None:
        if self.busy or self._unwinding():
            return
        if self.stop and self.has_all and not self._stack:
            raise Enough
        with self.aside():
            if id(module) not in self._names:
                if self._stack:  # made on the way
                    self._names[id(module)] = f"{self._stack[-1]}.?"
                    self._modules.append(module)
                else:
                    self.register(containing(module))
            if not self._stack:
                self._stepping = None
                self._passed.clear()
                self._after()
                self._scan()
                if not self._entered:  # they may have been changed since they were registered
                    self._entered = True
                    for name, p in self._live.items():
                        if not self.record.parameters[name].steps:
                            self.record.parameters[name] = _described(p)
            if not self._made and (self._unfed or not self._stack):
                tensors = [a for a in args if isinstance(a, torch.Tensor)]
                self.record.inputs += [_plain(a) for a in tensors if not a.requires_grad]
                self._unfed = not tensors
        self._stack.append(self._names[id(module)])

    def _leave(self, module: nn.Module, args: tuple, output: Any) -> None:
        if self.busy or self._unwinding() or not self._stack:
            return
        name = self._stack.pop()
        if isinstance(module, nn.parallel.DistributedDataParallel) and torch.is_grad_enabled():
            self._synchronized[module] = module.require_backward_grad_sync
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            self.record.dtypes.add(output.dtype)
            if output.requires_grad and not self._made:
                self._outputs[local(output).untyped_storage().data_ptr()] = name
                self._kept.append(output.detach())
            if not self._made:
                with self.aside():
                    count = sum(key.partition("#")[0] == name for key in self.record.outputs)
                    self.record.outputs[f"{name}#{count}" if count else name] = _plain(output)

    def _unwinding(self) -> bool:
        return torch_private.backward_task() != -1

    # Gradients.

    def _arrived(self, name: str, p: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
        """Backward has made a gradient of a parameter, and nothing has been reduced."""
        if self.busy or self._live.get(name) is not p:
            return None
        self._backward = True
        step = self._open(name)
        if step is not None:
            with self.aside():
                if len(step.passes) < MOST_PASSES:
                    step.passes.append(_plain(gradient))
                else:
                    step.passes[-1] += _plain(gradient)
        return self._rounded(gradient) if self.shaken else None

    def _rounded(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient with other errors of rounding."""
        with self.aside():
            noise = torch.randn(gradient.shape, generator=self._noise).to(gradient)
            size = ROUNDED * torch.finfo(gradient.dtype).eps * gradient.norm() / max(1, gradient.numel()) ** 0.5
            return gradient + self.shaken * size * noise

    def _open(self, name: str) -> TensorStep | None:
        """The parameter's step that hasn't been taken; None when enough are recorded."""
        steps = self.record.parameters[name].steps
        if not steps or steps[-1].taken or steps[-1].unseen:
            if len(steps) >= self.steps:
                return None
            steps.append(TensorStep(opened=self._made))
        return steps[-1]

    def _step(self, optimizer: torch.optim.Optimizer, *_) -> None:
        """An optimizer is about to take the gradients."""
        if self.busy or self._stepping is not None:  # inside one that is made of others, as ZeroRedundancyOptimizer is
            return
        self._stepping = optimizer
        self.busy = True
        with torch.no_grad():  # such a call is made by operators that NoModes would hide
            for p in (p for group in optimizer.param_groups for p in group["params"] if self.shaken):
                if type(p.grad).__name__ == "DTensor":  # which no hook has seen
                    local(p.grad).copy_(self._rounded(local(p.grad)))
            placed = {id(p): _placed_as(p.grad, p) for group in optimizer.param_groups for p in group["params"]}
        self.busy = False
        with self.aside():
            line = learners_call()[0]
            if not self.record.settings:
                self.record.settings = [
                    {key: group[key] for key in HYPERPARAMETERS if key in group} for group in optimizer.param_groups
                ]
            self._scan()
            known = {id(p): name for name, p in self._live.items()}
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if self._has_modules and not any(id(p) in known or p.grad is not None for p in parameters):
                self.record.stale = (
                    f"the optimizer holds {len(parameters)} tensors that are in no module, and none has a gradient ({line}): was it made "
                    "before the model was sharded or wrapped, which replaces parameters? Make it afterward"
                )
                parameters.clear()
            for g, group in enumerate(optimizer.param_groups):
                for k, p in enumerate(group["params"] if parameters else ()):
                    if id(p) not in known:
                        known[id(p)] = f"group{g}.{k}"
                        self._add(known[id(p)], p)
                    self._leaves.discard(known[id(p)])
                    self._take(known[id(p)], placed[id(p)], line, by_hand=False)
        self._made, self._backward = self._made + 1, False

    def _has_stepped(self, optimizer: torch.optim.Optimizer, *_) -> None:
        if self._stepping is optimizer:
            self._stepping = None

    def _take(self, name: str, gradient: torch.Tensor | None, line: Line | None, by_hand: bool) -> None:
        if (step := self._open(name)) is not None:
            step.taken, step.by_hand, step.line = True, by_hand, line
            step.grad = None if gradient is None else _plain(gradient)

    def updated(self, written: Any) -> None:
        """The program is about to do arithmetic on tensors in place, which may be its optimizer."""
        tensors = written if isinstance(written, (list, tuple)) else (written,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and type(tensor).__name__ != "DTensor":
                for name, p in self._live.items():
                    steps = self.record.parameters[name].steps
                    if steps and not steps[-1].taken and p.shape == tensor.shape and address(p) == address(tensor):
                        with self.aside():
                            self._take(name, p.grad, learners_call()[0], by_hand=True)
                        if self._backward:
                            self._made, self._backward = self._made + 1, False

    def _after(self) -> None:
        """Note the values of parameters that have been updated."""
        for name, p in self._live.items():
            parameter = self.record.parameters[name]
            for step in parameter.steps[-1:]:
                if step.after is None and (step.taken or step.passes) and _has_memory(p):
                    before = parameter.steps[-2].after if len(parameter.steps) > 1 else parameter.first
                    value = _plain(p)
                    moved = before is not None and not torch.equal(value, before)
                    step.unseen = not step.taken and (moved or self._made > step.opened)
                    step.after = value if step.taken or step.unseen else None

    # Marks and data.

    def note(self, name: str, value: torch.Tensor | float) -> None:
        with self.aside():
            value = torch.as_tensor(value)
            if value.is_leaf and value.requires_grad:
                if not any(p is value for p in self._live.values()):
                    self._add(name, value)
                return
            count = sum(key.partition("#")[0] == name for key in self.record.notes)
            if count < self.steps:
                self.record.notes[f"{name}#{count}" if count else name] = _plain(value)

    def data(self, rows: torch.Tensor, dim: int) -> torch.Tensor:
        return self.record.feed.given(rows, dim, self.others)

    def _batch(self, batch: Any) -> Any:
        return self.record.feed.batch(batch, self.others)

    def drawn(self, made: torch.Tensor) -> torch.Tensor:
        if self._stack:
            self.record.doubt("random numbers are drawn in a forward: give them a seed that doesn't depend on the rank")
            return made
        return self.record.feed.drawn(made, self.others, self.join.weights)

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the program's own numbers, or a part of one."""
        frame = sys._getframe(2)  # of what made the tensor
        place = id(frame.f_code), frame.f_lasti
        if place in self._complete or self.inside or tensor.requires_grad or type(tensor).__name__ == "DTensor":
            return tensor
        with self.aside():
            if (line := learners_call()[0]) is None:
                return tensor
            if is_learners(frame.f_code.co_filename) and self.record.feed.has_all_of(str(line)):
                self._complete.add(place)
            return self.record.feed.source(str(line), tensor, self.others, self.join.parts)

    def call(self, made: CallMade) -> None:
        averages = any(owner.startswith("parameter") for owner in made.about)  # which local SGD does after some steps
        if (self._made < self.steps or averages) and len(self.record.calls) < 10_000:
            self.record.calls.append(made)

    def about(self, tensor: torch.Tensor) -> tuple[str | None, str]:
        """Whose memory a tensor is, in words, and what it was before it was detached."""
        start = address(tensor)
        for name, p in self._live.items():
            if p.grad is not None and address(p.grad) == start:
                return f"gradient of {name}", ""
        for name, p in self._live.items() if self._backward and not self._unwinding() else ():
            if type(p.grad) is torch.Tensor and p.grad.shape == tensor.shape and torch.equal(p.grad, tensor):
                return f"copy of the gradient of {name}", ""
        for name, p in self._live.items():
            if _has_memory(p) and address(p) == start:
                return f"parameter {name}", ""
        if start in self._outputs:
            output = f"output of {self._outputs[start] or 'the model'}"
            return output, "" if tensor.requires_grad else f"the {output}"
        return None, self.handling.detached(tensor)

    @property
    def inside(self) -> bool:
        """Whether a module's forward or a backward runs, or all steps are recorded."""
        return bool(self._stack) or self._unwinding() or self.has_all

    @property
    def has_all(self) -> bool:
        return self._made >= self.steps

    def position(self) -> tuple[int, bool]:
        return self._made, self._backward or self._unwinding()

    def finish(self) -> None:
        """Take what no optimizer took; to be called when the function has returned."""
        with self.aside():
            self._after()
            self._drop_leaves()
            taken = any(step.taken or step.unseen for p in self.record.parameters.values() for step in p.steps)
            for name, p in self._live.items():
                if not taken and (self.record.parameters[name].steps or p.grad is not None):
                    self._take(name, p.grad, None, by_hand=True)
            self._after()
            for root, prefix in self._roots:
                for name, buffer in root.named_buffers(prefix=prefix):
                    if _has_memory(buffer):
                        self.record.buffers[_clean(name)] = _plain(buffer)
            weights = {address(p) for p in self._live.values() if _has_memory(p)}
            self.record.feed.finish(lambda tensor: address(tensor) in weights, {p.shape for p in self._live.values()})

    def _drop_leaves(self) -> None:
        """Leave out tensors that only carry gradients, if others are trained: a module's, or any that were updated."""
        trained = {name for name, p in self.record.parameters.items() if any(s.taken or s.unseen for s in p.steps)}
        if trained:
            for name in self._leaves - (set() if trained - self._leaves else trained):
                del self.record.parameters[name], self._live[name]

    def aside(self) -> "_Aside":
        return _Aside(self)


class _Aside:
    """A context for the recorder's own work, which isn't recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._stack = recorder, ExitStack()

    def __enter__(self) -> None:
        self._stack.callback(setattr, self._recorder, "busy", self._recorder.busy)
        self._recorder.busy = True
        self._stack.enter_context(torch.no_grad())
        self._stack.enter_context(torch_private.NoModes())

    def __exit__(self, *error) -> None:
        self._stack.close()


class _Functions(TorchFunctionMode):
    """Sees draws, dropout, losses, and arithmetic in place."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        recorder = self.recorder
        if recorder.busy:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func in DRAWS:
            return recorder.drawn(func(*args, **kwargs))
        if func in SOURCES or name == "__getitem__":
            return recorder.source(func(*args, **kwargs))
        if name in HANDLED and (name not in ADDERS or type(args[0]).__name__ == "DTensor"):
            value = func(*args, **kwargs)
            if not recorder.inside:
                with recorder.aside():
                    recorder.handling.function(name, args, value)
            return value
        if name in UPDATES and args:
            recorder.updated(args[0])
        elif name == "backward" and args and isinstance(args[0], torch.Tensor):
            recorder.backward(args[0])
        elif name in DROPOUTS:
            args, kwargs = self._without_dropout(args, kwargs)
        elif name == "scaled_dot_product_attention" and (args[4] if len(args) > 4 else kwargs.get("dropout_p")):
            self._switched_off()
            args, kwargs = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**kwargs}
            if len(args) < 5:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)

    def _without_dropout(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """args, kwargs: of (input, p, training, inplace)."""
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        if p and (args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))):
            self._switched_off()
        return ((args[0], 0.0, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "p": 0.0})

    def _switched_off(self) -> None:
        self.recorder.record.remark("dropout was off")


class _Calls(DispatchMode):
    """Sees each call of torch.distributed."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(t.__name__ in ("DTensor", "AsyncCollectiveTensor") for t in types):
            return NotImplemented  # they make calls on plain tensors of it
        namespace, _, name = str(getattr(func, "_schema", "")).partition("(")[0].partition(".")[0].partition("::")
        if namespace == "c10d" and name in OPS and not self.recorder.busy:
            self._note(func, name, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, func: Any, operator: str, args: tuple, kwargs: dict) -> None:
        recording = torch.is_grad_enabled()
        with self.recorder.aside():
            given = arguments(func, args, kwargs)
            group = torch_private.process_group(given["process_group"])
            ranks = tuple(dist.get_process_group_ranks(group))
            call = read(operator, given, ranks, dist.get_rank())
            about, cut_off, aliases, summed, piece = [], "", (), None, None
            for tensor in call.all_in:
                owner, detached = self.recorder.about(tensor)
                about += [owner] if owner else []
                cut_off = cut_off or (detached if recording else "")
                if tensor.is_floating_point() and owner and owner.startswith("gradient"):
                    self.recorder.record.dtypes.add(tensor.dtype)
            line, _, frame = learners_call()
            numel = sum(tensor.numel() for tensor in call.all_in)
            step, backward = self.recorder.position()
            unwinding = torch_private.backward_task() != -1
            if call.event.op == "all_reduce" and not unwinding:
                aliases = names_read_later(frame, call.all_in[0]) if frame else ()
                if call.event.reduce_op == "SUM" and numel <= SMALL:
                    summed = _plain(call.all_in[0])
                    self.recorder.handling.summed(call.all_in[0], len(self.recorder.record.calls))
                piece = self.recorder.handling.piece(call.all_in[0])
            if call.all_out is not call.all_in:
                self.recorder.handling.received(call.all_out)
        where = call.event.op, ranks, line, tuple(about), numel, step, backward, unwinding
        self.recorder.call(CallMade(*where, cut_off, aliases, summed, piece))


# --- tensors ------------------------------------------------------------------------------


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of this rank's part, on the CPU."""
    with torch.no_grad():
        part = tensor.to_local() if type(tensor).__name__ == "DTensor" else tensor
    if type(part).__name__ == "AsyncCollectiveTensor":
        part = part.wait()
    return part.detach().clone().cpu()


def _described(p: torch.Tensor) -> Parameter:
    first = _plain(p) if _has_memory(p) else None
    if type(p).__name__ == "DTensor" and (where := torch_private.local_part(p)):
        return Parameter(first, tuple(where[0]), tuple(where[1]), tuple(p.shape))
    return Parameter(first, tuple(local(p).shape))


def _placed_as(gradient: torch.Tensor | None, p: torch.Tensor) -> torch.Tensor | None:
    """A DTensor's gradient with the parameter's placements: an optimizer would make the same calls for it."""
    if type(gradient).__name__ == "DTensor" and gradient.placements != p.placements:
        return gradient.redistribute(placements=p.placements)
    return gradient


def _has_memory(tensor: torch.Tensor) -> bool:
    mine = local(tensor)
    return mine.device.type != "meta" and (mine.untyped_storage().nbytes() > 0 or not mine.numel())


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)
