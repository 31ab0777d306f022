"""The recorder inside a rank: reports each torch.distributed call before it is issued and after it completes.

The kernel (kernel.py) hands it each call of an operator. It reads the call (operators.py), reports it, passes it on to
its backend, and returns a Work of its own (traced.py), so what was asynchronous stays asynchronous.

Its parts, each of which holds what only some calls need: point_to_point.py (gloo's messages), early_use.py (tensors used
too early), idle.py (waits inside autograd), device.py (calls in a device's stream, loaded with the first of them). A
job may add callsites.py (calls repeated from one call site) and finite.py (a look for NaN and infinity).
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import defaultdict, deque
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable

from ..log import backends
from ..log.event import MAIN, Event, Value
from ..log.messages import Called, Completed, Message, Misused, Waiting
from . import kernel, step_marks, threads, torch_private
from .callers import learners_call, python_caller
from .caught import Catches, brief
from .discarded import discarded
from .early_use import Unwatched, Watch
from .groups import KnownGroups
from .operators import SAME_CALL, Reading, arguments, read
from .point_to_point import WeakMessages, is_blocking, message
from .tensors import capture, is_dense
from .traced import Part, TracedWork, in_their_own_words, work_of

if TYPE_CHECKING:
    from .callsites import Callsites
    from .device import Device, Streams
    from .finite import Finite
    from .idle import Idle

MAX_OPEN = 1024  # calls never waited for; beyond that, the oldest complete ones are reported and released
KEPT_WORKS = 4  # of those waited for, see Tracer._kept
WAITED_FOR = {"cpu"}  # kinds of device whose calls are waited for; those of any other go into a stream (device.py)


class Tracer:
    """Records every torch.distributed call made while it is entered.

    rank: this process's global one.
    emit: called with a message of the log whenever something happens, so the listener knows what this rank is doing
        even when it hangs or dies. The tensors are the program's own: they must be written down before it returns.
    began: time.perf_counter() when the run began; times are seconds since then.
    capture: makes what is reported of a call's tensors; with outline, none is read.

    Parts that only some recordings have are set before it is entered:
    """

    callsites: Callsites | None = None  # a fast path for calls repeated from one call site
    finite: Finite | None = None  # looks for NaN and infinity in what a call passes in
    waits = False  # whether calls of a device are waited for, as gloo's are, so their tensors can be read

    def __init__(
        self, rank: int, emit: Callable[[Message], None], began: float, capture: Callable[..., Value] = capture
    ) -> None:
        self.rank, self.emit, self.capture, self._began = rank, emit, capture, began
        self.calls = 0  # made so far
        # By group name. In a first call, NCCL may wait for all ranks: calls of other groups must not wait for that.
        self.order: dict[str, threading.RLock] = defaultdict(threading.RLock)
        # A Work that only C++ holds still needs its Python half: all of them until they are done...
        self.open: dict[int, TracedWork] = {}
        self.failed: list[int] = []  # indices of calls whose wait has raised
        # ... and then a little longer. DistributedDataParallel waits for a Work, and next asks for its
        # future. Not forever: each holds its tensors.
        self._kept: deque[TracedWork] = deque(maxlen=KEPT_WORKS)
        self.lock = threading.RLock()
        self.groups = KnownGroups(rank)
        self.messages = WeakMessages(self)
        self.watch = Watch(self._touched) if torch_private.WATCHING else Unwatched()
        self.idle: Idle | None = None  # with the first future that is taken
        self.steps = step_marks.Steps()
        self._catches = Catches(emit, lambda: self.calls)
        self._threads = threads.Follower(emit)
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The part for calls that a device's stream carries out, loaded with the first of them."""
        if self._device is None:
            with self.lock:
                from .device import Device

                self._device = self._device or Device(self)
        return self._device

    def __enter__(self) -> Tracer:
        torch_private.RECORDING.require()
        kernel.install()
        kernel.recorder = self._called
        torch_private.set_coalescing(*self._batching())
        torch_private.set_repeated((self.callsites or self.messages).methods())
        self.watch.start()
        self.steps.start()
        torch_private.set_run_backward(functools.partial(in_their_own_words, self.watch.run_backward))
        self._threads.start()
        self._catches.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._catches.stop()
        self._threads.stop()
        self.steps.stop()
        torch_private.set_run_backward(torch_private.run_backward)
        self.watch.stop()
        torch_private.set_coalescing()
        torch_private.set_repeated()
        kernel.recorder = None

    def finish(self) -> None:
        """Close events that were never waited for, with their tensors' current values."""
        if self._device:
            self._device.end_capture()
        self.ask()
        for traced in [*self.open.values(), *self.messages.works()]:
            self.done(traced, waited=False, complete=traced.complete)
        for index in self.failed:
            self.emit(Completed(index, None, None, False, None))

    # --- a call -------------------------------------------------------------------------

    def _called(self, op, name: str, keys, args: tuple, kwargs: dict):
        """Report the call of an operator, pass it on, and return its result, with a Work of the recorder's own."""
        given = arguments(op, args, kwargs)
        group = torch_private.process_group(given["process_group"])
        ranks = self.groups.ranks(group)
        call = None if ranks is None else read(name, given, ranks, self.rank)
        if call is None or any([t.is_meta for t in call.all_in]):  # on meta tensors torch computes nothing
            return kernel.passed_on(op, keys, args, kwargs)
        event, caller = call.event, python_caller()
        barrier = given.get("tensor")  # only a barrier has one, to name the device
        tensors = call.all_in or call.all_out or ([] if barrier is None else [barrier])
        device = tensors[0].device if tensors else None
        streams = None if device is None or device.type in WAITED_FOR else self.device.streams(device)
        frame = self._describe(call, group, device, streams, caller)
        issue = functools.partial(kernel.passed_on, op, keys, args, kwargs)
        self.report_ended()
        if name == "monitored_barrier_":
            return self._blocks(event, issue)
        if event.is_message and backends.of(event.backend).direct and all([is_dense(t) for t in call.all_in]):
            issue = functools.partial(message, name, group, given)
        elif streams and not event.async_op and (self.waits or barrier is not None):
            issue = functools.partial(self.device.wait_in, event, issue)
        by_operator = caller is not None and caller.f_code.co_filename == torch_private.OPERATORS_FILE
        with self.order[group.group_name]:  # its calls are numbered in the order in which the backend gets them
            self._report(event, call.inputs, streams)
            out = issue()
            if (work := work_of(out)) is not None:
                by_torch = by_operator or event.within is not None
                traced = TracedWork(self, work, [Part(event.index, call.outputs)], device, streams, by_torch)
                in_stream = bool(streams) and not self.waits and barrier is None  # the rank itself waits in a barrier
                traced.of_call(event, in_stream or self.groups.has_short_timeout(group, event.is_message))
                self.open[event.index] = traced
        if work is None:
            self.device.took(event, call.outputs, device, streams, waited=barrier is not None)
            return out
        # A functional collective (an operator called by torch.ops) leaves its tensors to wait_tensor.
        self.watch.issued(call, frame, caller, event.async_op and not by_operator)
        self.bound_open()
        return (*out[:-1], traced.boxed()) if isinstance(out, (tuple, list)) else traced.boxed()

    def _describe(self, call: Reading, group, device, streams: Streams | None, caller) -> FrameType | None:
        """Fill in what isn't in a call's arguments: where it is made, and how. Returns the frame of the program's line."""
        event, error = call.event, sys.exc_info()[1]
        event.group_name, event.backend = group.group_name, self.groups.backend(group, device)
        event.captured = bool(streams) and self.device.captures(streams)
        event.line, entry, frame = learners_call(threads.here.given_at)
        event.in_thread = threads.here.work not in (MAIN, None)
        event.handling = None if error is None else brief(error)  # a call in a `finally` would hide it
        event.within = None if SAME_CALL.get(entry, entry) == event.op else entry
        if event.is_message:
            event.async_op = not is_blocking(caller)
        if not event.async_op:  # else the Work may give the result
            event.discarded = discarded(event.op, event.within, frame, call.all_out)
        return frame

    def _blocks(self, event: Event, issue: Callable) -> None:
        """A monitored_barrier, the only operator that waits by itself."""
        self._report(event, None, None)
        self.emit(Waiting(event.index, self.now(), True, threads.here.work))
        issue()
        self.emit(Completed(event.index, None, self.now(), True, None))

    def _report(self, event: Event, inputs: Value, streams: Streams | None) -> None:
        """Give a call its number and report it, before it is issued."""
        with torch_private.NoModes():  # the recorder's own use of tensors isn't the program's
            event.before = self.read(inputs, streams, event.captured, event.is_scratch)
            finite = self.finite and self.finite.look(event, inputs, later=bool(streams) and not self.waits)
            with self.lock:
                event.index, self.calls = self.calls, self.calls + 1
                event.step = self.steps.count
                event.start = self.now()
                self.emit(Called(event))
                if finite is not None:
                    self.finite.on_issue(event.index, finite)

    def read(self, value: Value, streams: Streams | None, captured: bool, scratch: bool = False) -> Value:
        """A call's tensors as they are reported."""
        if streams:
            return self.device.read(value, captured, scratch)
        return self.capture(value, scratch=scratch)

    def _batching(self) -> tuple[Callable, Callable]:
        """The functions that begin and end a batch, instead of torch's own. gloo has none."""
        return (
            lambda group, device_type: self.device.start_batch(group, device_type),
            lambda group, device_type: self.device.end_batch(group, device_type),
        )

    # --- its end ------------------------------------------------------------------------

    def waited(self, traced: TracedWork) -> None:
        """Report what the return of a wait means: the call's end, or that a stream waits for it."""
        if traced.streams:
            self.device.waited(traced)
        else:
            self.done(traced)

    def done(self, traced: TracedWork, waited: bool = True, complete: bool = True) -> None:
        """Report once that a call is complete, or was left open; and again if it is waited for after all."""
        with self.lock:
            if traced.told and (traced.waited or not waited):  # all of this has been reported
                if complete and self._device:  # except for the end of calls that a stream has
                    self._device.end(traced.parts)
                return
            self.close(traced, waited)
        if self.watch.guards:
            for part in traced.parts:
                self.watch.remove(part.index)
        if traced.after is not None:
            self.emit(Completed(traced.index, traced.after, self.now() if complete else None, waited, None))
            return
        place = torch_private.source_rank(traced.inner) if complete and traced.any_source else None
        src = None if place is None else traced.any_source[place]
        with torch_private.NoModes():
            for part in traced.parts:
                after = self.read(part.outputs, traced.streams, traced.captured)
                self.emit(Completed(part.index, after, self.now() if complete else None, waited, src))
                if complete and self.finite:
                    self.finite.on_complete(part.index)
        if waited:  # otherwise the program may still wait for it
            traced.parts = [Part(part.index, None) for part in traced.parts]

    def close(self, traced: TracedWork, waited: bool) -> None:
        """Take a Work out of the open ones, as reported. Needs the lock."""
        traced.told, traced.waited = True, waited
        self.open.pop(traced.index, None)
        self.messages.held.pop(traced.index, None)
        if traced.by_torch:  # the program keeps its own: kept here, it would keep a destroyed group connected
            self._kept.append(traced)

    def bound_open(self) -> None:
        """If too many calls are open, report the end of old ones that are complete, and release their tensors."""
        if len(self.open) > MAX_OPEN:
            for traced in list(self.open.values())[: MAX_OPEN // 2]:
                if traced.complete:
                    self.done(traced, waited=False)

    def report_ended(self) -> None:
        """Report the end of earlier calls that is easily seen, before another is issued. Never waits."""
        if self._device:
            self._device.ask_oldest()
        if self.messages.released:
            self.messages.report_released()

    def ask(self) -> None:
        """Report the end of every call that is complete, as far as can be seen. Never waits."""
        self.report_ended()
        if self._device and self._device.in_capture():
            return
        with self.lock:
            if self._device:
                self._device.ask()
            for traced in list(self.open.values()):
                if traced.complete:
                    self.done(traced, waited=False)

    def _touched(self, index: int, how: str) -> None:
        line = None if how == "returned" else learners_call(threads.here.given_at)[0]
        self.emit(Misused(index, how, line))

    def now(self) -> float:
        return time.perf_counter() - self._began
