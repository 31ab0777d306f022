"""`run()`: a function on fresh ranks, and all they did brought back.

Each call takes a crew of ranks nobody has used, hands them the function, listens to all of
them at once, and ends them, whatever happens.
"""

from __future__ import annotations

import inspect
import linecache
import math
import os
import re
import selectors
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable

import torch

from . import diagnose, errors
from .crew import Crew, Output, ServerLost, take
from .record import Call, Event, Failure, Line, Run
from .sockets import Traffic, arrived
from .trace import is_learners
from .wire import Frames, Job, Surroundings, pack, unpack

MOST_RANKS = 256
GRACE = 1.0  # seconds for other ranks' messages to arrive once one has failed
PATIENCE = 2.0  # seconds for ranks that still move, once others are stuck or disagree
ANSWER = 3.0  # seconds for ranks to say on which line they are, once out of time
AT_ONCE = 0.5  # the same, once interrupted
LOOK = 0.01  # seconds between two looks at what the ranks do; one that returns rings
CALLERS_TURN = 0.005  # seconds in which the caller has the processor, before the next ranks are made
START_TIMEOUT = 60.0  # seconds for the ranks to start and find each other
# As faulthandler writes it, whole: down to the line that started the server, or to where it gives up.
STACK = re.compile(r'Stack \(most recent call first\):\n((?:  File .*\n)*?)  (?:File "<string>".*|\.\.\.)\n')
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 60.0,
    check: bool = True,
    whole: bool = False,
    record: bool = True,
    **kwargs: Any,
) -> Run:
    """Runs `fn(*args, **kwargs)` on every rank of a new gloo process group.

    fn: any callable: a function of a notebook or a module, a lambda, a closure.  Inside it,
        torch.distributed is initialised and everything said through it is recorded.
    world_size: number of ranks, 1 to 256, each a process of its own.
    timeout: seconds the ranks may take, from when all have started.
    check: end the run at the first mismatch or certain hang, with the reason.  False lets
        the program go on as it would without us, until it ends or is out of time.
    whole: keep large tensors whole in the events, instead of a summary.
    record: False records nothing, for measuring times: there are no events then, and a hang is
        known only when the time is up.

    Returns a Run.  Raises RankFailed, Mismatch or Stuck (all RunError), and TypeError or
    ValueError for arguments that cannot work, before any process starts.
    """
    _check(fn, world_size, timeout)
    payload = _ship(fn, args, kwargs)
    with _one_at_a_time, _Interrupts() as interrupts:
        for again in (True, False):
            _wait_for_successors()
            crew = take(world_size)
            session = _Session(crew, fn, payload, timeout, check, whole, record, interrupts)
            try:
                return session.go()
            except ServerLost:
                if session.started or not again:
                    raise
                # It was lost while nobody looked, and nothing has run yet: the next one will do.
            finally:
                _replace(crew)


# --- between two runs ---------------------------------------------------------------------

_replacing: threading.Thread | None = None
_next_call = threading.Event()


def _replace(crew: Crew) -> None:
    """Ends the ranks and makes their successors, while the caller goes on with the results."""

    def work():
        _next_call.wait(CALLERS_TURN)
        crew.end()
        with suppress(OSError):
            crew.server.prepare(len(crew.socks))

    global _replacing
    _next_call.clear()
    _replacing = threading.Thread(target=work)
    _replacing.start()


def _wait_for_successors() -> None:
    _next_call.set()
    if _replacing is not None:
        _replacing.join()


os.register_at_fork(before=_wait_for_successors)  # a fork must not find the server half spoken to


# --- arguments ----------------------------------------------------------------------------


def _check(fn: Any, world_size: Any, timeout: Any) -> None:
    if "RANK" in os.environ and torch.distributed.is_initialized():
        raise RuntimeError("run() was called inside a rank: ranks cannot start ranks of their own.")
    if not callable(fn):
        raise TypeError(
            f"run() needs a function to run on every rank, not {_a(fn)}. Pass the function itself: run(share), "
            "not run(share()) or run('share')."
        )
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise TypeError(f"world_size is a number of processes, a whole number like 4, not {world_size!r}.")
    if not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size must be from 1 to {MOST_RANKS}, not {world_size}: each rank is a process.")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r}.")
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, not {timeout}.")
    if inspect.iscoroutinefunction(fn):
        raise TypeError("run() needs an ordinary function; an async one would return without having run.")
    if inspect.isgeneratorfunction(fn):
        raise TypeError("run() needs an ordinary function; one that yields would return without having run.")


def _ship(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    try:
        return pack((fn, args, kwargs))
    except Exception as error:
        raise TypeError(f"{_culprit(fn, args, kwargs)} cannot travel to the ranks: {error}") from None


def _culprit(fn: Callable, args: tuple, kwargs: dict) -> str:
    """Names the one argument or variable that cannot be packed."""
    named = [(f"argument {i + 1}, {_a(a)},", a) for i, a in enumerate(args)]
    named += [(f"argument {k}, {_a(a)},", a) for k, a in kwargs.items()]
    try:
        used = inspect.getclosurevars(fn)
        named += [
            (f"the variable {k} that the function uses, {_a(v)},", v)
            for k, v in {**used.globals, **used.nonlocals}.items()
        ]
    except TypeError:
        pass  # a callable object, not a function
    for name, value in named:
        try:
            pack(value)
        except Exception:
            return name
    return f"{_a(fn)}"


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


_one_at_a_time = threading.Lock()


class _Interrupts:
    """Holds an interrupt back until what is being read has been taken in, then passes it on.

    At any other moment it could lose half a message from the server, and with it the next run.
    """

    def __enter__(self) -> _Interrupts:
        self.count = 0
        self.wakes, self._wake = os.pipe()  # readable when one came: a select() returns
        self._usual = None
        if threading.current_thread() is threading.main_thread():  # no other thread is interrupted
            self._usual = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, *_: Any) -> None:
        self.count += 1
        os.write(self._wake, b"!")

    def taken_in(self) -> None:
        os.read(self.wakes, 64)

    @property
    def usual(self) -> bool:
        """Whether an interrupt is to become a KeyboardInterrupt."""
        return self._usual is signal.default_int_handler

    def __exit__(self, kind: type | None, *_: Any) -> None:
        if self._usual is not None:
            signal.signal(signal.SIGINT, self._usual)
        os.close(self.wakes)
        os.close(self._wake)
        if self.count and not (self.usual and kind):  # a KeyboardInterrupt is on its way
            signal.raise_signal(signal.SIGINT)


# --- one run ------------------------------------------------------------------------------


class _Session:
    """One run: from handing out the job to the results, or the verdict."""

    def __init__(
        self,
        crew: Crew,
        fn: Callable,
        payload: bytes,
        timeout: float,
        check: bool,
        whole: bool,
        record: bool,
        interrupts: _Interrupts,
    ) -> None:
        self._crew, self._n, self._interrupts = crew, len(crew.socks), interrupts
        self._fn, self._payload, self._timeout, self._check = fn, payload, timeout, check
        self._whole, self._record = whole, record
        self._began = time.perf_counter()
        self._state = diagnose.State(self._n)
        self._ready: set[int] = set()
        self._results: dict[int, bytes] = {}
        self._moved: dict[int, tuple[int | None, int | None]] = {}  # bytes (sent, received)
        self._traffic: list[Traffic | None] = []
        self._failures: dict[int, Failure] = {}
        self._exits: dict[int, int] = {}
        self._closed: set[int] = set()  # ranks whose socket has ended
        self._mismatch: tuple[Call, Callable[[Run], errors.Mismatch]] | None = None
        self._grace: float | None = None
        self._asked: float | None = None  # until when to wait for the ranks' stacks
        self._verdict: errors.RunError | None = None
        self._lines: dict[Line, Line] = {}
        self._next_look = 0.0
        self._attentive = False  # whether each message is taken in as it comes

    def go(self) -> Run | None:
        """What came of it; None if it was interrupted and somebody else deals with that. Raises the verdict if there is one."""
        with selectors.DefaultSelector() as self._select, selectors.DefaultSelector() as self._ranks:
            for rank, sock in enumerate(self._crew.socks):
                self._ranks.register(sock, selectors.EVENT_READ, partial(self._from_rank, rank, sock, Frames()))
            self._listen_to(self._interrupts.wakes, self._interrupts.taken_in)
            self._listen_to(self._crew.server.sock, self._from_server)
            self._listen_to(self._crew.bell, self._rung)
            for output in (*self._crew.out, *self._crew.err):
                self._listen_to(output.stream, partial(self._from_stream, output))
            try:
                self._listen()
            finally:
                self._crew.read()
        if self._interrupts.count and not self._interrupts.usual:
            return None
        self._print()
        if self._interrupts.count:
            raise errors.interrupted(self._state, self._run(), self.started)
        if self._verdict is not None:
            raise self._verdict
        return self._run()

    def _listen_to(self, source, on_readable: Callable[[], None]) -> None:
        self._select.register(source, selectors.EVENT_READ, on_readable)

    def _listen(self) -> None:
        """Until every rank has returned and counted, there is a verdict, or an interrupt."""
        deadline = time.monotonic() + START_TIMEOUT
        counting = False
        while self._verdict is None and not self._complete and not self._interrupts.count:
            if not counting and self.started:
                counting, deadline = True, time.monotonic() + self._timeout
            until = self._asked or (deadline if self._grace is None else min(deadline, self._grace))
            self._take_in(until)
            self._judge(time.monotonic() >= deadline)
        if self._interrupts.count:
            self._attend()
            self._look()
        while self._interrupts.count == 1 and self.started and not self._know_where(AT_ONCE):
            self._take_in(self._asked)

    def _take_in(self, until: float) -> None:
        for key, _ in self._select.select(max(0.0, min(until, self._next_look) - time.monotonic())):
            key.data()
        if time.monotonic() >= self._next_look:
            self._look()

    @property
    def started(self) -> bool:
        """Whether the ranks have been told to run the function."""
        return len(self._ready) == self._n

    @property
    def _complete(self) -> bool:
        return len(self._results) == self._n and set(self._moved) | self._closed >= set(range(self._n))

    # What arrives.

    def _rung(self) -> None:
        if not os.read(self._crew.bell, 1 << 12):
            self._select.unregister(self._crew.bell)  # nobody is left to ring
        self._look()

    def _look(self) -> None:
        """Takes in all that the ranks have sent until now."""
        self._next_look = time.monotonic() + LOOK
        for key, _ in self._ranks.select(0):
            key.data()

    def _from_server(self) -> None:
        for kind, *rest in self._crew.server.replies():
            if kind == "exited" and rest[0] == self._crew.number:
                _, rank, status = rest
                self._exits[rank] = status
                self._look()

    def _from_stream(self, output: Output) -> None:
        if not output.read():
            self._select.unregister(output.stream)

    def _from_rank(self, rank: int, sock: socket.socket, frames: Frames) -> None:
        try:
            data = sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self._ranks.unregister(sock)
            self._closed.add(rank)
            return
        for kind, *rest in frames.feed(data):
            getattr(self, f"_on_{kind}")(rank, *rest)
        if frames.partial:
            self._attend()

    def _on_ready(self, rank: int) -> None:
        self._ready.add(rank)
        if self.started:  # nobody starts before all are connected
            now = Surroundings.here()
            changed = None if now == self._crew.surroundings else now
            self._crew.tell(Job(self._payload, changed, self._began, self._whole, self._record))

    def _on_call(self, rank: int, event: Event) -> None:
        event.line = self._with_text(event.line)
        call = self._state.called(event)
        self._suspect(call)

    def _on_touched(self, rank: int, index: int, how: str, line: Line | None) -> None:
        event = self._state.events[rank][index]
        event.flaw, event.touched = how, self._with_text(line)
        self._suspect(self._state.pairs.of[id(event)])

    def _suspect(self, call: Call) -> None:
        """Keeps the first call that is wrong, or in another order than one before it."""
        if not self._check or self._mismatch:
            return
        if what := diagnose.mismatch(call):
            self._mismatch = call, partial(errors.mismatched, call, what)
        elif other := diagnose.crossed(call, self._state.pairs.before(call)):
            self._mismatch = call, partial(errors.out_of_order, other, call)

    def _on_wait(self, rank: int, index: int, now: float, limited: bool) -> None:
        event = self._state.events[rank][index]
        event.waiting = now
        if not limited:
            self._state.blocked[rank] = event

    def _on_done(self, rank: int, index: int, after, end: float | None, waited: bool, src: int | None) -> None:
        event = self._state.events[rank][index]
        event.after, event.end, event.waited = after, end, waited
        if src is not None:
            event.src = src
            self._state.pairs.add(event)
        if self._state.blocked.get(rank) is event:
            del self._state.blocked[rank]

    def _on_returned(
        self, rank: int, result: bytes, moved: tuple, traffic: Traffic | None, imported: list[str]
    ) -> None:
        self._results[rank], self._moved[rank] = result, moved
        self._traffic.append(traffic)
        self._state.returned.add(rank)
        if rank == 0 and imported:
            self._crew.server.learn(imported)
        if len(self._results) == self._n and not arrived(self._traffic):
            self._moved.clear()
            self._crew.tell("count")

    def _on_counted(self, rank: int, moved: tuple) -> None:
        self._moved[rank] = moved

    def _on_failed(self, rank: int, failure: Failure) -> None:
        failure.frames = [self._with_text(line) for line in failure.frames]
        self._failures[rank] = failure

    # What to make of it.

    def _judge(self, late: bool) -> None:
        """Sets the verdict once there is one.

        Trouble is certain when it is seen, but its first cause, and where the others stand,
        may still be on the way: so it waits until nobody moves any more, GRACE at most.
        """
        if self._verdict is not None:
            return
        dead, waits = self._trouble()
        if self._failures or dead or waits or self._mismatch or late:
            self._attend()
            self._look()  # what they did last may not have been seen
            dead, waits = self._trouble()
        if not (self._failures or dead or waits or self._mismatch):
            self._grace = None
            if late and self._know_where():
                self._verdict = errors.out_of_time(self._state, self._run(), self._timeout)
            return
        still = (set(self._failures) | self._state.settled()) - dead | dead & set(self._exits)
        self._grace = self._grace or time.monotonic() + (GRACE if self._failures or dead else PATIENCE)
        call, mismatched = self._mismatch or (None, None)
        # Of a call that all have made there is no more to learn, but who else misuses its tensors.
        all_told = len(still) == self._n or call and call.is_complete and not any(e.flaw for e in call)
        if not all_told and time.monotonic() < self._grace:
            return
        if mismatched:
            self._verdict = mismatched(self._run())
            return
        causes = [f for f in self._failures.values() if not diagnose.is_consequence(f)]
        if causes or self._failures and not dead:
            self._verdict = errors.failed(self._failures, self._state, self._run())
        elif dead:
            rank = min(dead)
            self._verdict = errors.died(
                rank, self._exits.get(rank), str(self._crew.err[rank]), self._state, self._run()
            )
        else:
            self._verdict = errors.stuck(self._state, self._run(), waits)

    def _trouble(self) -> tuple[set[int], dict[int, set[int]]]:
        """The ranks that died, and those that wait for ever with the ranks they wait for."""
        dead = {r for r in self._closed if r not in self._results and r not in self._failures}
        return dead, diagnose.hopeless(self._state) if self._check and self._state.blocked else {}

    def _attend(self) -> None:
        """From now on takes in what the ranks send as it comes: there is much of it, or each word counts."""
        if not self._attentive:
            self._attentive = True
            self._listen_to(self._ranks, self._look)

    def _know_where(self, within: float = ANSWER) -> bool:
        """Asks the ranks that are in no call for their lines; True once all have said, or had the time to."""
        if self._asked is None:
            self._asked = math.inf
            self._crew.ask_where()
        self._asked = min(self._asked, time.monotonic() + within)
        running = set(range(self._n)) - self._state.returned - set(self._state.blocked)
        for rank in running - set(self._state.where):
            if stack := STACK.findall(str(self._crew.err[rank])):
                frames = [Line(file, int(number), name) for file, number, name in FRAME.findall(stack[-1])]
                mine = next((k for k, frame in enumerate(frames) if is_learners(frame.file)), len(frames))
                self._state.where[rank] = self._with_text(frames[mine]) if mine < len(frames) else None
                self._state.inside[rank] = [frame.function for frame in frames[:mine]]
        return running <= set(self._state.where) or time.monotonic() > self._asked

    def _with_text(self, line: Line | None) -> Line | None:
        """Adds the source text, which only the kernel has for a notebook's cells."""
        if line is None or line.text:
            return line
        if line not in self._lines:
            self._lines[line] = line._replace(text=linecache.getline(line.file, line.number).strip())
        return self._lines[line]

    def _run(self) -> Run:
        results = [unpack(self._results[r]) if r in self._results else None for r in range(self._n)]
        sent, received = zip(*(self._moved.get(r, (None, None)) for r in range(self._n)))
        return Run(
            self._n,
            results,
            self._state.events,
            [str(o) for o in self._crew.out],
            time.perf_counter() - self._began,
            list(sent),
            list(received),
            getattr(self._fn, "__name__", type(self._fn).__name__),
        )

    def _print(self) -> None:
        for rank, output in enumerate(self._crew.out):
            for line in str(output).splitlines():
                print(f"[{rank}] {line}")
