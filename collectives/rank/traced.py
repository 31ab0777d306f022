"""A Work that tells the recorder when it is waited for, and passes everything else to the backend's own."""

import re
from datetime import timedelta
from functools import partial
from typing import Any, Callable, NamedTuple

import torch
from torch.distributed import Work

from ..log.event import Event, Value
from ..log.messages import Waiting, WorkBegan, WorkEnded
from . import threads, torch_private
from .idle import Idle
from .torch_private import HasSource, never_compiled

NO_LIMIT = timedelta(0)  # torch's timeout for a wait without one
# An error that has passed through TracedWork._note, as torch rewrites it for any Python callback of a future.
_MARKED = re.compile(
    r"Got the following error when running the callback: \w+: (.*?)\n\nAt:\n  \S*traced\.py\(\d+\): _note\n(?:  .*\n)*",
    re.S,
)


class Part(NamedTuple):
    """One call covered by a Work."""

    index: int  # of its event
    outputs: Value  # the tensors that the rank ends up with, once complete


def _passed_on(name: str) -> Callable:
    return lambda self: getattr(self.inner, name)()


class TracedWork(HasSource, Work):
    """parts: one, or the calls of a batch.  device: the call's tensors'.  streams: device.Streams, if one carries it out.
    by_torch: whether torch made the call: then its C++ may be the only holder of the Work."""

    event: Event | None = None  # its only call's, if others may repeat that
    after: Value = None  # its outputs, if it repeats an earlier call
    captured = False  # whether it went into a graph: then its end must not even be asked for
    any_source: tuple[int, ...] | None = None  # the group's ranks, for a recv from anyone
    gives_up = False  # whether a wait ends by itself: its group has a short timeout, or only a device's stream waits
    asked = False  # whether its future was taken
    since: float | None = None  # when the main thread began to wait for that future in C++, if known
    told = waited = False  # completion reported; reported as waited
    failed = succeeded = False  # whether a wait for it is known to raise its error; or has returned

    def __init__(
        self, tracer, inner: Work, parts: list[Part], device: torch.device | None = None, streams=None, by_torch=False
    ) -> None:
        super().__init__()
        self._tracer, self.inner, self.parts = tracer, inner, parts
        self.device, self.streams, self.by_torch = device, streams, by_torch

    def of_call(self, event: Event, gives_up: bool) -> None:
        """Learn about its only call."""
        self.event, self.captured, self.gives_up = event, event.captured, gives_up
        if event.op == "recv" and event.src is None:
            self.any_source = event.group

    @property
    def index(self) -> int:
        return self.parts[0].index

    def source_rank(self) -> int | None:
        return torch_private.source_rank(self.inner)

    @never_compiled
    def wait(self, timeout: timedelta | float = NO_LIMIT) -> bool:
        tracer = self._tracer
        if tracer.messages.released:
            tracer.messages.report_released()
        has_limit = timeout is not NO_LIMIT and timeout not in (NO_LIMIT, 0.0)  # torch accepts seconds too
        if not self.told:
            # A wait with its own timeout ends by itself, so it must not be called stuck.
            limited = self.gives_up or has_limit
            for part in self.parts:
                tracer.emit(Waiting(part.index, tracer.now(), limited, threads.here.work))
        guarded = not self.told and bool(tracer.watch.guards)
        if guarded:
            self._waits(True)
        try:
            result = self.inner.wait(timeout) if has_limit else self.inner.wait()
        except BaseException:
            self.failed = self.inner.is_completed()  # otherwise only the wait has ended, at its timeout
            if self.failed:  # kept, it would keep its group connected, and peers would wait
                tracer.open.pop(self.index, None)
                tracer.failed += [part.index for part in self.parts]
            raise
        finally:  # a wait with a timeout ends in an exception, and the program may continue
            if guarded:
                self._waits(False)
        self.succeeded = True
        if self.after is None:
            tracer.waited(self)
        else:
            tracer.done(self)
        return result

    def _waits(self, now: bool) -> None:
        for part in self.parts:
            self._tracer.watch.waits(part.index, now)

    @property
    def complete(self) -> bool:
        """Whether the call has ended without an error.

        is_completed() is also true if it failed: a collective's wait then raises. A second wait for a message hangs.
        """
        if self.captured or self.failed or not self.inner.is_completed():
            return False
        if not self.streams and not self.succeeded:  # a device's Work that fails ends the process
            try:
                self.inner.wait()
            except RuntimeError:
                self.failed = True
        return not self.failed

    @never_compiled
    def is_completed(self) -> bool:
        ended = self.inner.is_completed()
        if ended and self.complete:  # as good as a wait
            self._tracer.done(self)
        return ended

    @never_compiled
    def get_future(self):
        tracer, future = self._tracer, self.inner.get_future()
        if self.streams and future.done():  # at once: its value makes a stream wait
            tracer.device.left(self, self.inner.is_completed)
            return future
        if self.told or future.done():
            return future.then(self._note)
        # A thread of C++ runs its callbacks, once the call is complete.
        work = ("future", self.index, id(future))
        tracer.emit(WorkBegan(work, self.index))
        told = future.then(self._note)
        future.add_done_callback(lambda _: tracer.emit(WorkEnded(work)))  # after all callbacks of `told`
        self.asked = True
        tracer.idle = tracer.idle or Idle(tracer)
        tracer.idle.future_taken()
        return told

    @never_compiled
    def _note(self, future):
        value = future.value()  # or its error
        self._tracer.done(self)
        return value

    @never_compiled
    def synchronize(self) -> None:
        self.inner.synchronize()
        if self.streams:
            self._tracer.waited(self)

    @never_compiled
    def block_current_stream(self) -> None:
        self.inner.block_current_stream()
        self._tracer.waited(self)


for _name in ("is_success", "exception", "result", "get_future_result", "_get_op_type", "_get_duration"):
    setattr(TracedWork, _name, _passed_on(_name))
TracedWork.timeout = property(lambda self: self.inner.timeout)  # which torch has from 2.15 on


@partial(never_compiled, callees=False)
def in_their_own_words(run_backward: Callable, *args, **kwargs):
    """autograd's entry, with errors that read as if they had not passed through TracedWork._note."""
    try:
        return run_backward(*args, **kwargs)
    except RuntimeError as error:
        error.args = tuple(_MARKED.sub(r"\1", words) if isinstance(words, str) else words for words in error.args)
        raise


def work_of(out: Any) -> Work | None:
    """The backend's Work in the result of an operator, or of message()."""
    if isinstance(out, Work):
        return out
    return torch_private.work(out[-1] if isinstance(out, (tuple, list)) else out)
