"""An engine's side: a process on some machine that starts ranks there and forwards their messages and output.

The ranks are forked from the engine's own server, as the notebook's are, so each call has fresh ones, and
the engine survives any failure of theirs.  No function here waits for a rank: the notebook asks again.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from functools import cache
from typing import Hashable, Mapping, NamedTuple

from ..launch.forkserver import LocalWorkers
from ..launch.pool import server
from ..launch.wire import ProcessContext, RankSpec
from ..launch.workers import Patience

ANSWER_SECONDS = 0.02  # in which a rank may still send something
MAX_ANSWER_BYTES = 1 << 24
START_SECONDS = 30.0  # for the fork server to have room for a request
SIOCGIFADDR = 0x8915  # Linux's
_ranks: dict[str, LocalWorkers] = {}  # of one rank each


class EngineHost(NamedTuple):
    """An engine's machine."""

    host: str
    address: str  # of the network interface that its ranks use; "" if others can reach no interface
    interface: str
    clock: float  # its time.perf_counter()


class Reply(NamedTuple):
    """A rank's messages and output since the last request."""

    data: bytes = b""  # of its messages
    out: bytes = b""
    err: bytes = b""
    ended: bool = False  # nothing more will come
    status: int | str | None = None  # its exit status
    refused: int | None = None  # the errno, if the system gave no process for it
    computed: Mapping[Hashable, float] = {}  # CPU seconds, by process of this engine


def describe() -> EngineHost:
    interface, address = _interface()
    return EngineHost(socket.gethostname(), address, interface, time.perf_counter())


def open_store() -> int:
    """The port of this engine's TCPStore, by which the ranks of a run find each other."""
    return _store().port


@cache
def _store():
    from torch.distributed import TCPStore  # only one engine needs torch itself

    return TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)


def start(number: str, spec: RankSpec) -> Reply:
    """Fork a rank, in this process's context."""
    spec = spec._replace(context=ProcessContext.here())
    _ranks[number] = server().start([spec], Patience(time.monotonic() + START_SECONDS))
    return Reply()


def exchange(number: str, data: bytes, stack: bool) -> Reply:
    """Send a rank these bytes, and return its messages and output: at once if there are any, or a little later.

    stack: have the rank write its stack.
    """
    rank = _ranks[number]
    if stack:
        rank.ask_for_stacks()
    rank.queue(0, data)
    rank.push(0)
    out, err = rank.out[0].stream, rank.err[0].stream
    poll = select.poll()
    for source in (rank.socks[0], rank.wakeup, out, err, rank.server.sock):
        poll.register(source, select.POLLIN)
    poll.poll(ANSWER_SECONDS * 1000)
    rank.server.read()
    said, ended = _receive(rank.socks[0])
    status, refused = next(iter(rank.exits.values()), None), rank.refused and rank.refused[1]
    return Reply(said, read_now(out), read_now(err), ended, status, refused, rank.computed)


def end(number: str) -> None:
    """End a rank."""
    if rank := _ranks.pop(number, None):
        rank.end()


def _receive(sock: socket.socket) -> tuple[bytes, bool]:
    """The bytes that a rank has sent, and whether its connection has ended."""
    data = bytearray()
    try:
        while len(data) < MAX_ANSWER_BYTES:
            if not (part := sock.recv(1 << 20)):
                return bytes(data), True
            data += part
    except BlockingIOError:
        pass
    except ConnectionError:
        return bytes(data), True
    return bytes(data), False


def read_now(descriptor: int) -> bytes:
    """Read what is available from a non-blocking descriptor."""
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return b""


def _interface() -> tuple[str, str]:
    """Name and address of the interface that others reach this machine by: gloo's own choice, or GLOO_SOCKET_IFNAME."""
    told = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if told and told != "lo":
        return told, _address_of(told)
    address = "127.0.0.1"
    with suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        return "", ""
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), ""), address


def _address_of(interface: str) -> str:
    if sys.platform != "linux":
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket, suppress(OSError):
        answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return ""
