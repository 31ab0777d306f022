"""The part of a Tracer for calls repeated from one call site: a fast path, on which they aren't read again.

A training step makes thousands of messages and sums in a few places, and reading one takes longer than sending it. So
what the calls of one site have in common is kept as a Pattern. The next call goes straight to its backend, through
neither torch's dispatcher nor the kernel there (kernel.py), which would both pass it on unchanged.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Callable
from weakref import ref

import torch
from torch.distributed import ProcessGroup, Work
from torch.nn import Parameter

from ..log import backends
from ..log.event import MAIN, Event, Value
from ..log.messages import Again
from . import torch_private
from .callers import owner
from .early_use import FRAMES, Guard
from .tensors import outline
from .threads import here
from .traced import Part, TracedWork

MAX_PATTERNS = 4096
DEEP = 24  # frames of torch between a call and the program's line
_CPU = torch.device("cpu")


@dataclass(slots=True, eq=False)
class Pattern:
    """What the calls of one site have in common."""

    method: str  # of a backend
    event: Event  # the first call's
    after: Value  # the outputs of each
    order: threading.RLock  # held while a call is numbered and issued
    gives_up: bool  # see TracedWork
    by_torch: bool  # likewise
    group: ref[ProcessGroup]  # after it is destroyed, another may have its address
    codes: list[CodeType]  # likewise: as long as they are kept, their addresses in a place are theirs
    count: int = 0  # calls so far


class Callsites:
    """Of a tracer that reads no values: each call's tensors would have to be read."""

    def __init__(self, tracer) -> None:
        self._tracer = tracer
        self._patterns: dict[tuple, Pattern] = {}

    def methods(self) -> dict[str, Callable]:
        """By name, what the program calls instead of methods of ProcessGroup."""
        return {name: self._method(name, *own) for name, own in torch_private.REPEATED.items()}

    def _method(self, name: str, own: Callable, of_backend: str) -> Callable:
        """own: torch's method, for calls to be read.  of_backend: the name of the backend's method behind it."""

        @torch_private.never_compiled
        def called(*args, **kwargs):
            place = None if kwargs else place_of(name, args, self._tracer.watch)
            if place is None:
                work = own(*args, **kwargs)
            elif (pattern := self._patterns.get(place)) is not None and pattern.group() is args[0]:
                work = self._again(pattern, *args)
            else:
                work = own(*args)
                self._learn(place, of_backend, args, work)
            if is_message:
                self._tracer.messages.hold_weakly(work)
            return work

        is_message = name in torch_private.MESSAGES
        return called

    def _learn(self, place: tuple, method: str, args: tuple, work: Work) -> None:
        """Remember a call that was read, for those that repeat it."""
        if type(work) is TracedWork and work.event is not None and backends.of(work.event.backend).direct:
            if len(self._patterns) == MAX_PATTERNS:
                self._patterns.clear()
            group, (output,) = args[0], tensors_of(args)[1]
            codes, order = codes_of(place, sys._getframe(2)), self._tracer.order[group.group_name]
            fixed = work.event, outline(output), order, work.gives_up, work.by_torch, ref(group)
            self._patterns[place] = Pattern(method, *fixed, codes)

    def _again(self, pattern: Pattern, group: ProcessGroup, *args) -> Work:
        """Report a call that repeats an earlier one, and hand it to its backend. Returns the recorder's own Work."""
        tracer, event = self._tracer, pattern.event
        tracer.report_ended()
        with pattern.order:
            with tracer.lock:
                index, tracer.calls = tracer.calls, tracer.calls + 1
                tracer.emit(Again(event, index, tracer.now(), tracer.steps.count))
            # gloo's threads inherit this one's modes, and the watch would take what they do for the program's.
            with torch_private.NoModes():
                work = getattr(torch_private.backend(group, _CPU), pattern.method)(*args)
            traced = TracedWork(tracer, work, [Part(index, None)], by_torch=pattern.by_torch)
            traced.after, traced.gives_up = pattern.after, pattern.gives_up
            tracer.open[index] = traced
        pattern.count += 1
        if event.async_op and tracer.watch.is_due(pattern.count):
            by_hook = torch_private.backward_task() != -1
            inputs, outputs = tensors_of((group, *args))
            tracer.watch.add(Guard(index, inputs, [] if event.op == "send" else outputs, by_hook))
        else:
            tracer.watch.settle()
        tracer.bound_open()
        return traced


def place_of(method: str, args: tuple, mine: object) -> tuple | None:
    """The key of a call's pattern; None if it may repeat no other call, and must be read.

    To be called by what stands in for that method of ProcessGroup.  mine: see torch_private.is_plain.
    """
    if here.work is not MAIN or sys.exc_info()[1] is not None:
        return None
    if len(args) != (3 if method == "allreduce" else 4):
        return None
    if method in ("send", "recv"):
        how = args[2:]
    elif type(options := args[-1]) in torch_private.OPTIONS:
        how = getattr(options, "reduceOp", None), options.asyncOp
    else:
        return None
    first = args[1]
    if isinstance(first, list) and len(first) != 1:
        return None
    place = [method, id(args[0]), *how]
    for tensor in first if isinstance(first, list) else args[1:3]:
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not Parameter or not tensor.is_cpu or tensor.layout != torch.strided:
            return None
        place += tensor.dtype, tensor.shape, tensor.stride()
    if not torch_private.is_plain(mine):
        return None
    frame, left, found = sys._getframe(2), DEEP, False
    while frame is not None and left:
        code = frame.f_code
        if not found and owner(code.co_filename) == "learner":
            found, left = True, FRAMES  # the callers of the line belong to its place
        place += id(code), frame.f_lasti
        frame, left = frame.f_back, left - 1
    return tuple(place) if found else None


def tensors_of(args: tuple) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The inputs and outputs among the arguments of one of these methods: one list, if it works in place."""
    first = args[1]
    return ([args[2]], [first]) if isinstance(first, torch.Tensor) else (first, first)


def codes_of(place: tuple, frame: FrameType | None) -> list[CodeType]:
    """The code objects whose addresses are in a place that was found from this frame."""
    codes, ids = [], set(place)
    while frame is not None and id(frame.f_code) in ids:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes
