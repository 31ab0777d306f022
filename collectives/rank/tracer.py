"""The recorder inside a rank: tells of every call of torch.distributed, before it is made and when it is complete.

The kernel (kernel.py) hands it each call of an operator.  It reads the call (operators.py), tells of it, passes it on to
its backend, and returns a Work of its own (traced.py).  So nothing that was asynchronous becomes synchronous.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections import deque
from types import FrameType
from typing import Any, Callable

import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from ..record.event import MAIN, Event
from . import kernel, threads, torch_private
from .callers import learners_call
from .idle import Idle
from .operators import SAME_CALL, Reading, arguments, read
from .protocol import Called, Completed, Message, Misused, Resumed, Waiting
from .tensors import capture, is_dense, outline
from .traced import TracedWork, in_their_own_words
from .watch import Guard, Unwatched, Watch

MAX_OPEN = 1024  # calls that nobody has waited for; more, and the oldest that are complete are written down
KEPT_WORKS = 4  # of those waited for, see Tracer._kept
SHORT_SECONDS = 30 * 60  # torch's own time limit of a group; one below it was set by the program
CAUGHT_SECONDS = 60  # one below this, of a group beside the whole world's, was set to be caught
_SEND, _RECV = (inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))
_WATCH_FILE = Watch.settle.__code__.co_filename


class Tracer:
    """Records every torch.distributed call made while it is entered.

    emit: called with a protocol message whenever something happens, so that whoever listens knows what this rank does
        even when it hangs or dies.  The tensors are the program's own: they must be written down before it returns.
    """

    def __init__(
        self,
        rank: int,  # this process's global one
        emit: Callable[[Message], None],
        began: float,  # time.perf_counter() when the run began; times are seconds since then
        whole: bool = False,  # keep tensors of more than LARGE elements whole instead of summarising them
        values: bool = True,  # False keeps shape and dtype of tensors alone, and reads none of their memory
        watch: bool = True,  # False does not notice that a tensor is used before its call was waited for
        patient: bool = False,  # True heeds a group's own time limit only where it is there to be caught
    ) -> None:
        self.emit = emit
        self._rank, self._began, self._patient = rank, began, patient
        self._capture = functools.partial(capture, whole=whole) if values else outline
        self._count = 0
        # A Work that C++ holds alone still needs its Python half: all until they are done...
        self._open: dict[int, TracedWork] = {}
        # ... and then a little longer. DistributedDataParallel waits for a Work, and next asks for its
        # future. Not for ever: each holds its tensors.
        self._kept: deque[TracedWork] = deque(maxlen=KEPT_WORKS)
        self._short: dict[str, bool] = {}  # group name -> whether its calls give up early
        self._lock = threading.RLock()
        self.watch = Watch(self._touched) if watch and torch_private.WATCHING else Unwatched()
        self.idle = Idle(self._blocked, lambda: emit(Resumed()))

    def __enter__(self) -> Tracer:
        torch_private.RECORDING.require()
        kernel.install()
        kernel.recorder = self._called
        self.watch.start()
        torch_private.set_run_backward(in_their_own_words(self.watch.run_backward))
        self._followed = threads.followed(self.emit)
        self._followed.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._followed.__exit__(None, None, None)
        torch_private.set_run_backward(torch_private.run_backward)
        self.watch.stop()
        kernel.recorder = None

    def finish(self) -> None:
        """Closes the events nobody waited for, with what stands in their tensors now."""
        for traced in list(self._open.values()):
            self.done(traced, waited=False, complete=traced.inner.is_completed())

    # --- a call -------------------------------------------------------------------------

    def _called(self, op, name: str, keys, args: tuple, kwargs: dict):
        """Tell of the call of an operator, pass it on, and return what it returns, with a Work of our own."""
        given = arguments(op, args, kwargs)
        group = torch_private.process_group(given["process_group"])
        call = read(name, given, tuple(dist.get_process_group_ranks(group)), self._rank)
        if any([t.is_meta for t in call.all_in]):
            return kernel.passed_on(op, keys, args, kwargs)  # for such tensors torch only goes through the motions
        event, caller = call.event, _python_caller()
        event.group_name = group.group_name
        event.line, entry, frame = learners_call(threads.here.given_at)
        event.within = None if SAME_CALL.get(entry, entry) == event.op else entry
        if event.is_message:
            event.async_op = not _at_once(caller)
        if name == "monitored_barrier_":
            return self._blocks(event, functools.partial(kernel.passed_on, op, keys, args, kwargs))
        with self._lock:  # calls of several threads are numbered in the order in which the backend gets them
            self._tell(event, call.inputs)
            if event.is_message and torch_private.backend and all([is_dense(t) for t in call.all_in]):
                out = work = _message(name, group, given)
            else:
                out = kernel.passed_on(op, keys, args, kwargs)
                work = torch_private.work(out[-1] if isinstance(out, (tuple, list)) else out)
            if work is None:  # part of a batch, which NCCL starts, and is waited for, as one
                self.emit(Completed(event.index, None, self.now(), False, None))
                return out
            by_operator = caller.f_code.co_filename == torch_private.OPERATORS_FILE
            traced = self._wrapped(work, call, group, by_operator)
        # A functional collective (an operator called by torch.ops) leaves its tensors to wait_tensor.
        if event.async_op and not by_operator and self.watch.due(event.op, frame):
            self.watch.add(self._guard(call, caller))
        else:
            self.watch.settle()
        if len(self._open) > MAX_OPEN:
            self._write_down()
        return (*out[:-1], traced.boxed()) if isinstance(out, (tuple, list)) else traced.boxed()

    def _blocks(self, event: Event, pass_on: Callable) -> None:
        """A monitored_barrier, the one operator that waits by itself."""
        with self._lock:
            self._tell(event, None)
        self.emit(Waiting(event.index, self.now(), True, threads.here.work))
        pass_on()
        self.emit(Completed(event.index, None, self.now(), True, None))

    def _wrapped(self, work: Work, call: Reading, group: ProcessGroup, by_operator: bool) -> TracedWork:
        """The Work that tells of its end in place of the backend's own, among those under way."""
        event = call.event
        traced = TracedWork(self, work, event.index, call.outputs)
        if event.op == "recv" and event.src is None:
            traced.any_source = event.group
        on_device = any([t.is_cuda for t in call.all_in or call.all_out])
        traced.gives_up = on_device or self._has_short_limit(group)
        traced.by_torch = by_operator or event.within is not None
        self._open[event.index] = traced
        return traced

    def _guard(self, call: Reading, caller: FrameType) -> Guard:
        """What must not happen to the tensors of a call under way."""
        event = call.event
        only_sent = event.op == "send" or event.op == "broadcast" and self._rank == event.src
        by_hook = torch_private.backward_task() != -1 and caller.f_code is not torch_private.run_backward.__code__
        return Guard(event.index, call.all_in, [] if only_sent else call.all_out, by_hook)

    def _tell(self, event: Event, inputs) -> None:
        event.index, self._count = self._count, self._count + 1
        event.start = self.now()
        with torch_private.NoModes():  # the recorder's own use of tensors is no use by the program
            event.before = self._capture(inputs, scratch=event.is_scratch)
            self.emit(Called(event))

    def _has_short_limit(self, group: ProcessGroup) -> bool:
        """Whether the program gave this group a time limit of its own: its waits end by themselves."""
        if group.group_name not in self._short:
            limit = torch_private.time_limit(group)
            short = limit is not None and limit < (CAUGHT_SECONDS if self._patient else SHORT_SECONDS)
            self._short[group.group_name] = short and not (
                self._patient and group.group_name == dist.group.WORLD.group_name
            )
        return self._short[group.group_name]

    def _write_down(self) -> None:
        """Tell the end of calls that are complete and that nobody waits for, and let go of their tensors."""
        for traced in list(self._open.values())[: MAX_OPEN // 2]:
            if traced.inner.is_completed():
                self.done(traced, waited=False)

    # --- its end ------------------------------------------------------------------------

    def done(self, traced: TracedWork, waited: bool = True, complete: bool = True) -> None:
        """Tell once that a call is complete, or was left so; and again when it is waited for after all."""
        with self._lock:
            if traced.told and (traced.waited or not waited):
                return  # all of this has been told
            traced.told, traced.waited = True, waited
            self._open.pop(traced.index, None)
            if (
                traced.by_torch
            ):  # one that the program made is its own to keep: kept here, it would keep a destroyed group connected
                self._kept.append(traced)
        self.watch.remove(traced.index)
        place = torch_private.source_rank(traced.inner) if complete and traced.any_source else None
        src = None if place is None else traced.any_source[place]
        with torch_private.NoModes():
            after = self._capture(traced.outputs)
            self.emit(Completed(traced.index, after, self.now() if complete else None, waited, src))
        if waited:  # else somebody may still wait
            traced.outputs = None

    def _touched(self, index: int, how: str) -> None:
        self.emit(Misused(index, how, learners_call(threads.here.given_at)[0]))

    def _blocked(self, since: float) -> None:
        """The main thread has stood still since then, in C++: it waits for a call whose future was asked for."""
        asked = next((t for t in list(self._open.values()) if t.asked), None)
        if asked is not None:
            self.emit(Waiting(asked.index, since - self._began, False, MAIN))

    def now(self) -> float:
        return time.perf_counter() - self._began


def _python_caller() -> FrameType:
    """The frame that called into C++, where C++ called the recorder's kernel."""
    frame = sys._getframe(3)  # this function, Tracer._called, kernel._kernel
    while frame.f_code.co_filename == _WATCH_FILE:  # the mode, through which the call came
        frame = frame.f_back
    return frame


def _message(name: str, group: ProcessGroup, given: dict[str, Any]) -> Work | None:
    """Send or receive as the operator does for dense tensors: it gives its arguments to the backend as they are.

    To call the operator itself takes four times as long, and a ring or a pipeline makes thousands of messages.
    """
    tensors, tag = given["tensors"], given["tag"]
    backend = torch_private.backend(group, tensors[0].device)
    if name == "send":
        return backend.send(tensors, given["dst"], tag)
    if name == "recv_":
        return backend.recv(tensors, given["src"], tag)
    return backend.recv_anysource(tensors, tag)


def _at_once(frame: FrameType | None) -> bool:
    """Whether send() or recv() makes the call: both are made of isend() or irecv(), and wait."""
    for _ in range(3):  # isend, its decorator, send
        if frame is None or frame.f_code is _SEND or frame.f_code is _RECV:
            break
        frame = frame.f_back
    return frame is not None and (frame.f_code is _SEND or frame.f_code is _RECV)
