"""How a rank and the kernel talk: length-prefixed pickles over a Unix socket.

Tensors travel as raw bytes (pickling.py), which is an order of magnitude cheaper than torch's own
pickle: captured ones always, those that a learner passes in and out if nothing is lost by it.
Nothing here needs torch: the kernel's server shall load it while the kernel does.
"""

from __future__ import annotations

import copy
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
from typing import TYPE_CHECKING, Hashable, NamedTuple, Union, get_args

from . import own

if TYPE_CHECKING:
    from ..record.event import Event, Failure, Line, Value

LOST = 97  # exit code of a rank that can no longer reach the kernel

_LENGTH = struct.Struct("!Q")
HEADER_BYTES = _LENGTH.size
_LARGE_MESSAGE = 1 << 16  # bytes


@dataclass
class ProcessContext:
    """What a function may find around it: the kernel's, so that it finds the same in a rank."""

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
        return cls(cwd, list(sys.path), dict(os.environ), own.folders)


class Place(NamedTuple):
    """The host that a rank runs on, and its place among the ranks there."""

    # Of a host made of namespaces (jobs/hosts.py), files of /proc that name them, in the order of entering them.
    namespaces: tuple[str, ...] = ()  # empty: the rank runs where it was forked
    environ: dict[str, str] = {}  # what torchrun would set differently on each host, and the network interface


class RankSpec(NamedTuple):
    """What the server tells a rank before it starts."""

    rank: int
    world_size: int
    context: ProcessContext
    rendezvous: str = ""  # of the store that the ranks of this run share: a file's path, or tcp://host:port/prefix
    place: Place = Place()


# --- messages -----------------------------------------------------------------------------
# From a rank to the kernel. A rank tells of each call before it makes it, so the kernel knows where
# every rank stands even when it hangs or dies. An index is an event's: 0-based, in call order.


class Ready(NamedTuple):
    """The rank is connected to its peers and waits for a Job."""


class Began(NamedTuple):
    """The rank has its Job: from here on the learner's function may be the reason if the process ends."""


class Called(NamedTuple):
    """The rank is about to make a call; or has made it and waited for it, if the event has an end."""

    event: Event


class Again(NamedTuple):
    """The rank is about to make a call that is like an earlier one."""

    like: Event
    index: int
    start: float
    step: int

    @property
    def event(self) -> Event:
        event = copy.copy(self.like)
        event.index, event.start, event.step = self.index, self.start, self.step
        return event


class Misused(NamedTuple):
    """The rank used a tensor of a call that it had not waited for."""

    index: int
    how: str  # "read", "written" or "viewed": a view was taken, which may be read at any later time
    line: Line | None


class NotFinite(NamedTuple):
    """Among what the rank passed in was a NaN or an infinity."""

    index: int


class Waiting(NamedTuple):
    """A thread of the rank waits for a call."""

    index: int
    since: float  # seconds since the run began
    limited: bool  # whether the wait ends by itself after some time
    thread: Hashable


class Resumed(NamedTuple):
    """The main thread, which waited inside C++, progresses again."""


class WorkBegan(NamedTuple):
    """Something beside the main thread may act: a thread, or what hangs on the future of a call."""

    work: Hashable
    index: int | None  # of the call it waits for


class WorkEnded(NamedTuple):
    """It acts no more."""

    work: Hashable


class Joining(NamedTuple):
    """The function has ended, and the rank waits for these threads, which it left."""

    threads: set[Hashable]


class Completed(NamedTuple):
    """A call is complete for this rank."""

    index: int
    after: Value
    end: float | None  # seconds since the run began; None: it was not complete when the function returned
    waited: bool
    src: int | None  # for a recv from anyone: the global rank it came from


class Issued(NamedTuple):
    """A call is in a device's stream, and the rank goes on: Completed follows if something shows its end."""

    index: int
    after: Value  # shapes and dtypes alone
    at: float  # seconds since the run began


class Started(NamedTuple):
    """A device has come to a call that was issued."""

    index: int


class Skipped(NamedTuple):
    """Some of what a rank told is lost. It has made so many calls, and so many of each lane, see Event.lane."""

    calls: int
    made: dict[tuple, int]
    works: set[Hashable]  # that have begun, and not ended
    complete: bool = True  # whether these are all the lanes it has made calls of


class Checked(NamedTuple):
    """The rank's parameters after a step of an optimizer."""

    optimizer: int  # 0-based, in the order of their first steps
    step: int  # steps that it has made
    checksum: int
    calls: int  # that the rank has made


class Grouped(NamedTuple):
    """The rank is about to call new_group, as all ranks have to; or, where there is a name, all members."""

    index: int  # 0-based: of the calls that all ranks have to make, those that made a group; or of the others
    ranks: tuple[int, ...]  # of the group, ascending
    line: Line | None
    name: str | None = None  # under which the members look for each other, with use_local_synchronization=True
    groups: int | None = None  # that the process is in, which the name depends on


class Ungrouped(NamedTuple):
    """The rank's call of new_group, one that only members have to make, has ended in an exception."""

    index: int


class Returned(NamedTuple):
    """The function has returned."""

    result: bytes  # packed
    moved: tuple[int | None, int | None]  # bytes (sent, received) by this rank's sockets
    traffic: dict | None  # by connection, see tcp.traffic
    imported: list[str]  # modules that were loaded meanwhile
    groups: int | None = None  # that it made, as all others have to; None: not known


class Counted(NamedTuple):
    """The sockets' bytes, counted again once all ranks had returned."""

    moved: tuple[int | None, int | None]


class Failed(NamedTuple):
    """The function, or the start of the rank, ended in an exception."""

    failure: Failure


# From the kernel to a rank.


class Job(NamedTuple):
    """What to run."""

    payload: bytes  # (fn, args, kwargs), packed by pack
    context: ProcessContext | None  # None: what they were when the rank was born
    began: float  # time.perf_counter() of the kernel when the run began
    whole: bool
    record: bool
    backend: str | None = None  # of the group that the function finds; None: gloo, by which the ranks are connected
    device: str | None = None  # kind of device on which it makes tensors; None: the CPU


class Recount(NamedTuple):
    """All have returned, but something was on its way when one of them counted its bytes: count them once more."""


# From the kernel to the server. A group is the number of a run's ranks.


class Fork(NamedTuple):
    """Fork a rank, to which the descriptors (socket, stdout, stderr, wake-up pipe) that come with this belong."""

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


class Refused(NamedTuple):
    """The system gave no process for a rank."""

    group: int
    rank: int
    errno: int


Message = Union[
    Ready, Began, Called, Misused, Waiting, Resumed, WorkBegan, WorkEnded, Joining, Completed, Issued, Returned,
    Counted, Failed, Job, Recount, Fork, Kill, DumpStacks, Preload, Up, Exited, Refused, Skipped, Checked,
    Again, Grouped, Ungrouped, NotFinite, Started,
]  # fmt: skip
MESSAGES: tuple[type, ...] = get_args(Message)
_CODES = {kind: code for code, kind in enumerate(MESSAGES)}  # shorter on the wire than a class's name


# --- framing ------------------------------------------------------------------------------


class Pickler(pickle.Pickler):
    dispatch_table = dict(copyreg.dispatch_table)


def frame(message: Message) -> bytes:
    """A message as it goes over the socket. Tensors in it must be plain and on the CPU."""
    buffer = io.BytesIO()
    buffer.write(b"\0" * _LENGTH.size)
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump((_CODES[type(message)], *message))
    with buffer.getbuffer() as view:
        _LENGTH.pack_into(view, 0, len(view) - _LENGTH.size)
    return buffer.getvalue()


def _message(data: bytes | memoryview) -> Message:
    code, *fields = pickle.loads(data)
    return MESSAGES[code](*fields)


class Frames:
    """Collects bytes as they come and hands out whole messages."""

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

    What is sent lies in the socket until the kernel looks, and outlives the rank.  Waking the
    kernel for each event made the recording of a small call take half as long again.
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
        with suppress(OSError):  # unsignalled, the kernel reads at its next poll
            os.write(self._wakeup, b"!")

    def quiet(self, seconds: float) -> bool:
        """Whether the kernel sends nothing for so long."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(seconds * 1000)

    def receive(self) -> Message:
        """The next message. Raises EOFError once the kernel is gone."""
        return receive_with_descriptors(self._sock, 0)[0]


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
