"""The recorder inside a rank: reports each torch.distributed call before it is issued and after it completes.

The kernel (kernel.py) hands it each call of an operator. It reads the call (operators.py), reports it, passes it on to
its backend, and returns a Work of its own (traced.py), so what was asynchronous stays asynchronous.

Parts that only some recordings have: device.py (calls in a device's stream, loaded with the first of them),
callsites.py (calls repeated from one call site) and finite.py (a look for NaN and infinity). watch/recorder.py composes
those of a job.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from ..log.event import MAIN, Event, Value
from ..log.messages import Called, Completed, Message, Misused, Resumed, Waiting
from . import kernel, steps, threads, torch_private
from .callers import learners_call
from .idle import Idle
from .operators import SAME_CALL, Reading, arguments, read
from .tensors import capture, is_dense
from .traced import Held, Part, TracedWork, in_their_own_words
from .watch import Guard, Unwatched, Watch

if TYPE_CHECKING:
    from .callsites import Callsites
    from .device import Device, Streams
    from .finite import Finite

MAX_OPEN = 1024  # calls never waited for; beyond that, the oldest complete ones are reported and released
KEPT_WORKS = 4  # of those waited for, see Tracer._kept
WAITED_FOR = {"cpu"}  # kinds of device whose calls are waited for; those of any other go into a stream (device.py)
SHORT_SECONDS = 30 * 60  # torch's own timeout for a group; a shorter one was set by the program
HANDLED_CHARACTERS = 300
_SEND, _RECV = (inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))
_BETWEEN = {  # files of the frames between a program and the kernel
    os.path.join(os.path.dirname(__file__), file) for file in ("watch.py", "tracer.py", "callsites.py")
}


def refuse(place: str) -> NoReturn:
    """Raise: the program initialized its own default group, and this process has a different rank in it."""
    raise RuntimeError(
        f"run() records the calls of the world that it starts, and here an init_process_group of your own made this rank {place}. "
        "Try run(..., record=False)."
    )


def is_short(timeout: float, group: ProcessGroup) -> bool:
    """Whether the program itself set this timeout, in seconds: waits in the group end by themselves."""
    return timeout < SHORT_SECONDS


class Tracer:
    """Records every torch.distributed call made while it is entered.

    emit: called with a message of the log whenever something happens, so the listener knows what this rank is doing
        even when it hangs or dies. The tensors are the program's own: they must be written down before it returns.
    callsites, finite: parts, to be set before it is entered.
    """

    callsites: Callsites | None = None  # a fast path for calls repeated from one call site
    finite: Finite | None = None  # looks for NaN and infinity in what a call passes in

    def __init__(
        self,
        rank: int,  # this process's global one
        emit: Callable[[Message], None],
        began: float,  # time.perf_counter() when the run began; times are seconds since then
        capture: Callable[..., Value] = capture,  # a call's tensors as they are reported; with outline, none is read
        watch: bool = True,  # whether to notice that a tensor is used before its call was waited for
        wait: bool = False,  # whether to wait for calls of a device, as gloo does, so their tensors can be read
        is_short: Callable[[float, ProcessGroup], bool] = is_short,
        astray: Callable[[str], None] = refuse,  # called with our rank in a default group that the program made itself
    ) -> None:
        self.rank, self.emit, self.capture, self.waits = rank, emit, capture, wait
        self._began, self._is_short, self._astray = began, is_short, astray
        self.calls = 0  # made so far
        # By group, as long as it lives: after destroy_process_group, another may have its name.
        # Its ranks, the name of its backend by kind of device, and whether its messages give up early.
        self._members: WeakKeyDictionary[ProcessGroup, tuple[int, ...]] = WeakKeyDictionary()
        self._backends: WeakKeyDictionary[ProcessGroup, dict[str, str | None]] = WeakKeyDictionary()
        self._short: WeakKeyDictionary[ProcessGroup, bool] = WeakKeyDictionary()
        # By group name. In a first call, NCCL may wait for all ranks: calls of other groups must not wait for that.
        self.order: dict[str, threading.RLock] = defaultdict(threading.RLock)
        # A Work that only C++ holds still needs its Python half: all of them until they are done...
        self.open: dict[int, TracedWork] = {}
        # ... and then a little longer. DistributedDataParallel waits for a Work, and next asks for its
        # future. Not forever: each holds its tensors.
        self._kept: deque[TracedWork] = deque(maxlen=KEPT_WORKS)
        # gloo's messages, by index. One dies with its Work, and so is lost if the program releases that too early: kept
        # alive here, it would arrive, and the program would behave differently.
        self._held: dict[int, Held] = {}
        self.let_go: deque[Held] = deque()  # those whose Work is gone, which is still to be reported
        self.lock = threading.RLock()
        self._device: Device | None = None
        self._pass = -1  # the backward pass whose end is reported, see asked()
        self.steps = steps.Steps()
        self.watch = Watch(self._touched) if watch and torch_private.WATCHING else Unwatched()
        self.idle = Idle(self._blocked, lambda: emit(Resumed()))

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
        methods = {name: self._message_method(torch_private.REPEATED[name][0]) for name in torch_private.MESSAGES}
        torch_private.set_repeated(self.callsites.methods() if self.callsites else methods)
        self.watch.start()
        self.steps.start()
        torch_private.set_run_backward(in_their_own_words(self.watch.run_backward))
        self._followed = threads.followed(self.emit)
        self._followed.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._followed.__exit__(None, None, None)
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
        held = filter(None, [held() for held in list(self._held.values())])
        for traced in [*self.open.values(), *held]:
            self.done(traced, waited=False, complete=traced.complete)

    # --- a call -------------------------------------------------------------------------

    def _called(self, op, name: str, keys, args: tuple, kwargs: dict):
        """Report the call of an operator, pass it on, and return its result, with a Work of the recorder's own."""
        given = arguments(op, args, kwargs)
        group = torch_private.process_group(given["process_group"])
        ranks = self._members.get(group) or self._members_of(group)
        if ranks is None:
            return kernel.passed_on(op, keys, args, kwargs)
        call = read(name, given, ranks, self.rank)
        if any([t.is_meta for t in call.all_in]):
            return kernel.passed_on(op, keys, args, kwargs)  # with such tensors torch only goes through the motions
        event, caller = call.event, _python_caller()
        barrier = given.get("tensor")  # only a barrier has one, to name the device
        tensors = call.all_in or call.all_out or ([] if barrier is None else [barrier])
        device = tensors[0].device if tensors else None
        streams = None if device is None or device.type in WAITED_FOR else self.device.streams(device)
        event.group_name, event.backend = group.group_name, self._backend(group, device)
        event.captured = bool(streams) and self.device.captures(streams)
        frame = _locate(event, caller)
        issue = functools.partial(kernel.passed_on, op, keys, args, kwargs)
        self.report_ended()
        if name == "monitored_barrier_":
            return self._blocks(event, issue)
        if event.is_message and event.backend == "gloo" and all([is_dense(t) for t in call.all_in]):
            issue = functools.partial(_message, name, group, given)
        elif streams and not event.async_op and (self.waits or barrier is not None):
            issue = functools.partial(self.device.wait_in, event, issue)
        with self.order[group.group_name]:  # its calls are numbered in the order in which the backend gets them
            self._report(event, call.inputs, streams)
            out = issue()
            work = _work_of(out)
            if work is not None:
                by_operator = caller is not None and caller.f_code.co_filename == torch_private.OPERATORS_FILE
                by_torch = by_operator or event.within is not None
                part = Part(event.index, call.outputs)
                traced = self.wrap(work, part, device, streams, group, by_torch, event.is_message)
                traced.captured, traced.event = event.captured, event
                if barrier is not None:  # the rank itself waits in it, not a stream
                    traced.gives_up = self._has_short_timeout(group)
                if event.op == "recv" and event.src is None:
                    traced.any_source = event.group
        if work is None:
            self.device.took(event, call.outputs, device, streams, waited=barrier is not None)
            return out
        # A functional collective (an operator called by torch.ops) leaves its tensors to wait_tensor.
        if event.async_op and not by_operator and self.watch.due(event.op, frame):
            self.watch.add(self._guard(call, caller))
        else:
            self.watch.settle()
        self.bound_open()
        return (*out[:-1], traced.boxed()) if isinstance(out, (tuple, list)) else traced.boxed()

    def _members_of(self, group: ProcessGroup) -> tuple[int, ...] | None:
        """A group's global ranks; None if they aren't the job's, or unknown (torchft bypasses torch.distributed)."""
        try:
            ranks = tuple(dist.get_process_group_ranks(group))
        except KeyError:
            return None
        if dist.is_initialized() and dist.get_rank() != self.rank:
            self._astray(f"{dist.get_rank()} of {dist.get_world_size()}")
            return None
        self._members[group] = ranks
        return ranks

    def _backend(self, group: ProcessGroup, device: torch.device | None) -> str | None:
        if (names := self._backends.get(group)) is None:
            names = self._backends[group] = {}
        kind = "" if device is None else device.type
        if kind not in names:
            names[kind] = torch_private.backend_name(group, device or torch.device("cpu"))
        return names[kind]

    def _blocks(self, event: Event, issue: Callable) -> None:
        """A monitored_barrier, the only operator that waits by itself."""
        self._report(event, None, None)
        self.emit(Waiting(event.index, self.now(), True, threads.here.work))
        issue()
        self.emit(Completed(event.index, None, self.now(), True, None))

    def _report(self, event: Event, inputs: Value, streams: Streams | None) -> None:
        """Give a call its number and report it, before it is issued."""
        with torch_private.NoModes():  # the recorder's own use of tensors isn't the program's
            event.before = self._read(inputs, streams, event.captured, event.is_scratch)
            finite = self.finite and self.finite.look(event, inputs, later=bool(streams) and not self.waits)
            with self.lock:
                event.index, self.calls = self.calls, self.calls + 1
                event.step = self.steps.count
                event.start = self.now()
                self.emit(Called(event))
                if finite is not None:
                    self.finite.on_issue(event.index, finite)

    def _read(self, value: Value, streams: Streams | None, captured: bool, scratch: bool = False) -> Value:
        """A call's tensors as they are reported."""
        if streams:
            return self.device.read(value, captured, scratch)
        return self.capture(value, scratch=scratch)

    def wrap(
        self,
        work: Work,
        part: Part,
        device: torch.device | None,
        streams: Streams | None,
        group: ProcessGroup,
        by_torch: bool,
        is_message: bool = False,
    ) -> TracedWork:
        """The Work that reports the call's end, instead of the backend's own; it's open from now on."""
        traced = TracedWork(self, work, [part])
        traced.device, traced.streams, traced.by_torch = device, streams, by_torch
        on_device = bool(streams) and not self.waits
        traced.gives_up = on_device or self._has_short_timeout(group, is_message)
        self.open[part.index] = traced
        return traced

    def _has_short_timeout(self, group: ProcessGroup, is_message: bool = False) -> bool:
        """Whether waits in a group end by themselves, because the program gave it a short timeout.

        It may set another one at any time, which gloo's collectives heed; messages keep to the group's first."""
        timeout = torch_private.time_limit(group)
        short = timeout is not None and self._is_short(timeout, group)
        first = self._short.setdefault(group, short)
        return first if is_message else short

    def _guard(self, call: Reading, caller: FrameType | None) -> Guard:
        """What the program must not do with the tensors of a call under way."""
        event = call.event
        only_sent = event.op == "send" or event.op == "broadcast" and self.rank == event.src
        starts_pass = caller is not None and caller.f_code is torch_private.run_backward.__code__
        by_hook = torch_private.backward_task() != -1 and not starts_pass
        return Guard(event.index, call.all_in, [] if only_sent else call.all_out, by_hook)

    # --- what stands in for methods of a ProcessGroup -------------------------------------

    def _message_method(self, own: Callable) -> Callable:
        """torch's own isend or irecv of a group, whose Work the recorder holds no longer than the program does."""

        @torch_private.never_compiled
        def called(*args, **kwargs):
            work = own(*args, **kwargs)
            self.hold_weakly(work)
            return work

        return called

    def _batching(self) -> tuple[Callable, Callable]:
        """The functions that begin and end a batch, instead of torch's own. gloo has none."""

        def start(group: ProcessGroup, device_type: torch.device) -> None:
            self.device.start_batch(group, device_type)

        def end(group: ProcessGroup, device_type: torch.device) -> Work | None:
            return self.device.end_batch(group, device_type)

        return start, end

    def hold_weakly(self, work: Work) -> None:
        """Hold a message of gloo, whose Work Python has by now, no longer than the program does."""
        if type(work) is TracedWork and (work.event is None or work.event.backend == "gloo"):
            with self.lock:
                if self.open.pop(work.index, None):
                    self._held[work.index] = Held(work, self.let_go.append)

    def report_let_go(self) -> None:
        """Report messages whose Work the program released before they were complete."""
        while self.let_go:
            held = self.let_go.popleft()
            if self._held.pop(held.index, None):
                self.watch.remove(held.index)
                with torch_private.NoModes():
                    after = held.after if held.after is not None else self._read(held.outputs, held.streams, False)
                    self.emit(Completed(held.index, after, None, False, None))

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
                after = self._read(part.outputs, traced.streams, traced.captured)
                self.emit(Completed(part.index, after, self.now() if complete else None, waited, src))
                if complete and self.finite:
                    self.finite.on_complete(part.index)
        if waited:  # otherwise the program may still wait for it
            traced.parts = [Part(part.index, None) for part in traced.parts]

    def close(self, traced: TracedWork, waited: bool) -> None:
        """Take a Work out of the open ones, as reported. Needs the lock."""
        traced.told, traced.waited = True, waited
        self.open.pop(traced.index, None)
        self._held.pop(traced.index, None)
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
        if self.let_go:
            self.report_let_go()

    def ask(self) -> None:
        """Report the end of every call that is complete, as far as can be seen. Never waits."""
        self.report_let_go()
        if self._device and self._device.in_capture():
            return
        with self.lock:
            if self._device:
                self._device.ask()
            for traced in list(self.open.values()):
                if traced.complete:
                    self.done(traced, waited=False)

    def _touched(self, index: int, how: str) -> None:
        self.emit(Misused(index, how, learners_call(threads.here.given_at)[0]))

    def asked(self) -> None:
        """Called when the future of a call is taken. In a backward pass that is DistributedDataParallel, which waits in
        C++ for all its futures once the graph has been worked through: after what is queued here."""
        self.idle.start()
        if (task := torch_private.backward_task()) not in (-1, self._pass):
            self._pass = task
            torch_private.after_graph(self._waits_in_pass)

    def _waits_in_pass(self) -> None:
        """Report when the main thread began to wait; that isn't evidence of a deadlock."""
        since = self.now()
        for traced in list(self.open.values()):
            if traced.asked and traced.since is None:
                traced.since = since
                self.emit(Waiting(traced.index, since, True, MAIN))

    def _blocked(self, since: float) -> None:
        """Report that the main thread has been waiting in C++ since then, for a call whose future was taken."""
        asked = next((t for t in list(self.open.values()) if t.asked), None)
        if asked is not None:
            known = since - self._began if asked.since is None else asked.since
            self.emit(Waiting(asked.index, known, False, MAIN))

    def now(self) -> float:
        return time.perf_counter() - self._began


def _locate(event: Event, caller: FrameType | None) -> FrameType | None:
    """Fill in where the program makes a call, and how. Returns the frame of its line."""
    event.line, entry, frame = learners_call(threads.here.given_at)
    event.handling = _handled()
    event.within = None if SAME_CALL.get(entry, entry) == event.op else entry
    if event.is_message:
        event.async_op = not _at_once(caller)
    return frame


def _handled() -> str | None:
    """The exception that the program is handling, in a few words: one that a call in a `finally` would hide."""
    error = sys.exc_info()[1]
    if error is None:
        return None
    return traceback.format_exception_only(error)[0].partition("\n")[0][:HANDLED_CHARACTERS]


def _python_caller() -> FrameType | None:
    """The frame that called into C++, where C++ called the recorder's kernel; None in a thread of C++ alone.

    Autograd's threads for a GPU are of that kind, and so are all that make DDP's calls there."""
    frame = sys._getframe(2).f_back  # that of kernel._kernel; before it this function's, and Tracer._called's
    while frame is not None and frame.f_code.co_filename in _BETWEEN:  # the mode, or what replaces a method of torch
        frame = frame.f_back
    return frame


def _work_of(out: Any) -> Work | None:
    """The backend's Work in the result of an operator, or of _message."""
    if isinstance(out, Work):
        return out
    return torch_private.work(out[-1] if isinstance(out, (tuple, list)) else out)


def _message(name: str, group: ProcessGroup, given: dict[str, Any]) -> Work:
    """Send or receive as the operator does for dense tensors: it hands its arguments to the backend unchanged.

    Calling the operator itself takes four times as long, and a ring or a pipeline makes thousands of messages.
    Not for NCCL, which returns no Work within a batch: only the operator can return that.
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
