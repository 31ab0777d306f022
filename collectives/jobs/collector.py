"""The process that all ranks tell what they do: it writes the record, judges, and prints.

It runs on rank 0's host and outlives rank 0.  It only reads: no rank is ended or raised in by it.
"""

import argparse
import errno
import json
import select
import selectors
import signal
import socket
import time
from contextlib import closing, suppress
from functools import partial

from ..launch.source import innermost
from ..record.event import Line
from . import lines, words
from .ends import Process, here
from .judge import Judge
from .link import LineSocket, say
from .words import Where
from .writer import Writer

LOOK_SECONDS = 0.05  # between two looks at what follows
STACK_SECONDS = 0.3  # for the ranks to tell where they are
ARRIVE_SECONDS = 120.0  # for a first rank
LEFT_SECONDS = 10.0  # without any connection, though ranks are missing
GOES_ON_SECONDS = 10.0  # without its connection, until a process is taken to go on for good
DARK = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}  # how connections to a dark host end
HELLO_BYTES = 4096
# A host that is down sends no FIN: its kernel is asked after 5 s of silence, three times.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


def collect(listener: socket.socket, way: dict, world_size: int, folder: str, options: argparse.Namespace) -> None:
    """Collect until all ranks have ended. way: what the ranks know of this process, see Link. options: of watch.py."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with closing(Writer(folder, world_size, options.script, options.last, way["began"])) as writer:
        Collector(listener, way, world_size, writer, Judge(world_size, options.patience)).serve()


class _Rank(LineSocket):
    """A rank's connection, of which an error is the end."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.number: int | None = None  # not known until its first line
        self.where: Where | None = None
        self.ended = False  # it has told all
        self.error: int | None = None  # what ended the connection, an errno
        self.process: Process | None = None  # of this host, until it has ended
        self.cut_at: float | None = None  # time.monotonic() since which it is not known how its process ended

    def receive(self) -> list[bytes] | None:
        try:
            return super().receive()
        except OSError as error:
            self.error = error.errno
            return None

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended, and all that came through it has been received."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, what: dict) -> None:
        with suppress(OSError):  # its end will be read
            super().send(what)


class Collector:
    """All ranks' connections, the record, and the judge."""

    def __init__(self, listener: socket.socket, way: dict, world_size: int, writer: Writer, judge: Judge) -> None:
        self._listener, self._token, self._size, self._began = listener, way["token"], world_size, way["began"]
        self._writer, self._judge = writer, judge
        self._ranks: dict[int, _Rank] = {}  # those that have said who they are
        self._select = selectors.DefaultSelector()
        self._select.register(listener, selectors.EVENT_READ, self._accept)
        self._asked: float | None = None  # until when to wait for stacks
        self._finished = False  # it has been said how much was recorded
        self._quiet_since = time.monotonic()
        self._here = here()

    def serve(self) -> None:
        looked = 0.0
        while not self._over:
            for key, _ in self._select.select(LOOK_SECONDS):
                key.data()
            if time.monotonic() - looked > LOOK_SECONDS:
                looked = time.monotonic()
                self._writer.flush()
                self._look()
        if not self._finished:
            self._finish()

    @property
    def _over(self) -> bool:
        if len(self._select.get_map()) > 1:  # connections and processes beside the listener
            return False
        if len(self._ranks) == self._size:
            return True
        return time.monotonic() - self._quiet_since > (LEFT_SECONDS if self._ranks else ARRIVE_SECONDS)

    # --- connections ----------------------------------------------------------------------

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        rank = _Rank(sock)
        self._select.register(sock, selectors.EVENT_READ, partial(self._read, rank))

    def _read(self, rank: _Rank) -> None:
        arrived = rank.receive()
        if arrived is None or rank.number is None and not self._known(rank, arrived):
            self._close(rank)
            return
        for line in arrived:
            if line.startswith(b"{"):
                self._said(rank, json.loads(line))
            else:
                self._take(rank, line)
        if rank.has_ended:  # now, and not when it is next looked at: of ranks that end, the first is the cause
            self._close(rank)

    def _known(self, rank: _Rank, arrived: list[bytes]) -> bool:
        """Whether a new connection is a rank's: its first line has the token. It may not be there yet."""
        if not arrived:
            return len(rank.unread) < HELLO_BYTES
        try:
            hello = json.loads(arrived.pop(0))
            if hello["token"] != self._token or hello["rank"] in self._ranks:
                return False
            rank.number, rank.where = hello["rank"], Where(hello["host"], hello["pid"])
        except (ValueError, KeyError, TypeError):
            return False
        self._ranks[rank.number] = rank
        self._judge.arrived(rank.number)
        if hello.get("processes") == self._here:
            with suppress(OSError):  # it may have ended
                rank.process = Process(hello["pid"])
                self._select.register(rank.process, selectors.EVENT_READ, partial(self._process_ended, rank))
        self._writer.arrived(rank.number, hello["host"], hello["pid"])
        rank.send({"welcome": True})
        if len(self._ranks) == self._size:
            hosts = len({r.where.host for r in self._ranks.values()})
            say(f"records {self._size} ranks on {hosts} host{'s' * (hosts > 1)} in {self._writer.folder}")
        return True

    def _close(self, rank: _Rank) -> None:
        self._select.unregister(rank.sock)
        rank.sock.close()
        self._quiet_since = time.monotonic()
        if rank.number is not None:
            rank.where.connected = False
            rank.cut_at = time.monotonic()
            if rank.error in DARK:
                self._judge.dark(rank.where.host, self._of_host(rank.where.host))
            if rank.process is None:
                self._ended(rank, None)

    def _process_ended(self, rank: _Rank) -> None:
        """The process of a rank has ended: what it had told before may still have to be read."""
        status, process = rank.process.status(), rank.process
        while rank.where.connected and select.select([rank.sock], [], [], 0)[0]:
            self._read(rank)
        if rank.where.connected:  # a process that it began has the connection, too
            self._close(rank)
        self._select.unregister(process)
        process.close()
        rank.process = None
        self._ended(rank, status)

    def _ended(self, rank: _Rank, status: int | None) -> None:
        self._judge.ended(rank.number, rank.cut_at, status)
        rank.cut_at = None

    def _of_host(self, host: str) -> set[int]:
        return {number for number, rank in self._ranks.items() if rank.where.host == host}

    def _said(self, rank: _Rank, what: dict) -> None:
        """Answer what is no line of the record."""
        if "ping" in what:
            rank.send({"pong": [what["ping"], time.perf_counter()]})
        elif "stack" in what:
            rank.where.stack = tuple(Line(*line) for line in what["stack"])
            self._judge.locate(rank.number, *innermost(reversed(rank.where.stack)))
        elif "end" in what:
            if sum(r.ended for r in self._ranks.values()) == self._size - 1:
                self._finish()
            rank.ended = True
            self._writer.flush()
            rank.send({"bye": True})

    def _take(self, rank: _Rank, line: bytes) -> None:
        number, messages = lines.read(line)
        if number != rank.number:
            raise ValueError(f"rank {rank.number} speaks for rank {number}")
        self._writer.add(number, line, messages)
        for message in messages:
            self._judge.take(number, message)

    # --- verdicts -------------------------------------------------------------------------

    def _look(self) -> None:
        cut = [rank for rank in self._ranks.values() if rank.process and rank.cut_at is not None and not rank.ended]
        if cut and time.monotonic() < min(rank.cut_at for rank in cut) + GOES_ON_SECONDS:
            return  # how they end will be known soon
        for rank in cut:
            self._judge.blind()
            rank.cut_at = None
            say(f"rank {rank.number} is not recorded any more: it closed its connection. Training goes on.")
        if not self._judge.is_due:
            self._asked = None
            return
        if self._asked is None:
            self._asked = time.monotonic() + STACK_SECONDS
            for rank in self._ranks.values():
                rank.where.stack = None
                if rank.where.connected:
                    rank.send({"stack": True})
        awaited = [r for r in self._ranks.values() if r.where.connected and r.where.stack is None and not r.ended]
        if not awaited or time.monotonic() > self._asked:
            self._asked = None
            self._announce()

    def _announce(self) -> None:
        if verdict := self._judge.conclude():
            text = words.told(verdict, {number: rank.where for number, rank in self._ranks.items()})
            self._writer.verdict(text)
            say(text, by="")

    def _finish(self) -> None:
        self._finished = True
        self._judge.nothing_more()
        self._announce()
        say(self._writer.summary(time.perf_counter() - self._began))
