"""The recorder inside a rank: a kernel of its own in front of every c10d operator.

All of torch.distributed ends in operators of the c10d namespace, and the dispatcher sends each
call of one through its BackendSelect kernel, from every thread, from C++ (DistributedDataParallel,
fully_shard, the functional collectives) and from inside DTensor's operators.  torch has no such
kernel for them; the recorder registers one, which tells of the call and passes it on to its
backend.  It hands on a Work of its own, which notes when it is waited for and otherwise passes
everything to the original.  So nothing that was asynchronous becomes synchronous.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import types
from collections import deque
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from ..record.event import MAIN, Event
from . import threads, torch_private
from .callers import learners_call
from .idle import Idle
from .operators import OF_ONE, OPS, REDUCE_OPS, SAME_CALL, arguments, unwrap
from .protocol import Called, Completed, Message, Misused, Resumed, Waiting, WorkBegan, WorkEnded
from .tensors import aliased, capture, each, has_gaps, is_dense, outline
from .torch_private import backward_task, never_compiled
from .watch import Guard, Unwatched, Watch

MAX_OPEN = 1024  # calls that nobody has waited for; more, and the oldest that are complete are written down
KEPT_WORKS = 4  # of those waited for, see Tracer._kept
SHORT_SECONDS = 30 * 60  # torch's own time limit of a group; one below it was set by the program
BELOW = torch_private.keys_after(torch_private.DispatchKey.BackendSelect)


_library: torch.library.Library | None = None  # holds the kernels
_entered: Tracer | None = None  # the tracer that they tell of calls


def install() -> None:
    """Register the kernels, which pass calls on as long as no tracer is entered.

    The server does so, for all ranks: in a rank, half a millisecond would go into copies of the dispatcher's pages.
    """
    global _library
    if _library is None:
        _library = torch.library.Library("c10d", "IMPL")
        for name in OPS:
            op = getattr(torch.ops.c10d, name).default
            _library.impl(name, functools.partial(_kernel, op, name), "BackendSelect", with_keyset=True)


def uninstall() -> None:
    """Take the kernels away: what runs from here on is torch alone."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None


@never_compiled
def _kernel(op, name: str, keys, *args, **kwargs):
    if _entered is None:
        return op.redispatch(keys & BELOW, *args, **kwargs)
    return _entered.called(op, name, keys, *args, **kwargs)


class Tracer:
    """Records every torch.distributed call made while it is entered.

    rank: this process's global rank.
    emit: called with a protocol message whenever something happens, so that whoever listens knows what
        this rank does even when it hangs or dies.  The tensors are the program's own: they must be
        written down before it returns.
    began: time.perf_counter() when the run began; times are seconds since then.
    whole: keep tensors of more than LARGE elements whole instead of summarising them.
    values: False keeps shape and dtype of tensors alone, and reads none of their memory.
    watch: False does not notice that a tensor is used before its call was waited for.
    patient: True takes a wait for endless though its group has a time limit of its own.
    """

    def __init__(
        self,
        rank: int,
        emit: Callable[[Message], None],
        began: float,
        whole: bool = False,
        values: bool = True,
        watch: bool = True,
        patient: bool = False,
    ) -> None:
        self._rank, self._emit, self._began, self._patient = rank, emit, began, patient
        self._capture = functools.partial(capture, whole=whole) if values else outline
        self._count = 0
        # A Work that C++ holds alone still needs its Python half: all until they are done...
        self._open: dict[int, TracedWork] = {}
        # ... and then a little longer. DistributedDataParallel waits for a Work, and next asks for its
        # future. Not for ever: each holds its tensors.
        self._kept: deque[TracedWork] = deque(maxlen=KEPT_WORKS)
        self._short: dict[str, bool] = {}  # group name -> whether its calls give up early
        self._lock = threading.RLock()
        self._watch = Watch(self._touched) if watch else Unwatched()
        self._idle = Idle(self._blocked, lambda: emit(Resumed()))

    def __enter__(self) -> Tracer:
        global _entered
        install()
        _entered = self
        self._watch.start()
        self._followed = threads.followed(
            lambda work: self._emit(WorkBegan(work, None)), lambda work: self._emit(WorkEnded(work))
        )
        self._followed.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        global _entered
        self._followed.__exit__(None, None, None)
        self._watch.stop()
        _entered = None

    def finish(self) -> None:
        """Closes the events nobody waited for, with what stands in their tensors now."""
        for traced in list(self._open.values()):
            self._done(traced, waited=False, complete=traced.completed())

    # --- calls --------------------------------------------------------------------------

    def called(self, op, name: str, keys, *args, **kwargs):
        """Record the call of an operator, pass it on, and wrap the Work that comes back."""
        given = arguments(op, args, kwargs)
        kind, source, target = OPS[name]
        if name in OF_ONE and len(given[source]) == 1:
            kind = OF_ONE[name]
        inputs, outputs = unwrap(kind, given.get(source)), unwrap(kind, given.get(target))
        if any([t.is_meta for t in each(inputs)]):
            return op.redispatch(keys & BELOW, *args, **kwargs)  # for such tensors torch only goes through the motions
        caller = _python_caller()
        line, entry, frame = learners_call(threads.given_at())
        group = ProcessGroup.unbox(given["process_group"])
        ranks = tuple(dist.get_process_group_ranks(group))
        within = None if SAME_CALL.get(entry, entry) == kind else entry
        event = Event(self._rank, 0, kind, ranks, line=line, within=within, group_name=group.group_name)
        event.async_op = bool(given.get("async_op", False))
        if "root_rank" in given:
            root = ranks[given["root_rank"]] if given["root_rank"] < len(ranks) else given["root_rank"]
            event.src, event.dst = (root, None) if kind in ("broadcast", "scatter") else (None, root)
            inputs = inputs if self._rank == root or kind != "scatter" else None
            outputs = outputs if self._rank == root or kind != "gather" else None
        if "reduce_op" in given:
            event.reduce_op = REDUCE_OPS.get(given["reduce_op"].op(), "?")
        if kind == "all_to_all_single":
            event.splits = (tuple(given["input_split_sizes"]), tuple(given["output_split_sizes"]))
        if event.is_message:
            event.tag = given["tag"]
            event.async_op = not _at_once(caller)
            if kind == "send":
                event.dst = ranks[given["dst"]]
            elif name == "recv_":
                event.src = ranks[given["src"]]
        all_in, all_out = each(inputs), each(outputs)
        _describe(event, all_in or all_out)
        event.non_dense = ("in",) * any(map(has_gaps, all_in)) + ("out",) * any(map(has_gaps, all_out))
        event.misuse = "aliased" if aliased(all_out) else None

        if name == "monitored_barrier_":  # the one operator that blocks by itself
            with self._lock:
                self._tell(event, inputs)
            self._emit(Waiting(event.index, self._now(), True, threads.current()))
            op.redispatch(keys & BELOW, *args, **kwargs)
            self._emit(Completed(event.index, None, self._now(), True, None))
            return None
        with self._lock:  # calls of several threads are numbered in the order in which the backend gets them
            self._tell(event, inputs)
            if event.is_message and all([is_dense(t) for t in all_in]):
                work = out = _message(name, group, given)
            else:
                out = op.redispatch(keys & BELOW, *args, **kwargs)
                work = Work.unbox(out[-1] if isinstance(out, (tuple, list)) else out)
            if work is None:  # part of a batch, which NCCL starts, and is waited for, as one
                self._emit(Completed(event.index, None, self._now(), False, None))
                return out
            traced = TracedWork(self, work, event.index, outputs)
            traced.any_source = ranks if name == "recv_any_source_" else None
            traced.gives_up = not self._patient and self._gives_up(group) or any([t.is_cuda for t in all_in or all_out])
            self._open[event.index] = traced
        by_operator = caller.f_code.co_filename == _OPS_FILE
        traced.by_torch = event.within is not None or by_operator
        # A functional collective (an operator called by torch.ops) leaves its tensors to wait_tensor.
        if event.async_op and not by_operator and self._watch.due(kind, frame):
            only_sent = kind == "send" or kind == "broadcast" and self._rank == event.src
            by_hook = backward_task() != -1 and caller.f_code is not torch_private.run_backward.__code__
            self._watch.add(Guard(event.index, all_in, [] if only_sent else all_out, by_hook))
        else:
            self._watch.settle()
        if len(self._open) > MAX_OPEN:
            self._write_down()
        return (*out[:-1], traced.boxed()) if isinstance(out, (tuple, list)) else traced.boxed()

    def _tell(self, event: Event, inputs) -> None:
        event.index, self._count = self._count, self._count + 1
        event.start = self._now()
        with torch_private.NoModes():  # the recorder's own use of tensors is no use by the program
            event.before = self._capture(inputs, scratch=event.is_scratch)
            self._emit(Called(event))

    def _gives_up(self, group: ProcessGroup) -> bool:
        """Whether the program gave this group a time limit of its own: its waits end by themselves."""
        if group.group_name not in self._short:
            limit = torch_private.time_limit(group)
            self._short[group.group_name] = limit is not None and limit < SHORT_SECONDS
        return self._short[group.group_name]

    def _write_down(self) -> None:
        """Keeps neither works nor tensors of calls that are complete, and that nobody waits for."""
        for traced in list(self._open.values())[: MAX_OPEN // 2]:
            if traced.completed():
                self._done(traced, waited=False)

    # --- what becomes of them -----------------------------------------------------------

    def _done(self, traced: TracedWork, waited: bool = True, complete: bool = True) -> None:
        with self._lock:
            if traced.told and (traced.waited or not waited):
                return
            traced.told, traced.waited = True, waited
            self._open.pop(traced.index, None)
            if traced.by_torch:  # the program's own may be what keeps a destroyed group connected
                self._kept.append(traced)
        self._watch.remove(traced.index)
        src = traced.source() if complete else None
        with torch_private.NoModes():
            after = self._capture(traced.ready)
            self._emit(Completed(traced.index, after, self._now() if complete else None, waited, src))
        if waited:  # else somebody may still wait
            traced.ready = None

    def _touched(self, index: int, how: str) -> None:
        self._emit(Misused(index, how, learners_call(threads.given_at())[0]))

    def _blocked(self, since: float) -> None:
        """The main thread has stood still since then, in C++: it waits for a call whose future was asked for."""
        asked = next((t for t in list(self._open.values()) if t.asked), None)
        if asked is not None:
            self._emit(Waiting(asked.index, since - self._began, False, MAIN))

    def _now(self) -> float:
        return time.perf_counter() - self._began


class TracedWork(Work):
    """A torch.distributed Work that tells the recorder when it is waited for."""

    def __init__(self, tracer: Tracer, inner: Work, index: int, ready) -> None:
        super().__init__()
        self._tracer, self._inner = tracer, inner
        self.index, self.ready = index, ready
        self.any_source: tuple[int, ...] | None = None  # the group's ranks, for a recv from anyone
        self.gives_up = False  # whether a wait without a limit has one, or only a device's stream waits
        self.asked = False  # whether somebody has its future
        self.by_torch = False  # whether torch made the call: its C++ may then hold the Work alone
        self.told = self.waited = False  # whether its end has been told of, and with it a wait

    def source(self) -> int | None:
        """For a recv from anyone: the global rank it came from."""
        return self.any_source[torch_private.source_rank(self._inner)] if self.any_source else None

    @never_compiled
    def wait(self, *timeout) -> bool:
        tracer = self._tracer
        new = not self.told
        if new:
            # A wait with a limit of its own ends by itself, so nobody may call it stuck.
            limited = self.gives_up or bool(timeout) and timeout[0].total_seconds() > 0
            tracer._emit(Waiting(self.index, tracer._now(), limited, threads.current()))
            tracer._watch.waits(self.index, True)
        try:
            result = self._inner.wait(*timeout)
        finally:  # a wait with a limit ends in an exception, and the program may go on
            tracer._watch.waits(self.index, False)
        tracer._done(self)
        return result

    def completed(self) -> bool:
        return self._inner.is_completed()

    @never_compiled
    def is_completed(self) -> bool:
        done = self.completed()
        if done:  # as good as a wait
            self._tracer._done(self)
        return done

    @never_compiled
    def get_future(self):
        tracer, future = self._tracer, self._inner.get_future()
        if self.told or future.done():
            return future.then(self._note)
        # What its callbacks do, a thread of C++ does, once the call is complete.
        work = ("future", self.index, id(future))
        tracer._emit(WorkBegan(work, self.index))
        told = future.then(self._note)
        future.add_done_callback(lambda _: tracer._emit(WorkEnded(work)))  # after all that hangs on `told`
        self.asked = True
        tracer._idle.start()
        return told

    @never_compiled
    def _note(self, done):
        self._tracer._done(self)
        return done.value()

    def is_success(self) -> bool:
        return self._inner.is_success()

    def exception(self):
        return self._inner.exception()

    def result(self):
        return self._inner.result()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def _source_rank(self) -> int:
        return torch_private.source_rank(self._inner)

    source_rank = _source_rank


def _python_caller() -> types.FrameType:
    """The frame that called into C++, where C++ called the recorder's kernel."""
    frame = sys._getframe(3)  # this function, Tracer.called, _kernel
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


def _at_once(frame: types.FrameType | None) -> bool:
    """Whether send() or recv() makes the call: both are made of isend() or irecv(), and wait."""
    for _ in range(3):  # isend, its decorator, send
        if frame is None or frame.f_code is _SEND or frame.f_code is _RECV:
            break
        frame = frame.f_back
    return frame is not None and (frame.f_code is _SEND or frame.f_code is _RECV)


_SEND, _RECV = (inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))
_WATCH_FILE = Watch.settle.__code__.co_filename
_OPS_FILE = torch_private.OpOverload.__call__.__code__.co_filename


def _describe(event: Event, tensors: list[torch.Tensor]) -> None:
    if tensors:
        first = tensors[0]
        event.dtype, event.shape = first.dtype, tuple(first.shape)
        strided = first.layout == torch.strided
        event.strides = first.stride() if strided and not first.is_contiguous() else None
        event.nbytes = sum([t.numel() * t.element_size() for t in tensors])
