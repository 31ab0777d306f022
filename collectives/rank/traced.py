"""A Work that tells the recorder when it is waited for, and otherwise passes everything to the backend's own."""

import re
from datetime import timedelta
from functools import partial
from typing import Callable, NamedTuple
from weakref import ref

import torch
from torch.distributed import Work

from ..log.event import Event, Value
from ..log.messages import Waiting, WorkBegan, WorkEnded
from . import threads
from .streams import Streams
from .torch_private import HasSource, never_compiled

NO_LIMIT = timedelta(0)  # what torch takes for a wait that may last
# What torch makes of an error that passes through TracedWork._note, as through any Python callback of a future.
_MARKED = re.compile(
    r"Got the following error when running the callback: \w+: (.*?)\n\nAt:\n  \S*traced\.py\(\d+\): _note\n(?:  .*\n)*",
    re.S,
)


class Part(NamedTuple):
    """A call that a Work is of."""

    index: int  # of its event
    outputs: Value  # what the rank is left with, once complete


class Held(ref):
    """A message's Work, as long as the program holds it; and its end, which is told once that is gone.

    outputs: what the rank is left with.  after: the same, if the call is like an earlier one.
    """

    __slots__ = "index", "outputs", "after", "streams"

    def __init__(self, traced: "TracedWork", gone: Callable[["Held"], None]) -> None:
        super().__init__(traced, gone)
        ((self.index, self.outputs),) = traced.parts
        self.after, self.streams = traced.after, traced.streams


class TracedWork(HasSource, Work):
    device: torch.device | None = None  # of the call's tensors
    event: Event | None = None  # the one call that it is of, where others may be like it
    after: Value = None  # what that leaves, if it is like an earlier one
    streams: Streams | None = None  # of a device that carries it out later
    captured = False  # whether it went into a graph: its end must not even be asked for
    any_source: tuple[int, ...] | None = None  # the group's ranks, for a recv from anyone
    gives_up = False  # whether a wait ends by itself: its group has a short limit, or only a device's stream waits
    asked = False  # whether somebody has its future
    since: float | None = None  # since when the main thread has waited for that future inside C++, if it is known
    by_torch = False  # whether torch made the call: its C++ may then hold the Work alone
    told = waited = False  # whether its end has been told of, and with it a wait
    failed = False  # whether a wait for it is known to raise its error

    def __init__(self, tracer, inner: Work, parts: list[Part]) -> None:
        super().__init__()
        self._tracer, self.inner = tracer, inner
        self.parts = parts  # one, or the calls of a batch

    @property
    def index(self) -> int:
        return self.parts[0].index

    @never_compiled
    def wait(self, timeout: timedelta | float = NO_LIMIT) -> bool:
        tracer = self._tracer
        if tracer.let_go:
            tracer.tell_let_go()
        has_limit = timeout is not NO_LIMIT and timeout not in (NO_LIMIT, 0.0)  # torch takes seconds too
        if not self.told:
            # A wait with a limit of its own ends by itself, so nobody may call it stuck.
            limited = self.gives_up or has_limit
            for part in self.parts:
                tracer.emit(Waiting(part.index, tracer.now(), limited, threads.here.work))
        guarded = not self.told and bool(tracer.watch.guards)
        if guarded:
            self._waits(True)
        try:
            result = self.inner.wait(timeout) if has_limit else self.inner.wait()
        except BaseException:
            self.failed = self.inner.is_completed()  # else the wait alone has ended, at its limit
            raise
        finally:  # a wait with a limit ends in an exception, and the program may go on
            if guarded:
                self._waits(False)
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
        """Whether the call is complete: has ended, and without an error.

        is_completed() is true of a Work that failed, too.  A wait for it then returns, or raises, at once.
        """
        if self.captured or self.failed or not self.inner.is_completed():
            return False
        if not self.streams:  # a device's Work that fails ends the process
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
        if self.streams and future.done():  # at once: whoever takes its value has a stream wait
            tracer.left(self, self.inner.is_completed)
            return future
        if self.told or future.done():
            return future.then(self._note)
        # What its callbacks do, a thread of C++ does, once the call is complete.
        work = ("future", self.index, id(future))
        tracer.emit(WorkBegan(work, self.index))
        told = future.then(self._note)
        future.add_done_callback(lambda _: tracer.emit(WorkEnded(work)))  # after all that hangs on `told`
        self.asked = True
        tracer.asked()
        return told

    @never_compiled
    def _note(self, future):
        value = future.value()  # or its error
        self._tracer.done(self)
        return value

    def is_success(self) -> bool:
        return self.inner.is_success()

    def exception(self):
        return self.inner.exception()

    def result(self):
        return self.inner.result()

    def get_future_result(self):
        return self.inner.get_future_result()

    def _get_op_type(self) -> int:
        return self.inner._get_op_type()

    def _get_duration(self) -> float:
        return self.inner._get_duration()

    @never_compiled
    def synchronize(self) -> None:
        self.inner.synchronize()
        if self.streams:
            self._tracer.waited(self)

    @never_compiled
    def block_current_stream(self) -> None:
        self.inner.block_current_stream()
        self._tracer.waited(self)


def in_their_own_words(run_backward: Callable) -> Callable:
    """autograd's entry, whose errors read as if no future of a call had passed through TracedWork._note."""

    @partial(never_compiled, callees=False)
    def entered(*args, **kwargs):
        try:
            return run_backward(*args, **kwargs)
        except RuntimeError as error:
            error.args = tuple(_MARKED.sub(r"\1", words) if isinstance(words, str) else words for words in error.args)
            raise

    return entered
