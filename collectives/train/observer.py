"""A rank's memory while it trains: bytes by kind and layer, from storages, and the phase in which each call was made.

Runs in the rank, around a function that knows nothing of it.  It observes by hooks: on every module's forward, for the
program's place; on tensors that autograd saves, and on their use in backward, for the layer whose backward begins; a
dispatch mode besides the recorder's sees each torch.distributed call.

Bytes are storages' (tensor_memory.py).  Kinds:
    parameters   of modules; a layer's are "whole" when gathered
    buffers      of modules
    gradients    .grad of these parameters
    optimizer    the states of torch.optim optimizers that made a step
    activations  kept by autograd for backward, and not among the above; a weight gathered by hand, for one
    messages     passed to torch.distributed or filled by it, not among the above, and still there:
                 DistributedDataParallel's buckets, a layer gathered ahead of its use
A function that keeps its tensors in its own lists instead of modules returns them in a dict under these names:
dict(parameters={"w": w}, optimizer={"w": [m, v]}).  Where it holds only a part, shapes={"w": (64, 64)} has the whole's.
Such parts are added to the modules', which may be freed and gathered again meanwhile.
"""

import sys
import time
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch.nn as nn
from torch.nn.modules import module as module_hooks

from ..rank import torch_private
from ..rank.operators import MADE_OF_OPS, OPS
from ..rank.torch_private import DispatchMode, local
from .modules import Modules, layer_of
from .tensor_memory import SUBCLASSES, Activations, nbytes, storages, tensors_in

STATES = ("parameters", "gradients", "optimizer")  # kinds that have pieces: what a rank holds between two steps
KINDS = (*STATES, "activations", "messages", "buffers")
PHASES = ("setup", "forward", "backward", "update")
CALLS = {"c10d": OPS, "_c10d_functional": MADE_OF_OPS["_c10d_functional"]}  # namespace -> operators that are calls
MAX_FRAMES = 2000
RELEASE_SECONDS = 0.002


class PhaseMark(NamedTuple):
    """The place of a torch.distributed call in a training step."""

    phase: str  # see PHASES; "update": after a backward, before the next forward
    where: str  # name of the innermost module: "block0.mlp.down"; "" outside of all
    step: int  # from 0: the times that a forward has followed a backward; a microbatch counts too


class FilmFrame(NamedTuple):
    """A rank's memory at one moment, in bytes."""

    step: int  # as in PhaseMark
    phase: str
    layer: str  # whose forward ends here, or whose backward begins
    sharded: dict[str, int]  # layer -> parameters of which this rank holds a part
    whole: dict[str, int]  # layer -> parameters that it holds whole, for the moment or always
    gradients: int
    activations: dict[str, int]  # layer -> kept for backward
    messages: int
    shards: int = 0  # parameters that the function keeps beside its modules

    def held(self, layer: str) -> int:
        """Bytes of the layer's parameters."""
        return self.sharded.get(layer, 0) + self.whole.get(layer, 0)

    @property
    def kept(self) -> int:
        """Bytes of all activations."""
        return sum(self.activations.values())


class Piece(NamedTuple):
    """The part of a tensor that a rank holds."""

    kind: str
    name: str
    whole: tuple[int, ...]  # shape of the tensor
    start: tuple[int, ...] | None  # index of the piece's first element in it; None: not known
    shape: tuple[int, ...]  # of the piece
    nbytes: int  # elements of the piece, without padding
    partial: bool = False  # the tensor is the sum of the ranks' parts
    first: torch.Tensor | None = None  # its values at the first forward, where start is not known


@dataclass
class Observation:
    """The result of one rank's function, and the observations while it ran."""

    result: Any
    marks: list[PhaseMark]  # one per call, in call order
    frames: list[FilmFrame]
    pieces: list[Piece]  # at the end
    peaks: dict[str, int]  # kind -> bytes at most
    layers: dict[str, int]  # layer -> bytes of its parameters when whole


# --- the observer -------------------------------------------------------------------------


class observed:
    """A function that calls `fn`, and returns an Observation of it."""

    def __init__(self, fn: Callable) -> None:
        self.fn, self.__name__ = fn, getattr(fn, "__name__", type(fn).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Observation:
        observer = _Observer()
        for value in (*args, *kwargs.values()):
            if isinstance(value, nn.Module):
                observer.modules.register(value)
        with observer.hooks():
            result = self.fn(*args, **kwargs)
        return observer.finish(result)


class _Observer(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.modules = Modules()
        self.marks: list[PhaseMark] = []
        self.frames: list[FilmFrame] = []
        self.peaks: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._stack: list[str] = []  # names of the modules whose forward is running
        self._last = "setup"  # the phase that was last certain
        self._step = 0
        self._sampled_update = False
        self._unwound = ""  # the module whose backward is running
        self._backward = -1  # the number of that backward()
        self._pending: list[int] = []  # receives whose purpose is not known yet
        self._activations = Activations(
            lambda: [p for _, p in self.modules.parameters()], where=self._kept, used=self._unwound_to
        )
        self._messages = weakref.WeakValueDictionary()  # storages given to torch.distributed
        self._first: dict[str, torch.Tensor] = {}
        self._optimizers: dict[int, Any] = {}

    def hooks(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch_private.uncompiled())
        stack.enter_context(module_hooks.register_module_forward_pre_hook(self._enter))
        stack.enter_context(module_hooks.register_module_forward_hook(self._leave))
        stack.enter_context(sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self._stepped))
        stack.enter_context(self._activations)
        stack.enter_context(torch_private.stepping_aside(self._activations))
        if torch_private.OBSERVING:
            stack.enter_context(self)
        return stack

    # The program's place.

    def _in_backward(self) -> bool:
        return torch_private.backward_task() != -1

    def _now(self, phase: str) -> None:
        """Notes that the program is in its forward or backward."""
        if phase == "forward" and self._last == "backward":
            self._step += 1
        if phase == "backward" and (self._last != "backward" or self._backward != torch_private.backward_task()):
            self._unwound, self._backward = "", torch_private.backward_task()
        self._last = phase
        self._sampled_update = False
        for k in self._pending:
            self.marks[k] = PhaseMark(phase, self.marks[k].where, self._step)
        self._pending.clear()

    def _enter(self, module: nn.Module, _) -> None:
        if id(module) not in self.modules.name:
            if self._stack:
                self._stack.append(self._stack[-1])  # made on the way: a part of what contains it
                return
            self.modules.register(module)
        if not self._stack:
            self.modules.note_shards()
        self._stack.append(self.modules.name.get(id(module), ""))
        if not self._in_backward():
            self._now("forward")
        if not self._first:
            self._note_first_values()

    def _leave(self, module: nn.Module, *_) -> None:
        self._stack.pop()
        name = self.modules.name.get(id(module), "")
        if name and name == layer_of(name):  # in backward: what a checkpoint recomputes
            self._sample("backward" if self._in_backward() else "forward", name)

    def _stepped(self, optimizer, *_) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self._peak("optimizer", nbytes(self._optimizers))

    def _innermost(self) -> str:
        """The name of the module whose forward is running."""
        return self._stack[-1] if self._stack else ""

    def _kept(self) -> str:
        """Autograd keeps something, in the module that is named: this is a forward, with or without modules."""
        if not self._in_backward():
            self._now("forward")
        return self._innermost()

    def _unwound_to(self, where: str) -> None:
        """Autograd uses a tensor that it kept in the forward of `where`."""
        if self._in_backward():
            self._now("backward")
            before, self._unwound = self._unwound, where
            if where and layer_of(before) != layer_of(where):
                self._sample("backward", layer_of(where))

    # Its memory.

    def _sample(self, phase: str, layer: str) -> None:
        sharded, whole = self.modules.held()
        gradients = storages(self.modules.gradients())
        owned = set(gradients).union(*sharded.values(), *whole.values())
        held = _bytes(sharded), _bytes(whole), sum(gradients.values()), _bytes(self._activations.by_layer)
        frame = FilmFrame(self._step, phase, layer, *held, self._message_bytes(owned))
        if len(self.frames) < MAX_FRAMES:
            self.frames.append(frame)
        self._peak("parameters", sum(frame.sharded.values()) + sum(frame.whole.values()))
        self._peak("gradients", frame.gradients)
        self._peak("messages", frame.messages)
        self._peak("buffers", nbytes(b for _, b in self.modules.buffers()))

    def _message_bytes(self, owned: set[int]) -> int:
        """gloo's threads release a finished call's tensors a moment after the wait for it is over."""
        until = time.perf_counter() + RELEASE_SECONDS
        while True:
            held = ((s, storage.nbytes()) for s, storage in self._messages.items())
            total = sum(size for s, size in held if s not in owned and s not in self._activations.users)
            if not total or time.perf_counter() > until:
                return total
            time.sleep(RELEASE_SECONDS / 10)

    def _peak(self, kind: str, size: int) -> None:
        self.peaks[kind] = max(self.peaks[kind], size)

    def _note_first_values(self) -> None:
        """Keep a cut parameter's values: compared with the whole's, they show which part this is."""
        with torch.no_grad(), torch_private.NoModes():  # no use of the program's
            for name, p in self.modules.parameters():
                if type(p).__name__ not in SUBCLASSES and tuple(p.shape) != self.modules.shape[name]:
                    self._first[name] = p.detach().clone()

    # Its calls.

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t.__name__ in SUBCLASSES for t in types):
            return NotImplemented  # they make of it the calls on plain tensors that count
        kwargs = kwargs or {}
        if self._in_backward():
            if self._last != "backward":
                self._now("backward")
        elif self._last == "backward" and not self._sampled_update:
            self._sampled_update = True
            self._sample("update", "")
        if torch_private.is_higher_order(func):
            return func(*args, **kwargs)
        namespace, _, name = torch_private.schema(func).name.partition("::")
        if name not in CALLS.get(namespace, ()):
            return func(*args, **kwargs)
        self._mark(name)
        out = func(*args, **kwargs)
        for tensor in tensors_in((args, tuple(kwargs.values()), out)):
            storage = tensor.untyped_storage()
            self._messages[id(storage)] = storage
        return out

    def _mark(self, name: str) -> None:
        in_backward = self._in_backward()
        if in_backward or self._stack:
            phase = "backward" if in_backward else "forward"
        else:
            phase = "update" if self._last == "backward" and name != "send" else self._last
            if name.startswith("recv"):
                self._pending.append(len(self.marks))
        where = self._sharder() or self._innermost() or (self._unwound if in_backward else "")
        self.marks.append(PhaseMark(phase, where, self._step))

    def _sharder(self) -> str:
        """The layer that fully_shard makes this call for, which it gathers ahead of its use."""
        frame = sys._getframe(2)
        while frame is not None:
            if (module := torch_private.sharded_module(frame)) is not None:
                return self.modules.name.get(id(module), "")
            frame = frame.f_back
        return ""

    # The Observation.

    def finish(self, result: Any) -> Observation:
        if self._last == "backward" and not self._sampled_update:
            self._sample("update", "")
        self._peak("activations", self._activations.peak)
        values = result if isinstance(result, dict) else {}
        for name, shape in values.get("shapes", {}).items():
            self.modules.shape[str(name)] = tuple(shape)
        shards = self._beside_modules(values, "parameters")
        self.frames = [frame._replace(shards=shards) for frame in self.frames]
        for kind in KINDS:
            if kind in values:
                self._peak(kind, self.peaks[kind] + self._beside_modules(values, kind))
                self._peak(kind, nbytes(values[kind]))
        pieces = list(self._pieces(_parts(values, "parameters")))
        names = {(piece.kind, piece.name) for piece in pieces}
        pieces += [piece for piece in self._returned(values) if (piece.kind, piece.name) not in names]
        return Observation(result, self.marks, self.frames, pieces, self.peaks, self.modules.layers())

    def _beside_modules(self, values: dict, kind: str) -> int:
        """Bytes of the parts that the function keeps while its modules come and go: ZeRO's shards by hand."""
        owned = storages(self.modules.trained(), self.modules.gradients())
        return sum(size for storage, size in _parts(values, kind).items() if storage not in owned)

    def _pieces(self, parts: dict[int, int]) -> Iterator[Piece]:
        """The pieces of modules and optimizers.  parts: storages that are pieces themselves, parameters their views."""
        names = {}
        for name, p in self.modules.parameters():
            names[id(p)], first, storage = name, self._first.get(name), local(p).untyped_storage()
            freed = p.numel() > 0 and storage.nbytes() == 0  # until it is gathered again
            if not freed and id(storage) not in parts:
                yield self._piece("parameters", name, p, first)
            if p.grad is not None:
                yield self._piece("gradients", name, p.grad, first)
        for optimizer in self._optimizers.values():
            for p, state in optimizer.state.items():
                name = names.get(id(p), "?")
                for value in state.values():
                    if isinstance(value, torch.Tensor) and value.dim():
                        yield self._piece("optimizer", name, value, self._first.get(name))

    def _returned(self, values: dict) -> Iterator[Piece]:
        """Pieces of the function's result."""
        for kind in KINDS:
            if isinstance(values.get(kind), dict):
                for name, value in values[kind].items():
                    yield from (self._piece(kind, str(name), tensor) for tensor in tensors_in(value))

    def _piece(self, kind: str, name: str, tensor: torch.Tensor, first: torch.Tensor | None = None) -> Piece:
        part, shape = local(tensor), tuple(local(tensor).shape)
        if type(tensor).__name__ == "DTensor":
            shape, start = torch_private.local_part(tensor) or (shape, None)
            partial = any(placement.is_partial() for placement in tensor.placements)
            return Piece(kind, name, tuple(tensor.shape), start, tuple(shape), part.nbytes, partial)
        whole = self.modules.shape.get(name, shape)
        start = (0,) * part.dim() if shape == whole else None
        return Piece(kind, name, whole, start, shape, part.nbytes, first=first)


def _parts(values: dict, kind: str) -> dict[int, int]:
    """Storage -> bytes, for tensors of a function's result that are parts of a tensor whose shape it returned too."""
    held = values.get(kind)
    return storages([held[name] for name in values.get("shapes", ()) if name in held] if isinstance(held, dict) else ())


def _bytes(held: dict[str, dict[int, int]]) -> dict[str, int]:
    """Bytes of each layer that holds any.  held: layer -> storage -> bytes."""
    return {layer: sum(sizes.values()) for layer, sizes in held.items() if sizes}
