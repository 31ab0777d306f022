"""Ranks that are connected and wait for work: made in advance, used once.

The kernel's side of the server (server.py).  A crew is the ranks of one run.  Connecting
them is most of what a call costs, so after each run the next crew of that size is made in
the background, and the next call finds it ready.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from .wire import Birth, Frames, Surroundings, frame, send_with_descriptors

UNREAD = 1 << 18  # bytes that a rank may be ahead of the kernel before it must wait
KEPT_OUTPUT = 1 << 20  # bytes of a rank's printed output that are kept
# Puts the server's memory into huge pages where Linux has them: a fork has fewer pages to map.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
STANDBY_RANKS = 24  # kept waiting at most, in crews of the sizes used last: about 5 MB each


class Output:
    """What a rank wrote to a stream: its beginning and its end, never more than KEPT_OUTPUT."""

    def __init__(self, stream: int) -> None:
        os.set_blocking(stream, False)  # a stray process may hold the other end open for ever
        self.stream = stream
        self._head, self._tail, self._lost = bytearray(), bytearray(), 0

    def read(self) -> bool:
        """Takes in what there is to read now; False at the end of the stream."""
        return self._take() != b""

    def _take(self) -> bytes | None:
        """What there was to read now, taken in; None if there was nothing."""
        try:
            data = os.read(self.stream, 1 << 18)
        except BlockingIOError:
            return None
        room = max(0, KEPT_OUTPUT // 2 - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - KEPT_OUTPUT // 2
        if excess > 0:
            del self._tail[:excess]
            self._lost += excess
        return data

    def rest(self) -> None:
        """Takes in what is left, which is at most what a pipe holds."""
        for _ in range(4):
            if not self._take():
                break

    def close(self) -> None:
        if self.stream >= 0:
            os.close(self.stream)
            self.stream = -1

    def __str__(self) -> str:
        middle = f"\n... {self._lost} bytes left out ...\n".encode() if self._lost else b""
        return (bytes(self._head) + middle + bytes(self._tail)).decode(errors="replace")


class Crew:
    """The ranks of one run: a socket and two output streams each, and one bell for all."""

    _numbers = itertools.count()

    def __init__(self, server: Server, world_size: int) -> None:
        self.server, self.number = server, next(self._numbers)
        self.socks: list[socket.socket] = []
        self.out: list[Output] = []
        self.err: list[Output] = []
        self._ended = False
        self.surroundings = Surroundings.here()
        self.bell, ringing = os.pipe()  # readable when a rank has something to say that the kernel waits for
        try:
            for rank in range(world_size):
                self._start(Birth(rank, world_size, self.surroundings), ringing)
        except BaseException:
            self.end()
            raise
        finally:
            os.close(ringing)

    def _start(self, birth: Birth, ringing: int) -> None:
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
        self.socks.append(ours)
        out, out_end = os.pipe()
        self.out.append(Output(out))
        err, err_end = os.pipe()
        self.err.append(Output(err))
        try:
            send_with_descriptors(
                self.server.sock, ("fork", self.number, birth), [theirs.fileno(), out_end, err_end, ringing]
            )
        finally:
            theirs.close()
            os.close(out_end)
            os.close(err_end)

    def tell(self, message: Any) -> None:
        data = frame(message)
        for sock in self.socks:
            try:
                sock.sendall(data)
            except ConnectionError:
                pass  # it died; its exit is on the way

    def ask_where(self) -> None:
        """Has every rank write its Python stack to its err; it does even in a loop or a C++ wait."""
        self.server.sock.sendall(frame(("where", self.number)))

    def read(self) -> None:
        """Takes in what the ranks have written."""
        for output in (*self.out, *self.err):
            output.rest()

    def end(self) -> None:
        """Has the server end the ranks with all they started. They are gone moments later."""
        if self._ended:
            return
        self._ended = True
        try:
            self.server.sock.sendall(frame(("kill", self.number)))
        except OSError:
            pass  # the server is gone, and its ranks with it
        for output in (*self.out, *self.err):
            output.close()
        for sock in self.socks:
            sock.close()
        os.close(self.bell)


class ServerLost(RuntimeError):
    """The process that starts the ranks is gone."""


class Server:
    """The kernel's end of the process that its ranks are forked from.

    It is usable at once: requests wait in the socket until the process has loaded torch.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from helpers.server import main; main({theirs.fileno()})"
        )  # fmt: skip
        # A session of its own: Jupyter's interrupts and kills go to the kernel's group.
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **HUGE_PAGES},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        self.sock, self.frames, self.owner = ours, Frames(), os.getpid()
        self._standby: dict[int, Crew] = {}  # by world size, the one used last at the end
        self._up = False

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def replies(self) -> list[tuple]:
        """What the server has to say; waits for it. Raises ServerLost once the server is gone."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        if data:
            self._up = True
            return self.frames.feed(data)
        if self._up:
            raise ServerLost("the process that starts the ranks was ended from outside. Run the cell again.")
        words = self.process.stderr.read().decode(errors="replace").strip()
        raise RuntimeError(f"the process that starts the ranks ended at once. It said:\n{words}")

    def crew(self, world_size: int) -> Crew:
        """A crew of that size that nobody has used: one on standby, or a new one."""
        return self._standby.pop(world_size, None) or Crew(self, world_size)

    def prepare(self, world_size: int) -> None:
        """Puts a crew of that size on standby, in the background."""
        if world_size > STANDBY_RANKS:
            return
        self._standby[world_size] = self._standby.pop(world_size, None) or Crew(self, world_size)
        while sum(self._standby) > STANDBY_RANKS:
            self._standby.pop(next(iter(self._standby))).end()

    def learn(self, modules: list[str]) -> None:
        """Has the server import what a rank had to: the next ranks find it there.

        DistributedDataParallel, for one, imports torch._dynamo, which takes a second.
        """
        self.sock.sendall(frame(("import", modules)))

    def close(self) -> None:
        """Ends the server and every rank."""
        self.sock.close()
        for crew in self._standby.values():
            crew.end()
        if self.owner == os.getpid():  # else it is the server of the process this one was forked from
            self.process.stderr.close()
            self.process.wait()


_server: Server | None = None


def take(world_size: int) -> Crew:
    """A crew from this process's server, which is started when first needed and again if it was lost."""
    global _server
    for _ in range(2):
        if _server is None or not _server.alive:
            if _server is not None:
                _server.close()
            _server = Server()
        try:
            return _server.crew(world_size)
        except ConnectionError:
            _server.close()  # it was ended from outside, at this very moment
    raise RuntimeError("the process that starts the ranks is ended from outside whenever it starts")


def start_early(world_size: int = 4) -> None:
    """In a Jupyter kernel: starts the server now, and a first crew, so that the first call finds them ready.

    Nowhere else: a script may never call run, and the server imports this package too.
    """
    global _server
    ipython = sys.modules.get("IPython")
    if _server is None and ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        _server = Server()
        with suppress(ConnectionError):
            _server.prepare(world_size)


@atexit.register
def _stop() -> None:
    if _server is not None and _server.owner == os.getpid():
        _server.close()
