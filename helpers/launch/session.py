"""One run's input and output: from handing out the job to the results, or the verdict."""

from __future__ import annotations

import gc
import linecache
import math
import os
import re
import selectors
import socket
import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, NamedTuple, Sequence

from ..frontend import StatusLine
from ..rank.callers import is_learners
from ..rank.pickling import unpack
from ..rank.protocol import Count, Counted, Frames, Job, Message, Place, ProcessContext, Ready, Returned
from ..rank.tcp import TcpCounters, arrived
from ..record.event import Line
from ..results import wording
from ..results.monitor import Monitor, Verdict
from ..results.run import Run
from .forkserver import ForkServer
from .interrupts import Interrupts
from .pool import discard, in_background, replace, server
from .workers import Output, Patience, WorkerGroup

STACK_SECONDS = 3.0  # for ranks to report their line, once out of time
STACK_SECONDS_INTERRUPTED = 0.5  # the same, once interrupted
POLL_SECONDS = 0.01  # between reads of the ranks' sockets; a rank that returns wakes us at once
START_SECONDS = 60.0  # seconds for the ranks to start and connect, and
START_SECONDS_PER_RANK = 0.5  # more for each of them: every rank connects to all the others
STATUS_SECONDS = 2.0  # until a run says what its ranks are doing, and
STATUS_INTERVAL_SECONDS = 1.0  # between two such lines
COLLECT_OBJECTS = 50_000  # made between two looks for garbage; Python's own choice is 700
LOADING_SECONDS = 300.0  # that a server may take to load torch, before it is given up
# As faulthandler writes it, whole: down to the line that started the server, or to where it gives up.
STACK = re.compile(r'Stack \(most recent call first\):\n((?:  File .*\n)*?)  (?:File "<string>".*|\.\.\.)\n')
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


# --- one run ------------------------------------------------------------------------------


class Settings(NamedTuple):
    """The keywords of `run`, which says what they mean."""

    world_size: int
    timeout: float
    check: bool
    whole: bool
    record: bool


class Ranks:
    """Where a run's ranks come from: this machine.  Others do the same elsewhere (cluster/engines.py).

    places: the host of each rank; empty for this machine itself.
    """

    def __init__(self, places: Sequence[Place] = ()) -> None:
        self._places = places

    def server(self) -> ForkServer:
        """What forks the ranks. Raises OSError if the system has no room for it."""
        return server()

    def workers(
        self, server: ForkServer, world_size: int, context: ProcessContext, patience: Patience, new: bool
    ) -> WorkerGroup:
        """Ranks that nobody has used. new: none that were made in advance. Raises as ForkServer's methods do."""
        return server.workers(world_size, context, patience, new, self._places)


class Session:
    """One attempt at a run: from taking a worker group to the results, or the verdict.

    stale: True once ranks or server that are older than this call have failed before the job was
        handed out. None of the learner's code has run then, so a second attempt is safe.
    """

    def __init__(
        self,
        fn: Callable,
        payload: bytes,
        context: ProcessContext,
        settings: Settings,
        ranks: Ranks,
    ) -> None:
        self._fn, self._payload, self._context, self._ranks_of = fn, payload, context, ranks
        self._n, self._timeout, check, self._whole, self._record = settings
        self._interrupts: Interrupts | None = None
        self._server: ForkServer | None = None
        self._workers: WorkerGroup | None = None
        self._called = self._began = time.perf_counter()
        self._seconds = 0.0
        self._start_seconds = START_SECONDS + START_SECONDS_PER_RANK * self._n
        self._monitor = Monitor(self._n, check, self._with_text)
        self._ready: set[int] = set()
        self._handed_out = False
        self._results: dict[int, bytes] = {}
        self._moved: dict[int, tuple[int | None, int | None]] = {}  # bytes (sent, received)
        self._traffic: list[TcpCounters | None] = []
        self._asked: float | None = None  # until when to wait for the ranks' stacks
        self._verdict: Verdict | None = None
        self._lines: dict[Line, Line] = {}
        self._next_poll = 0.0
        self._status, self._next_status = StatusLine(), time.monotonic() + STATUS_SECONDS
        self._eager = False  # whether each message is taken in as it comes
        self._discard_server = False
        self.stale = False

    def go(self, interrupts: Interrupts, new: bool = False) -> None:
        """Have the ranks run the function, until there are all results, a verdict, or an interrupt.

        new: take no ranks from standby.
        """
        self._interrupts = interrupts
        if interrupts.count:
            return
        patience = Patience(time.monotonic() + self._start_seconds, interrupts.wakes)
        try:
            self._server = self._ranks_of.server()
            self._workers = self._ranks_of.workers(self._server, self._n, self._context, patience, new)
            self._began = time.perf_counter()
            self._monitor.exits = self._workers.exits
            self._monitor.last_words = lambda rank: str(self._workers.err[rank])
            self._converse(patience.until)
        except ConnectionError:
            self._lost()
        except TimeoutError:  # there is no room for requests: the server reads none
            self._too_slow()
        finally:
            self._seconds = time.perf_counter() - self._began
            self._status.say("")
            if self._discard_server:
                in_background(partial(discard, self._server, self._workers))
            elif self._workers and self.stale:
                self._workers.end()
            elif self._workers:
                in_background(partial(replace, self._workers))

    def _converse(self, deadline: float) -> None:
        with selectors.DefaultSelector() as self._select, selectors.DefaultSelector() as self._ranks:
            for rank, sock in enumerate(self._workers.socks):
                self._ranks.register(sock, selectors.EVENT_READ, partial(self._from_rank, rank, sock, Frames()))
            self._listen_to(self._interrupts.wakes, self._interrupts.taken_in)
            self._listen_to(self._server.sock, self._server.read)
            self._listen_to(self._workers.wakeup, self._woken)
            for output in (*self._workers.out, *self._workers.err):
                self._listen_to(output.stream, partial(self._from_stream, output))
            try:
                with _seldom_collected():
                    self._listen(deadline)
            finally:
                self._workers.read()

    def outcome(self) -> Run | None:
        """The Run. None: interrupted, and a SIGINT handler other than Python's has dealt with it.

        Raises the verdict if there is one. Unpickling the results may run the learner's own code, so no
        interrupt is held back here.
        """
        interrupted = self._interrupts is not None and self._interrupts.count > 0
        if interrupted and not self._interrupts.usual:
            return None
        self._print()
        run, unreadable = self._run()
        if interrupted:
            raise wording.interrupted(self._monitor.state, run, self._handed_out)
        if self._verdict is not None:
            raise self._verdict(run)
        if unreadable:
            raise wording.unreadable(unreadable, run)
        return run

    def _listen_to(self, source, on_readable: Callable[[], None]) -> None:
        self._select.register(source, selectors.EVENT_READ, on_readable)

    def _listen(self, deadline: float) -> None:
        """Until every rank has returned and counted, there is a verdict, or an interrupt."""
        while self._verdict is None and not self._complete and not self._interrupts.count:
            if not self._handed_out and len(self._ready) == self._n and self._hand_out():
                deadline = time.monotonic() + self._timeout
            patience = self._monitor.patience or deadline
            until = self._asked or min(deadline, patience)
            self._wait_readable(until)
            self._judge(time.monotonic() >= deadline)
            self._report()
        if self._interrupts.count:
            self._drain_eagerly()
            self._drain()
        while self._interrupts.count == 1 and self._handed_out and not self._ask_for_stacks(STACK_SECONDS_INTERRUPTED):
            self._wait_readable(self._asked)

    def _report(self) -> None:
        """Say what the ranks are doing, of a run that takes its time."""
        now = time.monotonic()
        if now >= self._next_status:
            self._next_status = now + STATUS_INTERVAL_SECONDS
            self._status.say(wording.under_way(self._monitor.state, self._name, self._handed_out))

    def _hand_out(self) -> bool:
        """Send all ranks the job, unless one of them has died since it was ready. Return whether it was sent."""
        self._drain()
        self._handed_out = not self._monitor.lost
        if self._handed_out:
            changed = None if self._context == self._workers.context else self._context
            self._tell(Job(self._payload, changed, self._began, self._whole, self._record))
        return self._handed_out

    def _tell(self, message: Any) -> None:
        """Send every rank a message without blocking: what its socket has no room for goes when there is room."""
        self._workers.tell(message)
        for rank, sock in enumerate(self._workers.socks):
            if not self._workers.push(rank):
                self._select.register(sock, selectors.EVENT_WRITE, partial(self._push, rank, sock))

    def _push(self, rank: int, sock: socket.socket) -> None:
        if self._workers.push(rank):
            self._select.unregister(sock)

    def _wait_readable(self, until: float) -> None:
        for key, _ in self._select.select(max(0.0, min(until, self._next_poll) - time.monotonic())):
            key.data()
        if time.monotonic() >= self._next_poll:
            self._drain()

    @property
    def _complete(self) -> bool:
        return len(self._results) == self._n and set(self._moved) | self._monitor.lost >= set(range(self._n))

    # What arrives.

    def _woken(self) -> None:
        if not os.read(self._workers.wakeup, 1 << 12):
            self._select.unregister(self._workers.wakeup)  # all ranks have ended
        self._drain()

    def _drain(self) -> None:
        """Read all that the ranks have sent until now."""
        self._next_poll = time.monotonic() + POLL_SECONDS
        for key, _ in self._ranks.select(0):
            key.data()

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
            self._monitor.lost.add(rank)
            return
        for message in frames.feed(data):
            self._take(rank, message)
        if frames.partial:
            self._drain_eagerly()

    def _take(self, rank: int, message: Message) -> None:
        self._monitor.feed(rank, message)
        match message:
            case Ready():
                self._ready.add(rank)
            case Returned(result, moved, traffic, imported):
                self._results[rank], self._moved[rank] = result, moved
                self._traffic.append(traffic)
                if rank == 0 and imported:
                    self._server.learn(imported)
                if len(self._results) == self._n and not arrived(self._traffic):
                    self._moved.clear()
                    self._tell(Count())
            case Counted(moved):
                self._moved[rank] = moved

    # What to make of it.

    def _judge(self, late: bool) -> None:
        """Set the verdict once there is one."""
        if self._verdict is not None:
            return
        if not self._handed_out:
            self._judge_start(late)
            return
        if late or self._monitor.in_trouble:
            self._drain_eagerly()
            self._drain()  # what they did last may not have been seen
        self._verdict = self._monitor.verdict()
        if self._verdict is None and late and not self._monitor.in_trouble and self._ask_for_stacks():
            self._verdict = self._monitor.out_of_time(self._timeout)

    def _judge_start(self, late: bool) -> None:
        """Set the verdict of a start that failed: before the job is handed out, nothing is the learner's fault."""
        monitor, refused = self._monitor, self._workers.refused
        patience = monitor.wait_for_more()
        if refused or patience is not None:
            self.stale = self._workers.born < self._called
            all_ended = not monitor.failures and monitor.dead <= set(self._workers.exits)
            if refused:
                self._verdict = lambda run: wording.refused(*refused, run)
            elif self.stale or all_ended or len(monitor.failures) == self._n or time.monotonic() >= patience:
                self._verdict = monitor.failed()
        elif late:
            self._too_slow()

    def _lost(self) -> None:
        """Set the verdict: the server has ended, and its ranks with it."""
        self.stale = not self._handed_out and self._server.born < self._called
        self._verdict = lambda run: wording.server_lost(*self._server.last_words(), run)

    def _too_slow(self) -> None:
        """Set the verdict: the ranks, or the server, did not start in time."""
        if self._interrupts.count:
            return
        with suppress(OSError):
            self._server.read()
        loaded, age = self._server.up, time.perf_counter() - self._server.born
        self._discard_server = loaded or age > LOADING_SECONDS
        self._verdict = lambda run: wording.slow_start(len(self._ready), self._start_seconds, loaded, run)

    def cannot_start(self, error: OSError) -> None:
        """Set the verdict: the system refused what is needed before any rank can be asked for."""
        if self._handed_out:
            raise error
        self._verdict = lambda run: wording.cannot_start(error, run)

    def _drain_eagerly(self) -> None:
        """From now on, read what the ranks send as soon as it arrives: there is much of it, or the verdict needs it."""
        if not self._eager:
            self._eager = True
            self._listen_to(self._ranks, self._drain)

    def _ask_for_stacks(self, within: float = STACK_SECONDS) -> bool:
        """Ask the ranks that are in no call for their lines. Return True once all have answered, or had the time to."""
        if self._asked is None:
            self._asked = math.inf
            self._workers.ask_for_stacks()
        self._asked = min(self._asked, time.monotonic() + within)
        for rank in self._monitor.unlocated:
            if stack := STACK.findall(str(self._workers.err[rank])):
                frames = [Line(file, int(number), name) for file, number, name in FRAME.findall(stack[-1])]
                mine = next((k for k, frame in enumerate(frames) if is_learners(frame.file)), len(frames))
                line = frames[mine] if mine < len(frames) else None
                self._monitor.locate(rank, line, [frame.function for frame in frames[:mine]])
        return not self._monitor.unlocated or time.monotonic() > self._asked

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__name__", type(self._fn).__name__)

    def _with_text(self, line: Line | None) -> Line | None:
        """The line with its source text, which only the kernel has for a notebook's cells."""
        if line is None or line.text:
            return line
        if line not in self._lines:
            self._lines[line] = line._replace(text=linecache.getline(line.file, line.number).strip())
        return self._lines[line]

    def _run(self) -> tuple[Run, dict[int, Exception]]:
        """The record, and by rank the errors of unpickling: such a result is None in the record."""
        results, unreadable = [None] * self._n, {}
        for rank, packed in sorted(self._results.items()):
            try:
                results[rank] = unpack(packed)
            except Exception as error:
                unreadable[rank] = error
        sent, received = zip(*(self._moved.get(r, (None, None)) for r in range(self._n)))
        run = Run(
            self._n,
            results,
            self._monitor.state.events,
            [str(o) for o in self._workers.out] if self._workers else [""] * self._n,
            self._seconds,
            list(sent),
            list(received),
            self._name,
        )
        return run, unreadable

    def _print(self) -> None:
        for rank, output in enumerate(self._workers.out if self._workers else ()):
            for line in str(output).splitlines():
                print(f"[{rank}] {line}")


@contextmanager
def _seldom_collected():
    """While entered, Python looks for garbage less often: what the ranks tell is kept, and was looked through each time."""
    threshold, *others = gc.get_threshold()
    if threshold:  # else it never looks
        gc.set_threshold(max(threshold, COLLECT_OBJECTS), *others)
    try:
        yield
    finally:
        gc.set_threshold(threshold, *others)
