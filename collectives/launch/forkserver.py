"""The kernel's end of the fork server, and of the ranks that it forks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import ExitStack, suppress
from typing import Callable, Hashable, Mapping, Sequence

from . import wire
from .wire import Message, Place, ProcessContext, RankSpec
from .workers import Patience, WorkerGroup

# Puts the server's memory into huge pages where Linux has them: a fork has fewer pages to map.
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
STANDBY_RANKS = 24  # on standby at most, in worker groups of the sizes used last: about 5 MB each
EXIT_SECONDS = 5.0  # for the server to end its ranks and itself, before it is killed
STDERR_BYTES = 1 << 14  # of the server's standard error in a message


class ForkServer:
    """The kernel's end of the process that its ranks are forked from.

    It can be used at once: requests wait in the socket until the process has loaded torch.
    A partly sent request is completed before the next one, so a wait for room may end
    at any moment without losing the connection.

    up: True once its reply that it has loaded torch has been read.
    born: time.perf_counter() of its start.
    """

    def __init__(self) -> None:
        self.owner, self.born, self.up, self._lost = os.getpid(), time.perf_counter(), False, False
        self._frames, self._unsent = wire.Frames(), bytearray()
        self._groups: weakref.WeakValueDictionary[int, LocalWorkers] = weakref.WeakValueDictionary()
        self._standby: dict[int, LocalWorkers] = {}  # by world size, the one used last at the end
        with ExitStack() as undo:
            # For the ranks' rendezvous. The kernel removes it if the server is killed, the server if the kernel is.
            self._folder = tempfile.mkdtemp(prefix="collectives-")
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            # A file, not a pipe: a pipe that nobody reads between two runs would block the server.
            self._stderr = undo.enter_context(tempfile.TemporaryFile())
            self.sock, theirs = socket.socketpair()
            undo.callback(self.sock.close)
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                f"from collectives.launch.server import main; main({theirs.fileno()}, {self._folder!r})"
            )
            # A separate session: Jupyter's interrupts and kills go to the kernel's group.
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    env={**os.environ, **HUGE_PAGES},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr,
                    start_new_session=True,
                )
            undo.pop_all()
        self.sock.setblocking(False)

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and not self._lost and self.process.poll() is None

    # Each raises ConnectionError once the server is gone.

    def read(self) -> None:
        """Read the server's replies; the worker group that a reply concerns keeps it."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._lost = True
            raise ConnectionResetError
        for reply in self._frames.feed(data):
            match reply:
                case wire.Up():
                    self.up = True
                case wire.Exited(group, rank, status) if workers := self._groups.get(group):
                    workers.exits[rank] = status
                case wire.Halted(group, rank, number) if workers := self._groups.get(group):
                    workers.halted[rank] = number
                case wire.Refused(group, rank, errno) if workers := self._groups.get(group):
                    workers.refused = rank, errno

    def request(self, message: Message, descriptors: list[int], patience: Patience) -> None:
        """Send a request with descriptors. Raise TimeoutError if there is no room for it within the limit."""
        self.flush(patience)
        data = wire.frame(message)
        head = data[: wire.HEADER_BYTES]  # the descriptors ride on its first bytes
        self._send(lambda: socket.send_fds(self.sock, [head], descriptors), patience)
        self._unsent += data[wire.HEADER_BYTES :]
        self.flush(patience)

    def post(self, message: Message) -> None:
        """Send a request, or as much of it as there is room for; flush() sends what is left."""
        self._unsent += wire.frame(message)
        with suppress(TimeoutError):
            self.flush(Patience())

    def flush(self, patience: Patience) -> None:
        """Send what is left of earlier requests. Raise TimeoutError if there is no room for it within the limit."""
        while self._unsent:
            del self._unsent[: self._send(lambda: self.sock.send(self._unsent), patience)]

    def _send(self, send: Callable[[], int], patience: Patience) -> int:
        """The return value of `send`, called until there is room."""
        while True:
            try:
                return send()
            except BlockingIOError:
                patience.wait_for(self.sock)
            except ConnectionError:
                self._lost = True
                raise

    def workers(
        self, world_size: int, context: ProcessContext, patience: Patience, new: bool, places: Sequence[Place] = ()
    ) -> LocalWorkers:
        """An unused worker group of that size: the one on standby, or a new one, always a new one with places."""
        workers = None if places else self._standby.pop(world_size, None)
        if workers and new:
            workers.end()
            workers = None
        if workers:
            return workers
        specs = [RankSpec(r, world_size, context, place=at) for r, at in enumerate(places or [Place()] * world_size)]
        return self.start(specs, patience)

    def start(self, specs: list[RankSpec], patience: Patience) -> LocalWorkers:
        """Fork ranks with these specs: all the ranks of a run, or the ones on this machine."""
        workers = LocalWorkers(self, specs, patience)
        self._groups[workers.number] = workers
        return workers

    def prepare(self, world_size: int, patience: Patience) -> None:
        """Put a worker group of that size on standby, in the background."""
        if world_size > STANDBY_RANKS:
            return
        self._standby[world_size] = self.workers(world_size, ProcessContext.here(), patience, new=False)
        while sum(self._standby) > STANDBY_RANKS:
            self._standby.pop(next(iter(self._standby))).end()

    def learn(self, modules: list[str]) -> None:
        """Have the server import modules that a rank had to import, so that the next ranks inherit them.

        DistributedDataParallel, for one, imports torch._dynamo, which takes a second.
        """
        self.post(wire.Preload(modules))

    def preload(self, modules: list[str], patience: Patience) -> None:
        """Have the server import modules, and replace the groups on standby, which lack them."""
        stale, self._standby = self._standby, {}
        for workers in stale.values():
            workers.end()
        self.learn(modules)
        for world_size in stale:
            self.prepare(world_size, patience)

    @property
    def computed(self) -> Mapping[Hashable, float]:
        """Seconds of processor time of each rank, by process. Empty if the system does not report it."""
        pid = self.process.pid
        computed: dict[Hashable, float] = {}
        with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as children:
            for child in map(int, children.read().split()):
                with suppress(OSError):  # it has ended
                    computed[child] = time.clock_gettime(~child << 3 | 2)  # man 3 clock_getcpuclockid
        return computed

    def last_words(self) -> tuple[int | None, str]:
        """The server's exit status, or minus a signal number, and the end of its standard error."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_SECONDS)  # its socket closes a little earlier
        stderr = self._stderr.fileno()
        start = max(0, os.fstat(stderr).st_size - STDERR_BYTES)
        return self.process.returncode, os.pread(stderr, STDERR_BYTES, start).decode(errors="replace").strip()

    def close(self, patience_seconds: float = EXIT_SECONDS) -> None:
        """End the server and every rank, by force after patience_seconds."""
        self.sock.close()
        for workers in self._standby.values():
            workers.end()
        if self.owner == os.getpid():  # else it is the server of the process this one was forked from
            try:
                self.process.wait(patience_seconds)
            except subprocess.TimeoutExpired:  # stopped, for example. On Linux its ranks are killed with it
                self.process.kill()
                self.process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
        self._stderr.close()


class LocalWorkers(WorkerGroup):
    """Ranks that a ForkServer has forked, see ranks.Workers."""

    def __init__(self, server: ForkServer, specs: list[RankSpec], patience: Patience) -> None:
        self.server = server
        self._reusable = specs[0].place == Place()  # whether ranks like these may be made in advance
        super().__init__(specs, patience)

    def _fork(self, spec: RankSpec, descriptors: list[int], patience: Patience) -> None:
        self.server.request(wire.Fork(self.number, spec), descriptors, patience)

    def _end_ranks(self) -> None:
        with suppress(OSError):  # the server is gone, and its ranks with it
            self.server.post(wire.Kill(self.number))

    def ask_for_stacks(self) -> None:
        """Have every rank write its Python stack to its err; this works in a loop and in a C++ wait too."""
        self.server.post(wire.DumpStacks(self.number))

    @property
    def computed(self) -> Mapping[Hashable, float]:
        return self.server.computed

    def prepare_successors(self, patience: Patience) -> None:
        if self._reusable:
            self.server.prepare(len(self.socks), patience)
            self.server.flush(patience)
