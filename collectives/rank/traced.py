"""A Work that tells the recorder when it is waited for, and otherwise passes everything to the backend's own."""

import re
from datetime import timedelta
from functools import partial
from typing import Callable

from torch.distributed import Work

from ..record.event import Value
from . import threads
from .protocol import Waiting, WorkBegan, WorkEnded
from .torch_private import HasSource, never_compiled

NO_LIMIT = timedelta(0)  # what torch takes for a wait that may last
# What torch makes of an error that passes through TracedWork._note, as through any Python callback of a future.
_MARKED = re.compile(
    r"Got the following error when running the callback: \w+: (.*?)\n\nAt:\n  \S*traced\.py\(\d+\): _note\n(?:  .*\n)*",
    re.S,
)


class TracedWork(HasSource, Work):
    def __init__(self, tracer, inner: Work, index: int, outputs: Value) -> None:
        super().__init__()
        self._tracer, self.inner = tracer, inner
        self.index = index  # of the call's event
        self.outputs = outputs  # what the rank is left with, once complete
        self.any_source: tuple[int, ...] | None = None  # the group's ranks, for a recv from anyone
        self.gives_up = (
            False  # whether a wait ends by itself: its group has a short limit, or only a device's stream waits
        )
        self.asked = False  # whether somebody has its future
        self.by_torch = False  # whether torch made the call: its C++ may then hold the Work alone
        self.told = self.waited = False  # whether its end has been told of, and with it a wait

    @never_compiled
    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        tracer = self._tracer
        if not self.told:
            # A wait with a limit of its own ends by itself, so nobody may call it stuck.
            limited = self.gives_up or timeout > NO_LIMIT
            tracer.emit(Waiting(self.index, tracer.now(), limited, threads.here.work))
            tracer.watch.waits(self.index, True)
        try:
            result = self.inner.wait(timeout) if timeout > NO_LIMIT else self.inner.wait()
        finally:  # a wait with a limit ends in an exception, and the program may go on
            tracer.watch.waits(self.index, False)
        tracer.done(self)
        return result

    @never_compiled
    def is_completed(self) -> bool:
        complete = self.inner.is_completed()
        if complete:  # as good as a wait
            self._tracer.done(self)
        return complete

    @never_compiled
    def get_future(self):
        tracer, future = self._tracer, self.inner.get_future()
        if self.told or future.done():
            return future.then(self._note)
        # What its callbacks do, a thread of C++ does, once the call is complete.
        work = ("future", self.index, id(future))
        tracer.emit(WorkBegan(work, self.index))
        told = future.then(self._note)
        future.add_done_callback(lambda _: tracer.emit(WorkEnded(work)))  # after all that hangs on `told`
        self.asked = True
        tracer.idle.start()
        return told

    @never_compiled
    def _note(self, future):
        self._tracer.done(self)
        return future.value()

    def is_success(self) -> bool:
        return self.inner.is_success()

    def exception(self):
        return self.inner.exception()

    def result(self):
        return self.inner.result()

    def synchronize(self) -> None:
        self.inner.synchronize()


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
