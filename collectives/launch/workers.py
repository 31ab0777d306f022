"""The kernel's side of the ranks of one run: a socket and two output streams each."""

import itertools
import os
import select
import socket
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import Hashable, Iterator, Mapping, NamedTuple

from .wire import Message, RankSpec, frame

UNREAD_BYTES = 1 << 18  # bytes that a rank may be ahead of the kernel before it must wait
KEPT_OUTPUT_BYTES = 1 << 20  # bytes of a rank's printed output that are kept


class Patience(NamedTuple):
    """A limit on waiting for the server: a time, and a descriptor that becomes readable to end the wait."""

    until: float = 0.0  # by time.monotonic(). 0: no wait at all
    stop: int = -1  # the descriptor. -1: none

    def wait_for(self, sock: socket.socket) -> None:
        """Block until sock has room. Raise TimeoutError at the limit."""
        poll = select.poll()  # select() refuses descriptors from 1024 on
        poll.register(sock, select.POLLOUT)
        if self.stop >= 0:
            poll.register(self.stop, select.POLLIN)
        ready = poll.poll(max(0.0, self.until - time.monotonic()) * 1000)
        if not ready or any(descriptor == self.stop for descriptor, _ in ready):
            raise TimeoutError


class Output:
    """A rank's output to a stream: its beginning and its end, never more than KEPT_OUTPUT_BYTES."""

    def __init__(self, stream: int) -> None:
        os.set_blocking(stream, False)  # a stray process may hold the other end open forever
        self.stream = stream
        self._head, self._tail, self._lost = bytearray(), bytearray(), 0

    def read(self) -> bytes | None:
        """Read and keep what has arrived. Return it: None if there was nothing, b"" at the end of the stream."""
        try:
            data = os.read(self.stream, 1 << 18)
        except BlockingIOError:
            return None
        room = max(0, KEPT_OUTPUT_BYTES // 2 - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - KEPT_OUTPUT_BYTES // 2
        if excess > 0:
            del self._tail[:excess]
            self._lost += excess
        return data

    def __str__(self) -> str:
        middle = f"\n... {self._lost} bytes left out ...\n".encode() if self._lost else b""
        return (bytes(self._head) + middle + bytes(self._tail)).decode(errors="replace")


class WorkerGroup(ABC):
    """The kernel's ends of the ranks of one run, see ranks.Workers. A subclass starts and ends them."""

    _numbers = itertools.count()

    def __init__(self, specs: list[RankSpec], patience: Patience) -> None:
        self.number, self.context = next(self._numbers), specs[0].context
        self.socks: list[socket.socket] = []
        self.out: list[Output] = []
        self.err: list[Output] = []
        self.exits: dict[int, int | str] = {}
        self.halted: dict[int, int] = {}
        self.refused: tuple[int, int] | None = None
        self.born = time.perf_counter()
        self.hosts = len({spec.place.environ.get("GROUP_RANK") for spec in specs})
        self._unsent: dict[int, memoryview] = {}  # by rank
        self._ended = False
        self.wakeup, waking = os.pipe()  # readable when a rank has a message that the kernel waits for
        try:
            for spec in specs:
                self._start(spec, waking, patience)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(waking)

    def _start(self, spec: RankSpec, waking: int, patience: Patience) -> None:
        ours, theirs = socket.socketpair()
        self.socks.append(ours)  # after any failure from here on, end() closes it
        ours.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        with theirs, _stream(self.out) as out, _stream(self.err) as err:
            self._fork(spec, [theirs.fileno(), out, err, waking], patience)

    # A subclass implements:

    @abstractmethod
    def _fork(self, spec: RankSpec, descriptors: list[int], patience: Patience) -> None:
        """Start a rank. descriptors: its socket, stdout, stderr and the wake-up pipe, which the caller closes."""

    @abstractmethod
    def _end_ranks(self) -> None: ...

    @abstractmethod
    def ask_for_stacks(self) -> None: ...

    @property
    @abstractmethod
    def computed(self) -> Mapping[Hashable, float]: ...

    def prepare_successors(self, patience: Patience) -> None:
        """Do nothing: ranks are made in advance on this machine only."""

    # Common to all:

    def tell(self, message: Message) -> None:
        """Queue a message for every rank; push() sends it."""
        data = frame(message)
        for rank in range(len(self.socks)):
            self.queue(rank, data)

    def queue(self, rank: int, data: bytes) -> None:
        """Queue bytes for a rank, after those that have not been sent."""
        unsent = self._unsent.get(rank)
        self._unsent[rank] = memoryview(bytes(unsent) + data if unsent else data)

    def push(self, rank: int) -> bool:
        """Send a rank as much as its socket takes at once. Return whether nothing is left to send."""
        rest = self._unsent.pop(rank, memoryview(b""))
        try:
            rest = rest[self.socks[rank].send(rest) :]
        except BlockingIOError:
            pass
        except ConnectionError:
            return True  # it died; its exit status will arrive
        if rest:
            self._unsent[rank] = rest
        return not rest

    def read(self) -> None:
        """Read what is left in the ranks' output streams."""
        for output in (*self.out, *self.err):
            output.read()  # once gets all that a pipe holds (64 KiB), and a stray process may continue to write

    def end(self) -> None:
        """End the ranks and the processes that they started. They exit moments later."""
        if self._ended:
            return
        self._ended = True
        self._end_ranks()
        for output in (*self.out, *self.err):
            os.close(output.stream)
        for sock in self.socks:
            sock.close()
        os.close(self.wakeup)


@contextmanager
def _stream(outputs: list[Output]) -> Iterator[int]:
    """The writing end of a pipe, closed on exit; the reading end is added to outputs."""
    reading, writing = os.pipe()
    outputs.append(Output(reading))
    try:
        yield writing
    finally:
        os.close(writing)
