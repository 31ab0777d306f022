"""The protocol between a rank and the kernel: length-prefixed pickles over a Unix socket.

Tensors travel as raw bytes (pickling.py), which is an order of magnitude cheaper than torch's own
pickle: captured ones always, those that a learner passes in and out if nothing is lost by it.
Nothing here needs torch, so the kernel's server can load it while the kernel does.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import select
import socket
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Union, get_args

from ..log import messages as log
from ..rank import own

_LENGTH = struct.Struct("!Q")
HEADER_BYTES = _LENGTH.size
_LARGE_MESSAGE = 1 << 16  # bytes


@dataclass
class ProcessContext:
    """The process state that a function may depend on: the kernel's, so that a rank's is the same."""

    cwd: str
    path: list[str]  # sys.path
    environ: dict[str, str]
    own: tuple[str, ...]  # folders whose code passes calls on

    @classmethod
    def here(cls) -> ProcessContext:
        try:
            cwd = os.getcwd()
        except FileNotFoundError as error:
            words = "the folder that this program works in is gone. Go to another one with os.chdir(), or start there"
            raise FileNotFoundError(error.errno, words) from None
        there = {k: v for k in os.environ if (v := os.environ.get(k)) is not None}  # dict() fails if one goes meanwhile
        return cls(cwd, list(sys.path), there, own.folders)


class Place(NamedTuple):
    """The host that a rank runs on, and its place among the ranks there."""

    # Files of /proc that name the namespaces of a host (remote/hosts.py), in the order of entering them.
    namespaces: tuple[str, ...] = ()  # empty: the rank runs where it was forked
    environ: dict[str, str] = {}  # variables that torchrun sets differently on each host, and the network interface
    fresh: bool = False  # whether it runs in a Python of its own, with its own hash seed, rather than in a fork


class RankSpec(NamedTuple):
    """A rank's parameters, which the server passes to it before it starts."""

    rank: int
    world_size: int
    context: ProcessContext
    rendezvous: str = ""  # of the store that the ranks of this run share: a file's path, or tcp://host:port/prefix
    place: Place = Place()


# --- commands, which travel besides the log: from a rank to the kernel --------------------


class Ready(NamedTuple):
    """The rank is connected to its peers and waits for a Job."""


class Counted(NamedTuple):
    """The sockets' bytes, counted again once all ranks had returned."""

    moved: tuple[int | None, int | None]


# From the kernel to a rank.


class Job(NamedTuple):
    """The function to run, with its settings."""

    payload: bytes  # (fn, args, kwargs), packed by pack
    context: ProcessContext | None  # None: what they were when the rank was born
    began: float  # time.perf_counter() of the kernel when the run began
    whole: bool
    record: bool
    backend: str | None = None  # of the group that the function finds; None: gloo, by which the ranks are connected
    device: str | None = None  # kind of device on which it makes tensors; None: the CPU


class Recount(NamedTuple):
    """All have returned, but something was in flight when one of them counted its bytes: count them once more."""


# From the kernel to the server. A group is the number of a run's ranks.


class Fork(NamedTuple):
    """Fork a rank, which gets the descriptors that come with this (socket, stdout, stderr, wake-up pipe)."""

    group: int
    spec: RankSpec


class Kill(NamedTuple):
    """End all ranks of a group, with everything they started."""

    group: int


class DumpStacks(NamedTuple):
    """Have the ranks of a group write their Python stacks to their standard error."""

    group: int


class Preload(NamedTuple):
    """Import modules, for the ranks to come."""

    modules: list[str]


# From the server to the kernel.


class Up(NamedTuple):
    """The server has loaded torch."""


class Exited(NamedTuple):
    """A rank's process has ended."""

    group: int
    rank: int
    status: int  # as from os.waitstatus_to_exitcode


class Halted(NamedTuple):
    """A rank's process was stopped by a signal, which nothing but another can undo."""

    group: int
    rank: int
    signal: int


class Refused(NamedTuple):
    """The system gave no process for a rank."""

    group: int
    rank: int
    errno: int


Command = Ready | Counted | Job | Recount | Fork | Kill | DumpStacks | Preload | Up | Exited | Halted | Refused
Message = Union[log.Message, Command]
MESSAGES: tuple[type, ...] = get_args(Message)
_CODES = {kind: code for code, kind in enumerate(MESSAGES)}  # shorter on the wire than a class's name


# --- framing ------------------------------------------------------------------------------


class Pickler(pickle.Pickler):
    dispatch_table = dict(copyreg.dispatch_table)


def frame(message: Message) -> bytes:
    """A message as bytes for the socket. Its tensors must be plain and on the CPU."""
    buffer = io.BytesIO()
    buffer.write(b"\0" * _LENGTH.size)
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump((_CODES[type(message)], *message))
    with buffer.getbuffer() as view:
        _LENGTH.pack_into(view, 0, len(view) - _LENGTH.size)
    return buffer.getvalue()


def _message(data: bytes | bytearray | memoryview) -> Message:
    code, *fields = pickle.loads(data)
    return MESSAGES[code](*fields)


class Frames:
    """Collects bytes as they arrive and returns complete messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages, at = [], 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                messages.append(_message(view[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return messages


class Channel:
    """The rank's end: blocking, and safe to send on from several threads.

    Messages wait in the socket until the kernel polls it, and outlive the rank.  Waking the
    kernel for each event made the recording of a small call take 50% longer.
    """

    def __init__(self, sock: socket.socket, wakeup: int) -> None:
        self._sock, self._wakeup, self._lock = sock, wakeup, threading.Lock()

    def send(self, message: Message) -> None:
        data = frame(message)
        with self._lock:
            if len(data) > _LARGE_MESSAGE:  # the socket may not hold it: to be read while it is written
                self._wake()
            self._sock.sendall(data)

    def announce(self, message: Message) -> None:
        """Sends what the kernel waits for."""
        self.send(message)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # without a signal, the kernel reads at its next poll
            os.write(self._wakeup, b"!")

    def quiet(self, seconds: float) -> bool:
        """Whether the kernel sends nothing for this time."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(seconds * 1000)

    def receive(self) -> Message:
        """The next message. Raises EOFError once the kernel is gone."""
        try:
            return receive_with_descriptors(self._sock, 0)[0]
        except ConnectionResetError:  # it had not read all that this rank has sent
            raise EOFError from None


def receive_with_descriptors(sock: socket.socket, most: int) -> tuple[Message, list[int]]:
    """The next message and the descriptors that came on its first bytes: fewer if this process may open no more.

    Raises EOFError once the other end is closed.
    """
    head, descriptors, _, _ = socket.recv_fds(sock, HEADER_BYTES, most)
    head += _exactly(sock, HEADER_BYTES - len(head)) if head else b""
    if not head:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    return _message(_exactly(sock, length)), descriptors


def _exactly(sock: socket.socket, count: int) -> bytearray:
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return data
