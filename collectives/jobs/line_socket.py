"""What a rank and the collector both need: a connection that carries lines, and a way to print one."""

import json
import socket
import sys


class LineSocket:
    """A connection that carries lines: of a record, or a JSON object each."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unread = b""  # the beginning of a line

    def send(self, what: dict) -> None:
        self.sock.sendall(json.dumps(what).encode() + b"\n")

    def receive(self) -> list[bytes] | None:
        """The lines that have come to their ends, of at most 256 KiB; None once the connection has ended."""
        data = self.sock.recv(1 << 18)
        *lines, self.unread = (self.unread + data).split(b"\n")
        return lines if data else None


def say(words: str) -> None:
    write(f"collectives.jobs: {words}")


def write(text: str) -> None:
    """To the job's standard error in one piece: unbuffered, print would let a rank come between text and line end."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
