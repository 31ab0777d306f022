"""The input and output of one run: messages to and from its ranks, what they print, and interrupts held back meanwhile."""

import gc
import os
import selectors
import signal
import socket
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable

from .ranks import Server, Workers
from .wire import Frames, Message
from .workers import Output

POLL_SECONDS = 0.01  # between reads of the ranks' sockets; a rank that returns wakes us at once
COLLECT_OBJECTS = 50_000  # allocated between two garbage collections; Python's own choice is 700


class Interrupts:
    """Hold SIGINT back while messages are read and written, and count it.

    An exception at any moment could lose half a message from the server, and with it the next run.
    Session.outcome raises KeyboardInterrupt afterwards; a handler other than Python's is called at the end.
    """

    def __enter__(self) -> "Interrupts":
        self.count = 0
        self.wakes, self._wake = os.pipe()  # self-pipe: readable once an interrupt came, which ends a wait
        self._usual = None
        # No other thread is interrupted; and a program may ignore SIGINT, as nohup has it do.
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
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

    def __exit__(self, *_: Any) -> None:
        if self._usual is not None:
            signal.signal(signal.SIGINT, self._usual)
        os.close(self.wakes)
        os.close(self._wake)
        if self.count and not self.usual:
            signal.raise_signal(signal.SIGINT)


class Conversation:
    """Messages to and from the ranks of one run, and what they print, which the worker group keeps.

    take: called with the rank and each of its messages.  lost: called with a rank whose connection has ended.

    Ranks' sockets are in a separate selector, polled now and then: a small call should not wake the kernel.
    The methods raise ConnectionError once the server is gone.
    """

    def __init__(
        self,
        server: Server,
        workers: Workers,
        interrupts: Interrupts,
        take: Callable[[int, Message], None],
        lost: Callable[[int], None],
    ) -> None:
        self._workers, self._take, self._lost = workers, take, lost
        self._select, self._ranks = selectors.DefaultSelector(), selectors.DefaultSelector()
        self._next_poll = 0.0
        self._eager = False  # whether to process each message as it arrives
        for rank, sock in enumerate(workers.socks):
            self._ranks.register(sock, selectors.EVENT_READ, partial(self._from_rank, rank, sock, Frames()))
        self._listen_to(interrupts.wakes, interrupts.taken_in)
        self._listen_to(server.sock, server.read)
        self._listen_to(workers.wakeup, self._woken)
        for output in (*workers.out, *workers.err):
            self._listen_to(output.stream, partial(self._from_stream, output))

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: Any) -> None:
        self._workers.read()
        self._select.close()
        self._ranks.close()

    def hear(self, until: float) -> None:
        """Wait for the next message, until a time.monotonic() or the next poll, and process it."""
        for key, _ in self._select.select(max(0.0, min(until, self._next_poll) - time.monotonic())):
            key.data()
        if time.monotonic() >= self._next_poll:
            self.poll()

    def poll(self) -> None:
        """Process everything that the ranks have sent until now."""
        self._next_poll = time.monotonic() + POLL_SECONDS
        for key, _ in self._ranks.select(0):
            key.data()

    def catch_up(self) -> None:
        """Process everything that the ranks have sent until now, and from now on each message as it arrives."""
        self._be_eager()
        self.poll()

    def tell(self, message: Message) -> None:
        """Send every rank a message without blocking; bytes without room in its socket follow when there is room."""
        self._workers.tell(message)
        for rank, sock in enumerate(self._workers.socks):
            if not self._workers.push(rank):
                self._select.register(sock, selectors.EVENT_WRITE, partial(self._push, rank, sock))

    def _push(self, rank: int, sock: socket.socket) -> None:
        if self._workers.push(rank):
            self._select.unregister(sock)

    def _listen_to(self, source, on_readable: Callable[[], None]) -> None:
        self._select.register(source, selectors.EVENT_READ, on_readable)

    def _be_eager(self) -> None:
        """From now on, wake when a rank sends anything: it sends much, or the verdict needs it."""
        if not self._eager:
            self._eager = True
            self._listen_to(self._ranks, self.poll)

    def _woken(self) -> None:
        if not os.read(self._workers.wakeup, 1 << 12):
            self._select.unregister(self._workers.wakeup)  # all ranks have ended
        self.poll()

    def _from_stream(self, output: Output) -> None:
        if output.read() == b"":
            self._select.unregister(output.stream)

    def _from_rank(self, rank: int, sock: socket.socket, frames: Frames) -> None:
        try:
            data = sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self._ranks.unregister(sock)
            self._lost(rank)
            return
        for message in frames.feed(data):
            self._take(rank, message)
        if frames.partial:
            self._be_eager()


@contextmanager
def seldom_collected():
    """While entered, Python collects garbage less often: the ranks' messages are kept, and each pass traverses them."""
    threshold, *others = gc.get_threshold()
    if threshold:  # else it never looks
        gc.set_threshold(max(threshold, COLLECT_OBJECTS), *others)
    try:
        yield
    finally:
        gc.set_threshold(threshold, *others)
