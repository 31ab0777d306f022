"""What really went over the wire, counted by the operating system.

Linux keeps, for every TCP connection, how many bytes went out and came in; a process may
read that of its own sockets (TCP_INFO, man 7 tcp).  It is a second count beside the
recorded events, independent of everything torch and this package believe they did.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

# Offsets in struct tcp_info, /usr/include/linux/tcp.h: u64 fields after the u32 block.
_BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS = 128, 200, 208
_SIZE = 232


def traffic() -> tuple[int, int] | None:
    """Bytes (sent, received) so far by all TCP connections of this process; None off Linux."""
    if sys.platform != "linux":
        return None
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.type != socket.SOCK_STREAM or sock.family == socket.AF_UNIX:
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
        except OSError:
            continue  # closed meanwhile, or listening
        if len(info) < _SIZE:
            return None  # a kernel before 4.19 does not count bytes sent
        (out,) = struct.unpack_from("Q", info, _BYTES_SENT)
        (again,) = struct.unpack_from("Q", info, _BYTES_RETRANS)
        (came,) = struct.unpack_from("Q", info, _BYTES_RECEIVED)
        sent, received = sent + out - again, received + came
    return sent, received
