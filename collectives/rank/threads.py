"""The threads of a rank function: which may still act, and which of the learner's lines set each to work.

While `followed` is entered, threading.Thread and ThreadPoolExecutor tell of all work that is given
to another thread, from when it is given until it has ended. A pool's threads do not count by
themselves: idle, they can do nothing but wait for more.
"""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Hashable, Iterator

from ..record.event import MAIN, Line
from .callers import learners_call

to_join: set[Hashable] = set()  # the work under way that Python waits for at its exit: not that of daemons
_here = threading.local()  # .work: what this thread is doing; .given_at: the learner's line that gave it
_numbers = itertools.count()


def current() -> Hashable | None:
    """MAIN, or what `followed` calls the work that this thread is doing; None for a thread of C++."""
    return getattr(_here, "work", None)


def given_at() -> Line | None:
    """The learner's line that gave this thread its work; None for the main thread, or one of C++."""
    return getattr(_here, "given_at", None)


@contextmanager
def followed(begins: Callable[[Hashable], None], ends: Callable[[Hashable], None]) -> Iterator[None]:
    """Tell of work given to other threads: `begins` before it can start, `ends` once it has ended.

    The thread that enters this is the main one.
    """
    _here.work = MAIN

    @contextmanager
    def given(joined: bool) -> Iterator[tuple[Hashable, Line | None]]:
        """Work that the block gives to a thread, and the learner's line that does so."""
        work = "thread", next(_numbers)
        if joined:
            to_join.add(work)
        begins(work)
        try:
            yield work, learners_call(given_at())[0]
        except BaseException:
            end(work)
            raise

    def end(work: Hashable) -> None:
        to_join.discard(work)
        ends(work)

    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def follow(thread: threading.Thread) -> None:
        if getattr(_here, "hiring", False) or _knows_no_torch(thread):
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
            _here.hiring = True
            try:
                future = submit(pool, _do, work, line, fn, *args, **kwargs)
            finally:
                _here.hiring = False
        future.add_done_callback(lambda _: end(work))  # a cancelled one never runs, and ends as well
        return future

    threading.Thread.start, ThreadPoolExecutor.submit = follow, give
    try:
        yield
    finally:
        threading.Thread.start, ThreadPoolExecutor.submit = start, submit


def _do(work: Hashable, line: Line | None, fn: Callable, /, *args, **kwargs):
    before = current(), given_at()
    _here.work, _here.given_at = work, line
    try:
        return fn(*args, **kwargs)
    finally:
        _here.work, _here.given_at = before


def _knows_no_torch(thread: threading.Thread) -> bool:
    """Whether it runs code of an installed package that has not imported torch (tqdm's monitor): it calls nothing."""
    code = getattr(type(thread).run, "__code__", None)
    return code is not None and f"-packages{os.sep}" in code.co_filename and "torch" not in type(thread).run.__globals__


def join_all() -> None:
    """Wait for all threads that are not daemons, as Python does at its exit, having told pools to end theirs."""
    if threading.active_count() > 1:  # else there is none, and no reason to copy the pages that this would write to
        threading._shutdown()
