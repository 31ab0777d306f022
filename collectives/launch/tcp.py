"""The bytes that really went over the wire, counted by the operating system.

Linux counts the bytes that every TCP connection sends and receives; a process may read the
counters of its own sockets (TCP_INFO, man 7 tcp).  This second count, besides the recorded
events, is independent of everything torch and this package believe they did.
"""

import os
import socket
import struct
import sys
from typing import Iterable

# tcpi_bytes_received, _sent and _retrans of struct tcp_info in /usr/include/linux/tcp.h, at 128, 200 and 208.
_COUNTERS = struct.Struct("=128xQ64xQQ16x")

TcpCounters = dict[tuple[tuple, tuple], tuple[int, int]]  # (own address, the other's) -> bytes (sent, received)


def traffic() -> TcpCounters | None:
    """The bytes that each TCP connection of this process has carried so far; None off Linux."""
    if sys.platform != "linux":
        return None
    carried = {}
    for name in os.listdir("/proc/self/fd"):
        try:  # the family is not looked up, which takes long: as IPv6 it has room for either's addresses
            sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, int(name))
        except OSError:
            continue  # no socket, or closed meanwhile
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS.size)
            ends = sock.getsockname(), sock.getpeername()
        except OSError:
            continue  # not TCP, or listening
        finally:
            sock.detach()
        if len(info) < _COUNTERS.size:
            return None  # a kernel before 4.19 does not count bytes sent
        came, out, again = _COUNTERS.unpack(info)
        carried[ends] = out - again, came
    return carried


def moved(before: TcpCounters | None, after: TcpCounters | None) -> tuple[int | None, int | None]:
    """Bytes (sent, received) between two counts; None where they are not counted."""
    if before is None or after is None:
        return None, None
    return tuple(sum(c[k] for c in after.values()) - sum(c[k] for c in before.values()) for k in (0, 1))


def arrived(everyone: Iterable[TcpCounters | None]) -> bool:
    """Whether everything that was sent has been received, if each rank has counted once.

    If not, bytes may be in flight, or may have been when the first rank counted: they must count again.
    """
    ends = {pair: counted for carried in everyone if carried for pair, counted in carried.items()}
    return all(ends.get((there, here)) == (received, sent) for (here, there), (sent, received) in ends.items())
