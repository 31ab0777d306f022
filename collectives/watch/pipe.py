"""Connections between a rank and the collector of its host, and between collectors: frames of JSON, with raw bytes."""

import json
import socket
import struct
import sys
import threading
from typing import Any, Sequence

_SIZES = struct.Struct("!II")
_MAX_RECEIVED = 1 << 20  # bytes that are received at once
CONNECT_SECONDS = 3.0  # for each address
# A host that is down sends no FIN: its kernel is asked after 5 s of silence, three times.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

Frame = tuple[dict[str, Any], bytes]


class Pipe:
    """A connection that carries frames, and that several threads may send on.

    descriptors: of files that the other side has handed over.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.descriptors: list[int] = []
        self._unread = bytearray()
        self._sending = threading.Lock()  # a frame that is larger than the room in the socket goes out in parts

    def send(self, what: dict, data: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        text = json.dumps(what).encode()
        frame = _SIZES.pack(len(text), len(data)) + text + data
        with self._sending:
            sent = socket.send_fds(self.sock, [frame], descriptors) if descriptors else 0
            self.sock.sendall(frame[sent:])

    def receive(self) -> list[Frame] | None:
        """The frames that have come to their ends; None once the connection has ended."""
        if self.sock.family == socket.AF_UNIX:
            data, descriptors, *_ = socket.recv_fds(self.sock, _MAX_RECEIVED, 2)
            self.descriptors += descriptors
        else:
            data = self.sock.recv(_MAX_RECEIVED)
        self._unread += data
        return self._whole() if data else None

    def _whole(self) -> list[Frame]:
        frames, at = [], 0
        while len(self._unread) - at >= _SIZES.size:
            text, data = _SIZES.unpack_from(self._unread, at)
            begin = at + _SIZES.size
            if len(self._unread) < begin + text + data:
                break
            at = begin + text + data
            frames.append((json.loads(self._unread[begin : begin + text]), bytes(self._unread[begin + text : at])))
        del self._unread[:at]
        return frames

    @property
    def unread(self) -> int:
        """Bytes of a frame that has not come to its end."""
        return len(self._unread)

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended, and everything sent through it has been received."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def reach(addresses: list[str], port: int) -> Pipe:
    """A connection to the first of these addresses that answers. Raises ConnectionError if none does."""
    for address in addresses:
        try:
            found = socket.create_connection((address, port), CONNECT_SECONDS)
            found.settimeout(None)
            alive(found)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Pipe(found)
        except OSError as error:
            last = error
    raise ConnectionError(f"{', '.join(addresses)}, port {port}: {last}")


def alive(sock: socket.socket) -> None:
    """Have the system notice when the host at the other end is down."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def say(words: str, by: str = "collectives.jobs: ") -> None:
    """To the job's standard error in one piece: unbuffered, print would let a rank come between text and line end."""
    print(f"{by}{words}\n", end="", file=sys.stderr, flush=True)
