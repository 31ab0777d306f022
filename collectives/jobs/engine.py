"""What happens on an engine: a process on some machine that starts ranks there and passes on what they say.

The ranks are forked from a server of the engine's own, as the notebook's are, so each call has fresh ones, and
the engine outlives whatever becomes of them.  No function here waits for a rank: the notebook asks again.
"""

import os
import select
import socket
import struct
import sys
import time
from typing import Any, NamedTuple

from ..launch.pool import server
from ..launch.workers import Patience, WorkerGroup
from ..rank.protocol import Place, ProcessContext, RankSpec

ANSWER_SECONDS = 0.02  # in which a rank may still say something
MAX_ANSWER_BYTES = 1 << 24
START_SECONDS = 30.0  # for the fork server to have room for a request


class About(NamedTuple):
    """An engine's machine."""

    host: str
    address: str  # of the network interface that its ranks use; "" if there is none that others can reach
    interface: str
    clock: float  # its time.perf_counter()


class Heard(NamedTuple):
    """What a rank has said since it was asked last."""

    data: bytes  # of its messages
    out: bytes
    err: bytes
    ended: bool  # nothing more will come
    status: int | None  # its exit status
    refused: tuple[int, int] | None  # as WorkerGroup has it


def perform(name: str, *args: Any) -> Any:
    """Call one of the functions below."""
    return FUNCTIONS[name](*args)


def about() -> About:
    interface, address = _interface()
    return About(socket.gethostname(), address, interface, time.perf_counter())


def open_store() -> int:
    """The port of this engine's TCPStore, by which the ranks of a run find each other."""
    from torch.distributed import TCPStore  # only one engine needs torch itself

    global _store
    _store = _store or TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    return _store.port


def start(number: str, rank: int, world_size: int, rendezvous: str, environ: dict[str, str]) -> None:
    """Have a rank forked."""
    spec = RankSpec(rank, world_size, ProcessContext.here(), rendezvous, Place((), environ))
    _ranks[number] = server().start([spec], Patience(time.monotonic() + START_SECONDS))


def exchange(number: str, data: bytes) -> Heard:
    """Send a rank these bytes, and return what it has said; at once if there is something, or a little later."""
    rank = _ranks[number]
    rank.queue(0, data)
    rank.push(0)
    sources = [rank.socks[0], rank.wakeup, rank.out[0].stream, rank.err[0].stream, rank.server.sock]
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    poll.poll(ANSWER_SECONDS * 1000)
    rank.server.read()
    said, ended = _received(rank.socks[0])
    status = next(iter(rank.exits.values()), None)
    return Heard(said, _read(rank.out[0].stream), _read(rank.err[0].stream), ended, status, rank.refused)


def stacks(number: str) -> None:
    """Have a rank write its stack."""
    _ranks[number].ask_for_stacks()


def end(number: str) -> None:
    """End a rank."""
    if rank := _ranks.pop(number, None):
        rank.end()


FUNCTIONS = {f.__name__: f for f in (about, open_store, start, exchange, stacks, end)}

_ranks: dict[str, WorkerGroup] = {}
_store = None


def _received(sock: socket.socket) -> tuple[bytes, bool]:
    parts, size = [], 0
    while size < MAX_ANSWER_BYTES:
        try:
            part = sock.recv(1 << 20)
        except BlockingIOError:
            return b"".join(parts), False
        except ConnectionError:
            part = b""
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
    return b"".join(parts), False


def _read(stream: int) -> bytes:
    try:
        return os.read(stream, 1 << 16)
    except BlockingIOError:
        return b""


def _interface() -> tuple[str, str]:
    """Name and address of the interface that others reach this machine by: gloo's own choice, or what it is told."""
    told = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if told and told != "lo":
        return told, _address_of(told)
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "", ""
    if address.startswith("127."):
        return "", ""
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), ""), address


def _address_of(interface: str) -> str:
    if sys.platform != "linux":
        return ""
    import fcntl

    SIOCGIFADDR = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
