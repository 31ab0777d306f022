"""`run()`: a function on fresh ranks, and all they did brought back.

One server per kernel process, started at the first call (never at import: the server
imports this package too).  Each call gets new ranks from it, listens to all of them at
once, and ends them, whatever happens.
"""

from __future__ import annotations

import atexit
import inspect
import itertools
import linecache
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable

import torch

from . import diagnose
from .rank import Birth, Failure, Job
from .record import Event, Line, Run
from .wire import Frames, frame, pack, send_with_descriptors, unpack

MOST_RANKS = 256
KEPT_OUTPUT = 1 << 20  # bytes of a rank's printed output that are kept
GRACE = 0.5  # seconds for other ranks' messages to arrive once one has failed


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 60.0,
    check: bool = True,
    whole: bool = False,
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

    Returns a Run.  Raises RankFailed, Mismatch or Stuck (all RunError), and TypeError or
    ValueError for arguments that cannot work, before any process starts.
    """
    _check(fn, world_size, timeout)
    payload = _ship(fn, args, kwargs)
    with _one_at_a_time:
        return _Session(_server(), fn, payload, world_size, timeout, check, whole).go()


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
        named += [(f"the variable {k} that the function uses, {_a(v)},", v) for k, v in {**used.globals, **used.nonlocals}.items()]
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


# --- the server ---------------------------------------------------------------------------

_one_at_a_time = threading.Lock()
_run_numbers = itertools.count()
_current: _Connection | None = None


class _Connection:
    """The kernel's end of its server."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from helpers.server import main; main({theirs.fileno()})"
        )
        # A session of its own: Jupyter's interrupts and kills go to the kernel's group.
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        self.sock, self.frames, self.owner = ours, Frames(), os.getpid()
        try:
            up = self.sock.recv(1 << 16)
        except BaseException:  # an interrupt while it starts
            self.close()
            raise
        if not up:
            words = self.process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise RuntimeError(f"the process that starts the ranks ended at once. It said:\n{words}")
        self.frames.feed(up)

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, number: int, birth: Birth, descriptors: list[int]) -> None:
        send_with_descriptors(self.sock, ("fork", number, birth), descriptors)

    def kill(self, number: int) -> None:
        self.sock.sendall(frame(("kill", number)))

    def close(self) -> None:
        self.sock.close()
        if self.owner == os.getpid():
            self.process.stderr.close()
            self.process.wait()


def _server() -> _Connection:
    global _current
    if _current is None or not _current.alive:
        if _current is not None:
            _current.sock.close()
        _current = _Connection()
    return _current


@atexit.register
def _stop() -> None:
    if _current is not None and _current.owner == os.getpid():
        _current.close()


# --- one run ------------------------------------------------------------------------------


class _Output:
    """What a rank wrote to a stream: its beginning and its end, never more than KEPT_OUTPUT."""

    def __init__(self) -> None:
        self._head, self._tail, self._lost = bytearray(), bytearray(), 0
        self._stream = -1

    def open(self, stream: int) -> None:
        os.set_blocking(stream, False)  # a stray process may hold the other end open for ever
        self._stream = stream

    def read(self) -> bool:
        """Takes in what there is to read; False at the end of the stream."""
        try:
            data = os.read(self._stream, 1 << 18)
        except BlockingIOError:
            return True
        room = max(0, KEPT_OUTPUT // 2 - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - KEPT_OUTPUT // 2
        if excess > 0:
            del self._tail[:excess]
            self._lost += excess
        return bool(data)

    def close(self) -> None:
        while len(self._head) + len(self._tail) < KEPT_OUTPUT:
            before = len(self._head) + len(self._tail)
            if not self.read() or before == len(self._head) + len(self._tail):
                break
        os.close(self._stream)

    def __str__(self) -> str:
        middle = f"\n... {self._lost} bytes left out ...\n".encode() if self._lost else b""
        return (bytes(self._head) + middle + bytes(self._tail)).decode(errors="replace")


class _Session:
    """From forking the ranks to the last one gone."""

    def __init__(self, server, fn, payload, world_size, timeout, check, whole) -> None:
        self._server, self._fn, self._payload = server, fn, payload
        self._n, self._timeout, self._check, self._whole = world_size, timeout, check, whole
        self._number = next(_run_numbers)
        self._began = time.perf_counter()
        self._state = diagnose.State(world_size)
        self._out = [_Output() for _ in range(world_size)]
        self._err = [_Output() for _ in range(world_size)]
        self._results: dict[int, bytes] = {}
        self._moved: dict[int, tuple[int | None, int | None]] = {}
        self._failures: dict[int, Failure] = {}
        self._exits: dict[int, int] = {}
        self._settled: set[int] = set()  # ranks whose socket is closed
        self._ready: list[int] = []
        self._socks: list[socket.socket] = []
        self._select = selectors.DefaultSelector()
        self._grace: float | None = None
        self._verdict: diagnose.RunError | None = None
        self._mismatch: diagnose.Call | None = None
        self._gone = False
        self._lines: dict[Line, Line] = {}

    def go(self) -> Run:
        try:
            self._select.register(self._server.sock, selectors.EVENT_READ, self._from_server)
            for rank in range(self._n):
                self._start(rank)
            self._listen()
        finally:
            self._end()
        self._print()
        if self._verdict is not None:
            raise self._verdict
        return self._run()

    def _start(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        out, out_w = os.pipe()
        err, err_w = os.pipe()
        try:
            self._server.fork(self._number, Birth(rank, self._n, ""), [theirs.fileno(), out_w, err_w])
        finally:
            theirs.close()
            os.close(out_w)
            os.close(err_w)
        self._socks.append(ours)
        frames = Frames()
        self._select.register(ours, selectors.EVENT_READ, lambda: self._from_rank(rank, ours, frames))
        for stream, kept in ((out, self._out[rank]), (err, self._err[rank])):
            kept.open(stream)
            self._select.register(stream, selectors.EVENT_READ, lambda s=stream, k=kept: k.read() or self._select.unregister(s))

    def _listen(self) -> None:
        """Until there is a result from every rank, or a verdict."""
        deadline = time.monotonic() + self._timeout + 30  # starting has a limit of its own
        started = False
        while self._verdict is None and len(set(self._moved) | self._settled & set(self._results)) < self._n:
            if not started and len(self._ready) == self._n:
                started, deadline = True, time.monotonic() + self._timeout
            until = deadline if self._grace is None else min(deadline, self._grace)
            for key, _ in self._select.select(max(0.0, until - time.monotonic())):
                key.data()
            self._judge(time.monotonic() >= deadline)

    # What arrives.

    def _from_server(self) -> None:
        data = self._server.sock.recv(1 << 16)
        if not data:
            raise RuntimeError("the process that starts the ranks is gone; the next call starts a new one.")
        for kind, number, *rest in self._server.frames.feed(data):
            if number == self._number and kind == "exited":
                self._exits[rest[0]] = rest[1]
            elif number == self._number and kind == "gone":
                self._gone = True

    def _from_rank(self, rank: int, sock: socket.socket, frames: Frames) -> None:
        try:
            data = sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self._select.unregister(sock)
            self._settled.add(rank)
            return
        for kind, *rest in frames.feed(data):
            getattr(self, f"_on_{kind}")(rank, *rest)

    def _on_ready(self, rank: int) -> None:
        self._ready.append(rank)
        if len(self._ready) == self._n:  # nobody starts before all are connected
            job = Job(self._payload, os.getcwd(), sys.path, dict(os.environ), self._began, self._whole)
            self._tell(frame(job))

    def _tell(self, data: bytes) -> None:
        for sock in self._socks:
            try:
                sock.sendall(data)
            except ConnectionError:
                pass  # it died; its exit is on the way

    def _on_call(self, rank: int, event: Event) -> None:
        event.line = self._with_text(event.line)
        call = self._state.called(event)
        if self._check and self._mismatch is None and diagnose.mismatch(call):
            self._mismatch = call

    def _on_wait(self, rank: int, index: int, now: float, limited: bool) -> None:
        event = self._state.events[rank][index]
        event.waiting = now
        if not limited:
            self._state.blocked[rank] = event

    def _on_done(self, rank: int, index: int, after, end: float | None, waited: bool, src: int | None) -> None:
        event = self._state.events[rank][index]
        event.after, event.end, event.waited, event.waiting = after, end, waited, None
        if src is not None:
            event.src = src
            self._state.pairs.add(event)
        if self._state.blocked.get(rank) is event:
            del self._state.blocked[rank]

    def _on_returned(self, rank: int, result: bytes) -> None:
        self._results[rank] = result
        self._state.returned.add(rank)
        if len(self._results) == self._n:
            self._tell(frame("count"))

    def _on_counted(self, rank: int, moved: tuple[int | None, int | None]) -> None:
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
        dead = {r for r in self._settled if r not in self._results and r not in self._failures}
        waits = diagnose.hopeless(self._state) if self._check and self._state.blocked else {}
        if not (self._failures or dead or waits or self._mismatch):
            self._grace = None
            if late:
                self._verdict = diagnose.out_of_time(self._state, self._run(), self._timeout)
            return
        still = (set(self._failures) | set(self._results) | set(self._state.blocked)) - dead | dead & set(self._exits)
        self._grace = self._grace or time.monotonic() + GRACE
        if len(still) < self._n and time.monotonic() < self._grace:
            return
        if self._mismatch:
            what = diagnose.mismatch(self._mismatch)
            self._verdict = diagnose.mismatched(self._mismatch, what, self._run())
            return
        causes = [f for f in self._failures.values() if not diagnose.is_consequence(f)]
        if causes or self._failures and not dead:
            self._verdict = diagnose.failed(self._failures, self._run())
        elif dead:
            rank = min(dead)
            self._verdict = diagnose.died(
                rank, self._exits.get(rank), str(self._err[rank]), self._state, self._run()
            )
        else:
            self._verdict = diagnose.stuck(self._state, self._run(), waits)

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
            [str(o) for o in self._out],
            time.perf_counter() - self._began,
            list(sent),
            list(received),
            getattr(self._fn, "__name__", type(self._fn).__name__),
        )

    # The end.

    def _end(self) -> None:
        """Ends the ranks and waits until they are gone; what they still had to say is read."""
        try:
            self._server.kill(self._number)
            limit = time.monotonic() + 10
            while not self._gone and time.monotonic() < limit:
                for key, _ in self._select.select(1.0):
                    key.data()
        except (OSError, RuntimeError):
            pass  # the server is gone, and its ranks with it
        for output in (*self._out, *self._err):
            output.close()
        for sock in self._socks:
            sock.close()
        self._select.close()

    def _print(self) -> None:
        for rank, kept in enumerate(self._out):
            for line in str(kept).splitlines():
                print(f"[{rank}] {line}")
