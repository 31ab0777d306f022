"""The ranks of one host, as the collector there sees them: their rings, and the connections that end when they do."""

import select
import selectors
import socket
import time
from contextlib import suppress
from functools import partial

from .exit_status import Process, this_host
from .pipe import Pipe
from .ring import RingReader
from .sockets import Listener, same_user

LOOK_SECONDS = 0.02  # between two looks at the rings
ARRIVE_SECONDS = 120.0  # for a first rank
LEFT_SECONDS = 10.0  # without any connection, though ranks are missing


class Local(Pipe):
    """A rank of this host.  number: None until it has sent it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.number: int | None = None
        self.process: Process | None = None  # until it has ended
        self.ring: RingReader | None = None

    def meet(self, about: dict) -> None:
        """Set its number, and open its ring."""
        self.number, self.ring = about["rank"], RingReader(self.descriptors.pop(0))

    def tell(self, what: dict) -> None:
        with suppress(OSError):  # its end will be read
            self.send(what)


class Host:
    """Reads the messages of this host's ranks, and sends them requests.  A subclass handles the messages.

    listener: where they connect.  count: how many they are.
    """

    def __init__(self, listener: Listener, count: int) -> None:
        self._listener, self._count = listener, count
        self.local: dict[int, Local] = {}  # by number, the ranks that have sent theirs
        self._select = selectors.DefaultSelector()
        self._select.register(listener, selectors.EVENT_READ, self._accept)
        self._connected = 0  # connections, and processes that have not ended
        self._here = this_host()
        self._quiet_since = time.monotonic()

    # Events of a rank; a subclass handles them.

    def arrived(self, rank: Local, about: dict) -> None:
        """A rank has introduced itself: its number, host, process, and second 0 of its times."""

    def told(self, number: int, piece: bytes, lost: bool) -> None:
        """A rank has written records.  lost: whether others before them are.

        An empty piece means damaged records. It's followed by one that can be read without the earlier ones.
        """

    def said(self, number: int, what: dict) -> None:
        """A rank has answered, or has come to its end, after all its records."""

    def cut(self, number: int) -> None:
        """The connection of a rank has ended, after all its records: `gone` follows once its process has, too."""

    def gone(self, number: int, status: int | None) -> None:
        """The process of a rank has ended: its exit code, or minus a signal's number; None if unknown on this host."""

    # The reading.

    def look(self) -> None:
        """Process everything that has come, or wait a little for something to come."""
        for key, _ in self._select.select(LOOK_SECONDS):
            key.data()
        for rank in self.local.values():
            self._read(rank)

    @property
    def is_over(self) -> bool:
        """Whether no rank is left."""
        if self._connected:
            return False
        return len(self.local) == self._count or self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """Whether there has been no connection for LEFT_SECONDS (before the first, ARRIVE_SECONDS): none will come."""
        return time.monotonic() - self._quiet_since > (LEFT_SECONDS if self.local else ARRIVE_SECONDS)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        if not same_user(sock):
            sock.close()
            return
        self._connected += 1
        self._select.register(sock, selectors.EVENT_READ, partial(self._receive, Local(sock)))

    def _receive(self, rank: Local) -> None:
        is_new = rank.number is None
        try:
            frames = rank.receive()
            if frames and is_new:
                rank.meet(about := frames.pop(0)[0])
        except (OSError, ValueError, LookupError, TypeError):  # it has ended, or this isn't a rank
            frames = None
        if is_new and rank.number is not None:
            self._meet(rank, about)
        for what, _ in frames or ():
            self._read(rank)
            self.said(rank.number, what)
        if frames is None or rank.has_ended:  # now, and not when it is next looked at: the first that ends is the cause
            self._close(rank)

    def _meet(self, rank: Local, about: dict) -> None:
        self.local[rank.number] = rank
        if len(self.local) == self._count:  # no other rank will come: its name is free for the next job
            self._select.unregister(self._listener)
            self._listener.remove()
        self.arrived(rank, about)
        if about["processes"] == self._here:
            with suppress(OSError):  # it may have ended
                rank.process = Process(about["pid"], next(iter(rank.descriptors), None))
                self._select.register(rank.process, selectors.EVENT_READ, partial(self._process_ended, rank))
                self._connected += 1

    def _read(self, rank: Local, is_over: bool = False) -> None:
        if rank.ring is not None:
            for piece, lost in rank.ring.read(is_over):
                self.told(rank.number, piece, lost)

    def _close(self, rank: Local) -> None:
        self._select.unregister(rank.sock)
        self._read(rank)
        rank.sock.close()
        self._connected -= 1
        self._quiet_since = time.monotonic()
        if rank.number is not None:
            self.cut(rank.number)
            if rank.process is None:
                self._gone(rank, None)

    def _process_ended(self, rank: Local) -> None:
        status, process = rank.process.status(), rank.process
        while rank.sock.fileno() >= 0 and select.select([rank.sock], [], [], 0)[0]:
            self._receive(rank)
        if rank.sock.fileno() >= 0:  # a process that it began has the connection, too
            self._close(rank)
        self._select.unregister(process)
        process.close()
        rank.process = None
        self._connected -= 1
        self._gone(rank, status)

    def _gone(self, rank: Local, status: int | None) -> None:
        self._read(rank, is_over=True)
        rank.ring.close()
        rank.ring = None
        self.gone(rank.number, status)
