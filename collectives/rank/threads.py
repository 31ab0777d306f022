"""The threads of a rank function: which may still act, and which of the learner's lines gave each its work.

While `followed` is entered, threading.Thread and ThreadPoolExecutor report all work that is given to another thread,
from when it is given until it has ended. A pool's threads don't count by themselves: idle, they only wait for more.
"""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
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


@contextmanager
def followed(emit: Callable[[Message], None]) -> Iterator[None]:
    """Report work that this thread, the main one, and others hand over: before it can start, and once it has ended."""
    here.work = MAIN

    @contextmanager
    def given(joined: bool) -> Iterator[tuple[Hashable, Line | None]]:
        """The work that the block hands to a thread, and the learner's line that does so."""
        work = "thread", next(_numbers)
        if joined:
            to_join.add(work)
        emit(WorkBegan(work, None))
        try:
            yield work, learners_call(here.given_at)[0]
        except BaseException:
            end(work)
            raise

    def end(work: Hashable) -> None:
        to_join.discard(work)
        emit(WorkEnded(work))

    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def follow(thread: threading.Thread) -> None:
        if here.hiring or _knows_no_torch(thread):
            return start(thread)
        with given(not thread.daemon) as (work, line):
            run = thread.run

            def do() -> None:
                try:
                    _do(work, line, run)
                finally:
                    thread.__dict__.pop("run", None)
                    end(work)

            thread.run = do
            start(thread)

    def give(pool: ThreadPoolExecutor, fn: Callable, /, *args, **kwargs):
        with given(True) as (work, line):
            here.hiring = True
            try:
                future = submit(pool, _do, work, line, fn, *args, **kwargs)
            finally:
                here.hiring = False
        future.add_done_callback(lambda _: end(work))  # a cancelled one never runs, but ends too
        return future

    threading.Thread.start, ThreadPoolExecutor.submit = follow, give
    try:
        yield
    finally:
        threading.Thread.start, ThreadPoolExecutor.submit = start, submit


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
