"""How a rank and the kernel talk: length-prefixed pickles over a Unix socket.

Tensors travel as raw bytes (memory.py), which is an order of magnitude cheaper than torch's own
pickle: captured ones always, those that a learner passes in and out if nothing is lost by it.
Nothing here needs torch: the kernel's server shall load it while the kernel does.
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
from collections import ChainMap
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, Callable, Iterable

import cloudpickle

_LENGTH = struct.Struct("!Q")
_LARGE_MESSAGE = 1 << 16  # bytes


@dataclass
class Surroundings:
    """What a function may find around it: the kernel's, so that it finds the same in a rank."""

    cwd: str
    path: list[str]  # sys.path
    environ: dict[str, str]

    @classmethod
    def here(cls) -> Surroundings:
        return cls(os.getcwd(), list(sys.path), dict(os.environ))


@dataclass
class Birth:
    """What the server tells a rank before it starts."""

    rank: int
    world_size: int
    surroundings: Surroundings
    rendezvous: str = ""  # path of the FileStore that the ranks of this run share


@dataclass
class Job:
    """What the kernel sends a rank to do."""

    payload: bytes  # (fn, args, kwargs), packed by pack
    surroundings: Surroundings | None  # None: what they were when the rank was born
    began: float  # time.perf_counter() of the kernel when the run began
    whole: bool
    record: bool


class _Pickler(pickle.Pickler):
    dispatch_table = dict(copyreg.dispatch_table)


class _Packer(cloudpickle.Pickler):
    dispatch_table = ChainMap({}, cloudpickle.Pickler.dispatch_table)


def pickle_by(kind: type, captured: Callable, passed: Callable) -> None:
    """How to take objects of a type apart: in frames, and in pack. As copyreg.pickle does for every pickle."""
    _Pickler.dispatch_table[kind] = captured
    _Packer.dispatch_table[kind] = passed


def frame(message: Any) -> bytes:
    """A message as it goes over the socket. Tensors in it must be plain and on the CPU."""
    buffer = io.BytesIO()
    buffer.write(b"\0" * _LENGTH.size)
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    view = buffer.getbuffer()
    _LENGTH.pack_into(view, 0, len(view) - _LENGTH.size)
    view.release()
    return buffer.getvalue()


class Frames:
    """Collects bytes as they come and hands out whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Any]:
        self._buffer += data
        messages, at = [], 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                messages.append(pickle.loads(view[at + _LENGTH.size : end]))
            at = end
        if at:
            del self._buffer[:at]
        return messages


class Channel:
    """The rank's end: blocking, and safe to send on from several threads.

    What is sent lies in the socket until the kernel looks, and outlives the rank.  Waking the
    kernel for each event made the recording of a small call take half as long again.
    """

    def __init__(self, sock: socket.socket, bell: int) -> None:
        self._sock, self._bell = sock, bell
        self._lock = threading.Lock()
        self._frames = Frames()

    def send(self, *message: Any) -> None:
        data = frame(message)
        with self._lock:
            if len(data) > _LARGE_MESSAGE:  # the socket may not hold it: to be read while it is written
                self._ring()
            self._sock.sendall(data)

    def announce(self, *message: Any) -> None:
        """Sends what the kernel waits for."""
        self.send(*message)
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # without the bell, it looks a moment later
            os.write(self._bell, b"!")

    def quiet(self, seconds: float) -> bool:
        """Whether the kernel sends nothing for so long."""
        return not select.select([self._sock], [], [], seconds)[0]

    def receive(self) -> Any:
        """The next message. Raises EOFError once the kernel is gone."""
        while True:
            data = self._sock.recv(1 << 20)
            if not data:
                raise EOFError("the kernel closed the connection")
            for message in self._frames.feed(data):
                return message  # the kernel never sends a second one before the first is used


def send_with_descriptors(sock: socket.socket, message: Any, descriptors: list[int]) -> None:
    data = frame(message)
    socket.send_fds(sock, [data[: _LENGTH.size]], descriptors)  # ride on the first bytes
    sock.sendall(data[_LENGTH.size :])


def receive_with_descriptors(sock: socket.socket, most: int) -> tuple[Any, list[int]]:
    """The next message and its descriptors. Raises EOFError once the other end is closed."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, most)
    head += _exactly(sock, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    return pickle.loads(_exactly(sock, length)), descriptors


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _submodules(code: CodeType, used: Iterable[Any]) -> list[ModuleType]:
    """The loaded modules that a function reaches through a package it uses: concurrent.futures through concurrent."""
    found = []

    def add_below(package: str) -> None:
        for name in code.co_names:
            if module := sys.modules.get(f"{package}.{name}"):
                found.append(module)
                add_below(module.__name__)

    for value in used:
        if isinstance(value, ModuleType) and value.__package__:
            add_below(value.__name__)
    return found


# cloudpickle's own looks through all loaded modules, and torch loads a thousand: most of what packing a function takes.
cloudpickle.cloudpickle._find_imported_submodules = _submodules


def pack(value: Any) -> bytes:
    """Functions, classes and objects of a notebook as bytes, by value where they must be."""
    buffer = io.BytesIO()
    _Packer(buffer).dump(value)
    return buffer.getvalue()


unpack = pickle.loads
