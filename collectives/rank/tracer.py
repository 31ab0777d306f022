"""The recorder inside a rank: tells of every call of torch.distributed, before it is made and when it is complete.

The kernel (kernel.py) hands it each call of an operator.  It reads the call (operators.py), tells of it, passes it on to
its backend, and returns a Work of its own (traced.py), so nothing that was asynchronous becomes synchronous.  A call that
is like an earlier one isn't read (repeated.py).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import traceback
import warnings
from collections import defaultdict, deque
from types import FrameType
from typing import Any, Callable, NoReturn
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from ..log.event import MAIN, Event, Value, each
from ..log.messages import Again, Called, Completed, Issued, Message, Misused, NotFinite, Resumed, Waiting
from . import kernel, steps, streams, threads, torch_private
from .callers import learners_call
from .idle import Idle
from .operators import SAME_CALL, Reading, arguments, read
from .repeated import MAX_PATTERNS, Pattern, codes_of, place_of, tensors_of
from .tensors import capture, is_dense, outline
from .traced import Held, Part, TracedWork, in_their_own_words
from .watch import Guard, Unwatched, Watch

MAX_OPEN = 1024  # calls that nobody has waited for; more, and the oldest that are complete are written down
KEPT_WORKS = 4  # of those waited for, see Tracer._kept
ASK_SECONDS = 0.0002  # between two looks at a device that is waited for
CAPTURE_SECONDS = 10.0  # after a call that went into a graph, in which more may follow
_CPU = torch.device("cpu")
NOT_READ = (
    "tensors on a device are recorded by shape and dtype alone: to read their values would make each call wait for its "
    "stream, and the program a different one"
)
SHORT_SECONDS = 30 * 60  # torch's own time limit of a group; one below it was set by the program
HANDLED_CHARACTERS = 300
CAUGHT_SECONDS = 60  # one below this, of a group beside the whole world's, was set to be caught
_SEND, _RECV = (inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))
_BETWEEN = Watch.settle.__code__.co_filename, __file__  # in the frames between a program and the kernel


def refuse(place: str) -> NoReturn:
    """Raise what is wrong with a rank that is another one in a default group of the program's own."""
    raise RuntimeError(
        f"run() records the calls of the world that it starts, and here an init_process_group of your own made this rank {place}. "
        "Try run(..., record=False)."
    )


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
        wait: bool = False,  # True waits for calls of a device, as gloo does, so that their tensors can be read
        nan: bool = False,  # True looks for a NaN or an infinity in what a call passes in
        astray: Callable[[str], None] = refuse,  # is told which rank this process is in a world that is another
    ) -> None:
        self.emit = emit
        self._rank, self._began, self._patient, self._waits, self._nan = rank, began, patient, wait, nan
        self._astray = astray
        self._capture = functools.partial(capture, whole=whole) if values else outline
        self._warns = values and not wait and rank == 0  # once
        self._count = 0
        # Calls that a stream has, by index in the order of their calls: whether each is through.
        self._left: dict[int, Callable[[], bool]] = {}
        # By index, of calls that a device has: whether their numbers are finite.
        self._unread: dict[int, torch.Tensor] = {}
        # Where the last call or wait went into a graph, by which this is asked: then no end may be asked for.
        self._capturing: streams.Streams | None = None
        self._captured_at = 0.0
        self._batches: dict[tuple[int, str], list[Part]] = {}  # (thread, group name) -> calls of its batch
        # By group, as long as it lives: after destroy_process_group, another may have its name.
        # Its ranks, the name of its backend by kind of device, and whether its messages give up early.
        self._members: WeakKeyDictionary[ProcessGroup, tuple[int, ...]] = WeakKeyDictionary()
        self._backends: WeakKeyDictionary[ProcessGroup, dict[str, str | None]] = WeakKeyDictionary()
        self._short: WeakKeyDictionary[ProcessGroup, bool] = WeakKeyDictionary()
        # By group name. In a first call, NCCL may wait for all ranks: calls of other groups must not wait for that.
        self._order: dict[str, threading.RLock] = defaultdict(threading.RLock)
        # A Work that C++ holds alone still needs its Python half: all until they are done...
        self._open: dict[int, TracedWork] = {}
        # ... and then a little longer. DistributedDataParallel waits for a Work, and next asks for its
        # future. Not for ever: each holds its tensors.
        self._kept: deque[TracedWork] = deque(maxlen=KEPT_WORKS)
        # Messages of gloo, by index.  One dies with its Work, and so is lost if the program lets go of that too early: held
        # here, it would arrive, and the program be another.
        self._held: dict[int, Held] = {}
        self.let_go: deque[Held] = deque()  # those whose Work is gone, which is to be told
        self._lock = threading.RLock()
        self._repeats = not (values or nan or wait)  # else each call's tensors are read
        self._patterns: dict[tuple, Pattern] = {}
        self._pass = -1  # the backward pass whose end is told of, see asked()
        self._steps = steps.Steps()
        self.watch = Watch(self._touched) if watch and torch_private.WATCHING else Unwatched()
        self.idle = Idle(self._blocked, lambda: emit(Resumed()))

    @property
    def calls(self) -> int:
        """How many were made."""
        return self._count

    def __enter__(self) -> Tracer:
        torch_private.RECORDING.require()
        kernel.install()
        kernel.recorder = self._called
        torch_private.set_coalescing(*self._batching())
        repeated = torch_private.REPEATED if self._repeats else torch_private.MESSAGES
        torch_private.set_repeated({name: self._in_place_of(name, *torch_private.REPEATED[name]) for name in repeated})
        self.watch.start()
        self._steps.start()
        torch_private.set_run_backward(in_their_own_words(self.watch.run_backward))
        self._followed = threads.followed(self.emit)
        self._followed.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._followed.__exit__(None, None, None)
        self._steps.stop()
        torch_private.set_run_backward(torch_private.run_backward)
        self.watch.stop()
        torch_private.set_coalescing()
        torch_private.set_repeated()
        kernel.recorder = None

    def finish(self) -> None:
        """Closes the events nobody waited for, with what stands in their tensors now."""
        if self._capturing and not self._capturing.capturing():
            self._capturing = None
        self.ask()
        held = filter(None, [held() for held in list(self._held.values())])
        for traced in [*self._open.values(), *held]:
            self.done(traced, waited=False, complete=traced.complete)

    # --- a call -------------------------------------------------------------------------

    def _called(self, op, name: str, keys, args: tuple, kwargs: dict):
        """Tell of the call of an operator, pass it on, and return what it returns, with a Work of our own."""
        given = arguments(op, args, kwargs)
        group = torch_private.process_group(given["process_group"])
        ranks = self._members.get(group) or self._members_of(group)
        if ranks is None:
            return kernel.passed_on(op, keys, args, kwargs)
        call = read(name, given, ranks, self._rank)
        if any([t.is_meta for t in call.all_in]):
            return kernel.passed_on(op, keys, args, kwargs)  # for such tensors torch only goes through the motions
        event, caller = call.event, _python_caller()
        barrier = given.get("tensor")  # of one alone, to say on which device
        tensors = call.all_in or call.all_out or ([] if barrier is None else [barrier])
        device = tensors[0].device if tensors else None
        of_device = device and streams.of(device)
        event.group_name, event.backend = group.group_name, self._backend(group, device)
        event.captured = bool(of_device) and self._captures(of_device)
        event.line, entry, frame = learners_call(threads.here.given_at)
        event.handling = _handled()
        event.within = None if SAME_CALL.get(entry, entry) == event.op else entry
        if event.is_message:
            event.async_op = not _at_once(caller)
        if name == "monitored_barrier_":
            return self._blocks(event, functools.partial(kernel.passed_on, op, keys, args, kwargs))
        if self._left:
            self._ask_oldest()
        with self._order[group.group_name]:  # its calls are numbered in the order in which the backend gets them
            self._tell(event, call.inputs, of_device)
            if event.is_message and event.backend == "gloo" and all([is_dense(t) for t in call.all_in]):
                out = work = _message(name, group, given)
            else:
                waits = of_device and not event.async_op and (self._waits or barrier is not None)
                out = (
                    self._waited_in(event, op, keys, args, kwargs)
                    if waits
                    else kernel.passed_on(op, keys, args, kwargs)
                )
                work = torch_private.work(out[-1] if isinstance(out, (tuple, list)) else out)
            part = Part(event.index, call.outputs)
            if work is None:
                batch = self._batches.get((threading.get_ident(), group.group_name))
                if batch is not None:  # NCCL starts them, and they are waited for, as one
                    batch.append(part)
                    return out
            else:
                by_operator = caller is not None and caller.f_code.co_filename == torch_private.OPERATORS_FILE
                by_torch = by_operator or event.within is not None
                traced = self._wrapped(work, part, device, of_device, group, by_torch, event.is_message)
                traced.captured, traced.event = event.captured, event
                if barrier is not None:  # in which the rank itself waits, and not a stream
                    traced.gives_up = self._has_short_limit(group)
                if event.op == "recv" and event.src is None:
                    traced.any_source = event.group
        if (
            work is None
        ):  # a synchronous call, which the stream has; or part of a batch that C++ makes, not all there yet
            if barrier is not None:  # which has waited for the device
                self.emit(Completed(event.index, None, self.now(), True, None))
                return out
            whole = not event.async_op and not event.is_message
            self._leave([part], event.captured, device, of_device if whole else None)
            return out
        # A functional collective (an operator called by torch.ops) leaves its tensors to wait_tensor.
        if event.async_op and not by_operator and self.watch.due(event.op, frame):
            self.watch.add(self._guard(call, caller))
        else:
            self.watch.settle()
        if len(self._open) > MAX_OPEN:
            self._write_down()
        return (*out[:-1], traced.boxed()) if isinstance(out, (tuple, list)) else traced.boxed()

    def _in_place_of(self, name: str, own: Callable, of_backend: str) -> Callable:
        """What the program calls in place of a method of ProcessGroup.

        own: torch's, which gets what is to be read.  of_backend: the name of the backend's method that carries it out.
        """

        @torch_private.never_compiled
        def called(*args, **kwargs):
            place = place_of(name, args, self.watch) if self._repeats and not kwargs else None
            if place is None:
                work = own(*args, **kwargs)
            elif (pattern := self._patterns.get(place)) is not None and pattern.is_of(args[0]):
                work = self._again(pattern, *args)
            else:
                work = own(*args)
                self._learn(place, of_backend, args, work)
            if is_message:
                self._hold_weakly(work)
            return work

        is_message = name in torch_private.MESSAGES
        return called

    def _hold_weakly(self, work: Work) -> None:
        """Hold a message of gloo, whose Work Python has now, for no longer than the program does."""
        if type(work) is TracedWork and (work.event is None or work.event.backend == "gloo"):
            with self._lock:
                if self._open.pop(work.index, None):
                    self._held[work.index] = Held(work, self.let_go.append)

    def tell_let_go(self) -> None:
        """Tell of messages whose Work the program has let go of before they were complete."""
        while self.let_go:
            held = self.let_go.popleft()
            if self._held.pop(held.index, None):
                self.watch.remove(held.index)
                with torch_private.NoModes():
                    after = held.after if held.after is not None else self._read(held.outputs, held.streams, False)
                    self.emit(Completed(held.index, after, None, False, None))

    def _members_of(self, group: ProcessGroup) -> tuple[int, ...] | None:
        """The ranks of a group; None if they aren't the job's: nobody knows torchft's, made past torch.distributed."""
        try:
            ranks = tuple(dist.get_process_group_ranks(group))
        except KeyError:
            return None
        if dist.is_initialized() and dist.get_rank() != self._rank:
            self._astray(f"{dist.get_rank()} of {dist.get_world_size()}")
            return None
        self._members[group] = ranks
        return ranks

    def _learn(self, place: tuple, method: str, args: tuple, work: Work) -> None:
        """Remember a call that was read, for those that are like it."""
        if type(work) is TracedWork and work.event is not None and work.event.backend == "gloo":
            if len(self._patterns) == MAX_PATTERNS:
                self._patterns.clear()
            group, (output,) = args[0], tensors_of(args)[1]
            codes, order = codes_of(place, sys._getframe(2)), self._order[group.group_name]
            fixed = work.event, outline(output), order, work.gives_up, work.by_torch
            self._patterns[place] = Pattern(method, *fixed, group, codes)

    def _again(self, pattern: Pattern, group: ProcessGroup, *args) -> Work:
        """Tell of a call that is like an earlier one, hand it to its backend, and return a Work of our own."""
        if self._left:
            self._ask_oldest()
        if self.let_go:
            self.tell_let_go()
        event = pattern.event
        with pattern.order:
            with self._lock:
                index, self._count = self._count, self._count + 1
                self.emit(Again(event, index, self.now(), self._steps.count))
            # gloo's threads take this one's modes along, and the watch would find what they do to be the program's.
            with torch_private.NoModes():
                work = getattr(torch_private.backend(group, _CPU), pattern.method)(*args)
            traced = TracedWork(self, work, [Part(index, None)])
            traced.after, traced.gives_up, traced.by_torch = pattern.after, pattern.gives_up, pattern.by_torch
            self._open[index] = traced
        pattern.count += 1
        if event.async_op and self.watch.is_due(pattern.count):
            by_hook = torch_private.backward_task() != -1
            inputs, outputs = tensors_of((group, *args))
            self.watch.add(Guard(index, inputs, [] if event.op == "send" else outputs, by_hook))
        else:
            self.watch.settle()
        if len(self._open) > MAX_OPEN:
            self._write_down()
        return traced

    def _waited_in(self, event: Event, op, keys, args: tuple, kwargs: dict):
        """What the operator itself returns. A group's first call may wait in it, until all have made it."""
        self.emit(Waiting(event.index, self.now(), False, threads.here.work))
        try:
            return kernel.passed_on(op, keys, args, kwargs)
        except BaseException:
            self.emit(Resumed())
            raise

    def _blocks(self, event: Event, pass_on: Callable) -> None:
        """A monitored_barrier, the one operator that waits by itself."""
        self._tell(event, None, None)
        self.emit(Waiting(event.index, self.now(), True, threads.here.work))
        pass_on()
        self.emit(Completed(event.index, None, self.now(), True, None))

    def _wrapped(
        self, work: Work, part: Part, device, of_device, group: ProcessGroup, by_torch: bool, is_message: bool = False
    ) -> TracedWork:
        """The Work that tells of its end in place of the backend's own, among those under way."""
        traced = TracedWork(self, work, [part])
        traced.device, traced.streams, traced.by_torch = device, of_device, by_torch
        on_device = bool(of_device) and not self._waits
        traced.gives_up = on_device or self._has_short_limit(group, is_message)
        self._open[part.index] = traced
        return traced

    def _batching(self) -> tuple[Callable, Callable]:
        """What begins and ends a batch in place of torch's own: what is called between is waited for as one."""

        def start(group: ProcessGroup, device_type: torch.device) -> None:
            torch_private.start_coalescing(group, device_type)
            self._batches[threading.get_ident(), group.group_name] = []

        def end(group: ProcessGroup, device_type: torch.device) -> Work | None:
            try:
                work = torch_private.end_coalescing(group, device_type)
            finally:
                parts = self._batches.pop((threading.get_ident(), group.group_name), [])
            if not parts:
                return work
            of_device = streams.of(device_type)
            if work is None:
                self._leave(parts, bool(self._capturing), device_type, of_device)
                return None
            traced = self._wrapped(work, parts[0], device_type, of_device, group, True)
            traced.parts, traced.captured = parts, bool(self._capturing)
            return traced

        return start, end

    def _backend(self, group: ProcessGroup, device: torch.device | None) -> str | None:
        if (names := self._backends.get(group)) is None:
            names = self._backends[group] = {}
        kind = "" if device is None else device.type
        if kind not in names:
            names[kind] = torch_private.backend_name(group, device or _CPU)
        return names[kind]

    def _guard(self, call: Reading, caller: FrameType | None) -> Guard:
        """What must not happen to the tensors of a call under way."""
        event = call.event
        only_sent = event.op == "send" or event.op == "broadcast" and self._rank == event.src
        starts_pass = caller is not None and caller.f_code is torch_private.run_backward.__code__
        by_hook = torch_private.backward_task() != -1 and not starts_pass
        return Guard(event.index, call.all_in, [] if only_sent else call.all_out, by_hook)

    def _tell(self, event: Event, inputs: Value, of_device: streams.Streams | None) -> None:
        if self.let_go:
            self.tell_let_go()
        with torch_private.NoModes():  # the recorder's own use of tensors is no use by the program
            event.before = self._read(inputs, of_device, event.captured, event.is_scratch)
            only_gets = event.op == "broadcast" and event.src != self._rank  # its tensor may never have been filled
            looks = self._nan and not only_gets and not event.is_scratch and not event.captured
            finite = _finite(inputs, bool(of_device) and not self._waits) if looks else None
            with self._lock:
                event.index, self._count = self._count, self._count + 1
                event.step = self._steps.count
                event.start = self.now()
                self.emit(Called(event))
                if finite is not None and of_device and not self._waits:
                    self._unread[event.index] = finite  # until the call is through, and so this is
                elif finite is not None and not finite:
                    self.emit(NotFinite(event.index))

    def _read(self, value: Value, of_device: streams.Streams | None, captured: bool, scratch: bool = False) -> Value:
        """A call's tensors as they are told: those of a device are read only where it is waited for anyway."""
        if of_device and (captured or not self._waits):
            if self._warns and not captured and value is not None:
                self._warns = False
                warnings.warn_explicit(NOT_READ, UserWarning, "collectives", 0)
            return outline(value)
        return self._capture(value, scratch=scratch)

    def _has_short_limit(self, group: ProcessGroup, is_message: bool = False) -> bool:
        """Whether the program gave this group a time limit of its own: its waits end by themselves.

        It may set another at any time, which gloo's collectives heed; messages keep to the group's first."""
        limit = torch_private.time_limit(group)
        short = limit is not None and limit < (CAUGHT_SECONDS if self._patient else SHORT_SECONDS)
        short = short and not (self._patient and group.group_name == dist.group.WORLD.group_name)
        first = self._short.setdefault(group, short)
        return first if is_message else short

    def _write_down(self) -> None:
        """Tell the end of calls that are complete and that nobody waits for, and let go of their tensors."""
        for traced in list(self._open.values())[: MAX_OPEN // 2]:
            if traced.complete:
                self.done(traced, waited=False)

    # --- left to a stream -----------------------------------------------------------------

    def waited(self, traced: TracedWork) -> None:
        """Tell what it means that a wait has returned: the call's end, or that a stream waits for it."""
        capturing = bool(traced.streams) and self._captures(traced.streams)
        if not capturing and not traced.captured and (traced.streams is None or traced.inner.is_completed()):
            self.done(traced)
        elif not traced.told:  # a mark that is set in a graph could not be asked
            self.left(traced, traced.inner.is_completed if capturing else None)

    def left(self, traced: TracedWork, is_through: Callable[[], bool] | None = None) -> None:
        """Tell once that the rank is through with a call, which its stream has."""
        with self._lock:
            if traced.told:
                return
            traced.told = traced.waited = True
            self._open.pop(traced.index, None)
            if traced.by_torch:
                self._kept.append(traced)
        for part in traced.parts:
            self.watch.remove(part.index)
        self._leave(traced.parts, traced.captured, traced.device, traced.streams, is_through)
        traced.parts = [Part(part.index, None) for part in traced.parts]

    def _leave(
        self,
        parts: list[Part],
        captured: bool,
        device: torch.device | None,
        of_device: streams.Streams | None,
        is_through: Callable[[], bool] | None = None,
    ) -> None:
        """Tell that calls are in a stream, and remember how to ask for their end.

        is_through: asks for it. By default what is in the device's stream now, after them, must have been carried out.
        """
        if of_device and not captured and is_through is None:
            is_through = of_device.mark(device).query
            if self._waits:
                return self._wait_for(parts, is_through)
        for part in parts:
            self.emit(Issued(part.index, outline(part.outputs), self.now()))
            if is_through and not captured:
                self._left[part.index] = is_through

    def _wait_for(self, parts: list[Part], is_through: Callable[[], bool]) -> None:
        for part in parts:
            self.emit(Waiting(part.index, self.now(), False, threads.here.work))
        while not is_through():
            time.sleep(ASK_SECONDS)
        for part in parts:
            with torch_private.NoModes():
                self.emit(Completed(part.index, self._capture(part.outputs), self.now(), True, None))

    def _ask_oldest(self) -> None:
        """Tell the end of calls that are through by now, up to the oldest that is not. Waits for nothing."""
        with self._lock:
            while self._left and not self._capturing:
                index, is_through = next(iter(self._left.items()))
                if not _seen(is_through):
                    break
                self._through(index)

    def ask(self) -> None:
        """Tell the end of every call that is complete, as far as it can be seen. Waits for nothing."""
        self.tell_let_go()
        if self._capturing and self.now() - self._captured_at < CAPTURE_SECONDS:
            return
        with self._lock:
            for index, is_through in list(self._left.items()):
                if _seen(is_through):
                    self._through(index)
            for traced in list(self._open.values()):
                if traced.complete:
                    self.done(traced, waited=False)

    def _captures(self, of_device: streams.Streams) -> bool:
        """Whether this thread fills a graph now: then nothing may be asked, and no mark be set."""
        self._capturing = of_device if of_device.capturing() else None
        if self._capturing:
            self._captured_at = self.now()
        return self._capturing is not None

    def _through(self, index: int) -> None:
        if self._left.pop(index, None):
            self.emit(Completed(index, None, self.now(), True, None))
            if (finite := self._unread.pop(index, None)) is not None and not finite:
                self.emit(NotFinite(index))

    # --- its end ------------------------------------------------------------------------

    def done(self, traced: TracedWork, waited: bool = True, complete: bool = True) -> None:
        """Tell once that a call is complete, or was left so; and again when it is waited for after all."""
        with self._lock:
            if traced.told and (traced.waited or not waited):  # all of this has been told
                if complete:  # but for the end of what was left to a stream
                    for part in traced.parts:
                        self._through(part.index)
                return
            traced.told, traced.waited = True, waited
            self._open.pop(traced.index, None)
            self._held.pop(traced.index, None)
            if (
                traced.by_torch
            ):  # one that the program made is its own to keep: kept here, it would keep a destroyed group connected
                self._kept.append(traced)
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
        if waited:  # else somebody may still wait
            traced.parts = [Part(part.index, None) for part in traced.parts]

    def _touched(self, index: int, how: str) -> None:
        self.emit(Misused(index, how, learners_call(threads.here.given_at)[0]))

    def asked(self) -> None:
        """Somebody has the future of a call. In a backward pass that is DistributedDataParallel, which waits in C++ for
        all its futures once the graph has been worked through: after what is called here."""
        self.idle.start()
        if (task := torch_private.backward_task()) not in (-1, self._pass):
            self._pass = task
            torch_private.after_graph(self._waits_in_pass)

    def _waits_in_pass(self) -> None:
        """Tell since when the main thread has waited, without saying that nothing else can happen before."""
        since = self.now()
        for traced in list(self._open.values()):
            if traced.asked and traced.since is None:
                traced.since = since
                self.emit(Waiting(traced.index, since, True, MAIN))

    def _blocked(self, since: float) -> None:
        """The main thread has stood still since then, in C++: it waits for a call whose future was asked for."""
        asked = next((t for t in list(self._open.values()) if t.asked), None)
        if asked is not None:
            known = since - self._began if asked.since is None else asked.since
            self.emit(Waiting(asked.index, known, False, MAIN))

    def now(self) -> float:
        return time.perf_counter() - self._began


def _seen(is_through: Callable[[], bool]) -> bool:
    """Whether a call is through. Of a device that has failed, the program's own next call tells."""
    try:
        return is_through()
    except RuntimeError:
        return False


def _handled() -> str | None:
    """The exception that the program is handling, in a few words: one that a call in a `finally` would hide."""
    error = sys.exc_info()[1]
    if error is None:
        return None
    return traceback.format_exception_only(error)[0].partition("\n")[0][:HANDLED_CHARACTERS]


def _finite(inputs: Value, later: bool) -> torch.Tensor | bool | None:
    """Whether no NaN and no infinity is among the numbers; None where nothing is a number that could be one.

    later: a device carries this out when it comes to it, and nobody waits: what is returned can be read after that.
    """
    numbers = [t for t in each(inputs) if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())]
    if not numbers:
        return None
    if not later:
        return all(map(_is_finite, numbers))
    found = torch.stack([torch.isfinite(t).all() for t in numbers]).all()
    return torch.empty((), dtype=torch.bool, pin_memory=found.is_cuda).copy_(found, non_blocking=True)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether each number is. A sum is finite only then, and takes a tenth of the time; else it may have run over."""
    narrow = tensor.itemsize < 4  # sums of such run over soon, and some are of types that know no more than casts
    if bool(torch.isfinite(tensor.sum(dtype=torch.float32 if narrow else None))):
        return True
    return bool(torch.isfinite(tensor.float() if narrow else tensor).all())


def _python_caller() -> FrameType | None:
    """The frame that called into C++, where C++ called the recorder's kernel; None in a thread of C++ alone.

    Such is each in which autograd works through what is on a GPU, and so each that makes DDP's calls there."""
    frame = sys._getframe(2).f_back  # that of kernel._kernel; before it this function's, and Tracer._called's
    while frame is not None and frame.f_code.co_filename in _BETWEEN:  # the mode, or what stands for a method of torch
        frame = frame.f_back
    return frame


def _message(name: str, group: ProcessGroup, given: dict[str, Any]) -> Work | None:
    """Send or receive as the operator does for dense tensors: it gives its arguments to the backend as they are.

    To call the operator itself takes four times as long, and a ring or a pipeline makes thousands of messages.
    Not so for NCCL, which in a batch gives no Work: only the operator can return that.
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
