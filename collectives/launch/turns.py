"""Threads that take turns, and each rank's own copy of a process's state.

That state is the process groups, random numbers, standard output, RANK among the variables of the environment, and the
recorder of calls. It is exchanged whenever a turn begins or ends.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import random
import sys
import threading
from contextlib import contextmanager, suppress
from io import StringIO
from types import FrameType
from typing import Any, Callable, NamedTuple

import numpy as np
import torch

from ..log.event import MAIN
from ..rank import kernel, step_marks, threads, torch_private

STACK_BYTES = 1 << 22  # of a thread: address space, of which little is used
PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # variables of the environment
LOOK_SECONDS = 0.1  # between two looks at the clock
END_SECONDS = 0.5  # for a thread to end


class RunOver(BaseException):
    """The run is over: raised in a rank, wherever it is."""


class Numbers(NamedTuple):
    """Random numbers that a process has once.  place: where their state is in memory."""

    place: int
    get: Callable[[], Any]
    set: Callable[[Any], None]
    new: Callable[[], Any]

    @property
    def state(self) -> bytes:
        """Whatever is drawn first, it changes: a look takes a hundredth of the time of `get`."""
        return ctypes.string_at(self.place, 2500)  # of a Mersenne Twister, 624 words and a position in them


NUMBERS = (
    Numbers(
        id(random.seed.__self__) + object.__basicsize__, random.getstate, random.setstate, lambda: random.Random().getstate()
    ),
    Numbers(
        np.random.get_bit_generator().ctypes.state_address, np.random.get_state, np.random.set_state,
        lambda: np.random.RandomState().get_state(),
    ),
)  # fmt: skip


@contextmanager
def on_one_core():
    """While entered, this thread and those it starts compute on one core: there, a turn is handed on a tenth sooner."""
    threads, cores = torch.get_num_threads(), getattr(os, "sched_getaffinity", lambda _: set())(0)
    try:
        torch.set_num_threads(1)  # as a rank's process has
        with suppress(AttributeError, OSError):  # where a system can't, or forbids it
            os.sched_setaffinity(0, {ctypes.CDLL(None).sched_getcpu()} & cores)
        yield
    finally:
        torch.set_num_threads(threads)
        with suppress(AttributeError, OSError):
            os.sched_setaffinity(0, cores)


class Belongings:
    """A rank's own copy of a process's state; at first, the present state.

    Random numbers that a rank has drawn none of are nobody's: the next rank that has drawn none finds them in place.
    """

    nobodys = [False] * len(NUMBERS)

    def __init__(self) -> None:
        self.environ = {name: os.environ.get(name) for name in PLACES}
        self.recorder, self.steps = kernel.recorder, list(step_marks.counting)
        self._numbers, self._states = [None] * len(NUMBERS), [b""] * len(NUMBERS)
        self.leave()

    def of_rank(self, rank: int, world_size: int) -> Belongings:
        """Turn this into a new rank's: with random numbers of its own, and no process group."""
        self.environ = dict(zip(PLACES, map(str, (rank, rank, world_size, world_size))))
        self._stdout = self._stderr = self.printed = StringIO()
        self._groups = torch_private.GroupState()
        self._torch = torch.Generator().manual_seed(random.SystemRandom().getrandbits(63)).get_state()
        self._numbers = [None] * len(NUMBERS)
        return self

    def take(self) -> None:
        """Put them in place."""
        sys.stdout, sys.stderr, sys.modules["__main__"] = self._stdout, self._stderr, self._main
        for name, value in self.environ.items():
            if value is None:
                os.environ.pop(name, None)
            elif os.environ.get(name) != value:
                os.environ[name] = value
        torch_private.set_groups(self._groups)
        torch.set_rng_state(self._torch)
        for k, kind in enumerate(NUMBERS):
            numbers = self._numbers[k]
            if numbers is not None or not self.nobodys[k]:
                kind.set(kind.new() if numbers is None else numbers)
            self.nobodys[k], self._states[k] = numbers is None, kind.state
        kernel.recorder, step_marks.counting[:] = self.recorder, self.steps

    def leave(self) -> None:
        """Keep them as they are now."""
        self._stdout, self._stderr, self._main = sys.stdout, sys.stderr, sys.modules["__main__"]
        self._groups, self._torch = torch_private.groups(), torch.get_rng_state()
        for k, kind in enumerate(NUMBERS):
            if self._numbers[k] is not None or kind.state != self._states[k]:
                self._numbers[k], self.nobodys[k] = kind.get(), False


class Turn:
    """A thread that runs `body` while it has its turn.

    over: whether the run is.  taken: whether its turn was taken away.  ended: whether its body has.
    """

    def __init__(self, turns: Turns, body: Callable[[], None], belongings: Belongings) -> None:
        self._turns, self._body, self.belongings = turns, body, belongings
        self._go, self._dead = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._dead.acquire()
        self._ident: int | None = None
        self.over = self.taken = self.ended = False

    def begin(self) -> None:
        """Put its belongings in place, and let it run."""
        self.belongings.take()
        if self._ident is None:
            self._ident = 0
            before = threading.stack_size(STACK_BYTES)
            try:
                _thread.start_new_thread(self._live, ())
            finally:
                threading.stack_size(before)
        else:
            self._go.release()

    def _live(self) -> None:
        self._ident, threads.here.work = _thread.get_ident(), MAIN
        try:
            self._body()
        except RunOver:
            pass
        finally:
            self.ended = True
            if not self.over:
                self._turns.next(self)
            self._dead.release()

    def pass_on(self) -> None:
        """In the thread: let others have their turns. Raises RunOver once the run is over."""
        self._turns.next(self)
        self._go.acquire()
        self.check()

    def check(self) -> None:
        """Raise RunOver once the run is over."""
        if self.over:
            raise RunOver

    @property
    def is_mine(self) -> bool:
        """Whether this thread is the one that calls."""
        return _thread.get_ident() == self._ident

    @property
    def frame(self) -> FrameType | None:
        """The frame that it runs now."""
        return sys._current_frames().get(self._ident)

    def end(self) -> None:
        """End it, as soon as Python code of it runs; wait for that, but not long."""
        if self.ended or self._ident is None:
            return
        self.over = True
        self.belongings.take()
        if self.taken:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(RunOver))
        else:
            self._go.release()
        self._dead.acquire(timeout=END_SECONDS)
        self.belongings.leave()


class Turns:
    """Hands the turn on: from each thread to the next, and in the end to the thread that began.

    choose: called between two turns, returns the next one; None at the end.
    """

    def __init__(self, choose: Callable[[], Turn | None]) -> None:
        self._choose, self._current = choose, None
        self._changes = _thread.allocate_lock()  # held while a turn is handed on, or taken away
        self._mine = _thread.allocate_lock()
        self._mine.acquire()
        self._error: BaseException | None = None

    def run(self, goes_on: Callable[[], bool], halted: Callable[[Turn], None]) -> None:
        """Give all their turns.

        goes_on: called now and then; once it is false, the present turn is taken away.  halted: called with that one.
        """
        self._hand_on()
        try:
            while not self._mine.acquire(timeout=LOOK_SECONDS):
                if not goes_on() and (late := self._take_away()):
                    halted(late)
                    late.end()
                    self._hand_on()
        except BaseException:  # an interrupt
            if late := self._take_away():
                late.end()
            raise
        if self._error is not None:
            raise self._error

    def next(self, turn: Turn) -> None:
        """In a turn's thread: it is over."""
        with self._changes:
            if turn.taken:
                return
            turn.belongings.leave()
            self._hand_on()

    def _hand_on(self) -> None:
        try:
            turn = self._current = self._choose()
            if turn is not None:
                turn.begin()  # from here on, others may have had theirs already
        except BaseException as error:
            self._error, self._current, turn = error, None, None
        if turn is None:
            self._mine.release()

    def _take_away(self) -> Turn | None:
        with self._changes:
            turn, self._current = self._current, None
            if turn is not None:
                turn.taken = True
                turn.belongings.leave()
            return turn
