"""The threads of a rank function: which may still act, and which of the learner's lines gave each its work."""

import itertools
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Hashable, Iterator

from ..log.event import MAIN, Line
from ..log.messages import Message, WorkBegan, WorkEnded
from .callers import learners_call


class _Here(threading.local):
    """What this thread is doing; unknown for a thread of C++."""

    work: Hashable | None = None  # MAIN, or as WorkBegan names it
    given_at: Line | None = None  # the learner's line that gave it this work; None in the main thread
    hiring = False  # whether a pool may be starting a thread, which doesn't count


here = _Here()
to_join: set[Hashable] = set()  # the work under way that Python waits for at its exit: not that of daemon threads
_numbers = itertools.count()


class Follower:
    """Reports the work that threads hand to others, from when it is given until it has ended.

    The thread that starts it is the main one. A pool's threads don't count by themselves: idle, they only wait for more.
    """

    def __init__(self, emit: Callable[[Message], None]) -> None:
        self._emit = emit

    def start(self) -> None:
        here.work = MAIN
        self._start, self._submit = threading.Thread.start, ThreadPoolExecutor.submit
        threading.Thread.start = lambda thread: self._follow(thread)
        ThreadPoolExecutor.submit = lambda pool, fn, /, *args, **kwargs: self._give(pool, fn, *args, **kwargs)

    def stop(self) -> None:
        threading.Thread.start, ThreadPoolExecutor.submit = self._start, self._submit

    def _follow(self, thread: threading.Thread) -> None:
        """Start a thread, whose work is reported."""
        if here.hiring or _knows_no_torch(thread):
            return self._start(thread)
        with self._given(not thread.daemon) as (work, line):
            run = thread.run

            def do() -> None:
                try:
                    _do(work, line, run)
                finally:
                    thread.__dict__.pop("run", None)
                    self._end(work)

            thread.run = do
            self._start(thread)

    def _give(self, pool: ThreadPoolExecutor, fn: Callable, /, *args, **kwargs) -> Future:
        """Submit work to a pool, and report it."""
        with self._given(True) as (work, line):
            here.hiring = True
            try:
                future = self._submit(pool, _do, work, line, fn, *args, **kwargs)
            finally:
                here.hiring = False
        future.add_done_callback(lambda _: self._end(work))  # a cancelled one never runs, but ends too
        return future

    @contextmanager
    def _given(self, joined: bool) -> Iterator[tuple[Hashable, Line | None]]:
        """The work that the block hands to a thread, and the learner's line that does so."""
        work = "thread", next(_numbers)
        if joined:
            to_join.add(work)
        self._emit(WorkBegan(work, None))
        try:
            yield work, learners_call(here.given_at)[0]
        except BaseException:
            self._end(work)
            raise

    def _end(self, work: Hashable) -> None:
        to_join.discard(work)
        self._emit(WorkEnded(work))


def _do(work: Hashable, line: Line | None, fn: Callable, /, *args, **kwargs):
    before = here.work, here.given_at
    here.work, here.given_at = work, line
    try:
        return fn(*args, **kwargs)
    finally:
        here.work, here.given_at = before


def _knows_no_torch(thread: threading.Thread) -> bool:
    """Whether it runs an installed package's code that hasn't imported torch (tqdm's monitor): it makes no calls."""
    code = getattr(type(thread).run, "__code__", None)
    return code is not None and f"-packages{os.sep}" in code.co_filename and "torch" not in type(thread).run.__globals__


def join_all() -> None:
    """Wait for all non-daemon threads, as Python does at its exit; pools end theirs first."""
    if threading.active_count() > 1:  # otherwise don't copy the pages that this would write to
        threading._shutdown()
