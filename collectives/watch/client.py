"""A rank's client of its host's collector: it writes messages into a ring, and hands that over as soon as it can.

Writing to the ring needs no other process.  A thread waits to be asked for the rank's stack.  Whatever happens to the
collector, training continues: a rank that cannot reach it prints one line, and is not recorded from there on.
"""

import _thread
import errno
import hashlib
import os
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any, Callable

from ..log.messages import Message
from .exit_status import this_host
from .message_encoder import MessageEncoder
from .pipe import Pipe, say
from .ring import RingWriter
from .sockets import Listener, Untrusted, connect

SEGMENT_BYTES = 1 << 19  # of a rank's ring
VALUES_SEGMENT_BYTES = 1 << 23  # if it records values
FIND_SECONDS = 60.0  # for the collector to be there
START_SECONDS = 5.0  # that the script waits for the connection, so that a rank that dies at once leaves a trace
END_SECONDS = 5.0  # for the collector to have read the last record
TAKEN_SECONDS = 15.0  # that the collector of an earlier job may take to end
RETRY_SECONDS = 0.02
# Frames that no stack shows: this package's, and runpy's, which isn't frozen before Python 3.11.
_HIDDEN = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep, "<frozen runpy", os.path.join(os.path.dirname(os.__file__), "runpy.py"),
)  # fmt: skip


def name() -> str:
    """The name under which the collector of this rank's host listens: each restart of the ranks has its own collector."""
    environ = os.environ
    names = "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
    job = [os.getuid(), first_rank(), *map(environ.get, names)]
    return "collectives-" + hashlib.sha256(repr(job).encode()).hexdigest()[:24]


def first_rank() -> int:
    """The first rank of this host. If the launcher numbers no ranks within a host, each rank counts as its own host."""
    return int(os.environ["RANK"]) - int(os.environ.get("LOCAL_RANK", 0))


def listener(count: int) -> Listener:
    """The listener by which `count` ranks of this host find their collector. Raises OSError if there is one already."""
    deadline = time.monotonic() + TAKEN_SECONDS
    while True:
        try:
            return Listener(name(), count)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)  # an earlier job with the same port is about to end


class Client:
    """A rank's connection to the collector: it sends messages, and answers requests.

    rank: global.  began: time.perf_counter() from which messages count their seconds.  values: whether it sends any.
    """

    def __init__(self, rank: int, began: float, values: bool) -> None:
        self._rank, self._began = rank, began
        self._ring = RingWriter(VALUES_SEGMENT_BYTES if values else SEGMENT_BYTES)
        self._teller = MessageEncoder(self._ring, rank, values)
        self._over = False  # the script has ended
        self._up, self._ended = threading.Event(), threading.Event()
        self._pipe: Pipe | None = None
        self.before_stack: Callable[[], None] = lambda: None  # called before this rank's stack is sent
        self._main = threading.main_thread().ident
        os.register_at_fork(after_in_child=self._in_child)
        _thread.start_new_thread(self._run, ())
        self._up.wait(START_SECONDS)

    def emit(self, message: Message) -> None:
        """Write a message down. Blocks only where the collector is far behind, and HOLD_SECONDS of ring.py in all."""
        teller = self._teller
        if not teller.off:
            try:
                teller.tell(message)
            except Exception as error:
                self.give_up(f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """Wait until the collector has read all, which it can only once it is connected. Blocks for END_SECONDS at most."""
        if self._teller.off:
            return
        deadline = time.monotonic() + END_SECONDS
        if not self._up.wait(END_SECONDS):
            return self.give_up("the script has ended, and the collector is not reachable")
        if self._ended.is_set():  # it has given up meanwhile
            return
        self._over = True
        with suppress(OSError):
            self._pipe.send({"end": True})
            self._ended.wait(deadline - time.monotonic())

    def _in_child(self) -> None:
        """Detach a process that the program forks: it isn't a rank, and must not keep the rank's connection open."""
        self._teller.off = True
        if self._pipe is not None:
            with suppress(OSError):
                os.close(self._pipe.sock.detach())

    def give_up(self, why: Any) -> None:
        """Stop recording, and print why; the collector then accuses no rank."""
        if not self._teller.off:
            self._teller.off = True
            if not self._over:
                say(f"rank {self._rank} is not recorded: {why}. Training goes on.")
        self._up.set()
        self._ended.set()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.sock.shutdown(socket.SHUT_RDWR)

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._pipe = self._reached()
            if self._ended.is_set():  # it has given up before
                return self._hang_up()
            about = {"rank": self._rank, "host": socket.gethostname(), "pid": os.getpid(), "began": self._began}
            about["processes"] = this_host()
            descriptors = [self._ring.descriptor]
            with suppress(OSError, AttributeError):  # the collector may come when this process has ended
                descriptors.append(os.pidfd_open(os.getpid()))
            self._pipe.send(about, descriptors=descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            self._up.set()
            while not self._ended.is_set():
                frames = self._pipe.receive()
                if frames is None:
                    raise ConnectionError("it has ended")
                for what, _ in frames:
                    self._asked(what)
        except Exception as error:
            self.give_up(f"the collector is not reachable ({error or type(error).__name__})")

    def _reached(self) -> Pipe:
        deadline = time.monotonic() + FIND_SECONDS
        while True:
            try:
                return Pipe(connect(name()))
            except Untrusted:
                raise
            except OSError:
                if time.monotonic() > deadline or self._ended.wait(RETRY_SECONDS):
                    raise

    def _asked(self, what: dict) -> None:
        if "stack" in what:
            self.before_stack()
            self._pipe.send({"stack": [] if self._over else stack(self._main)})
        elif "bye" in what:
            self._teller.off = True
            self._ended.set()


def stack(thread: int) -> list[list]:
    """A thread's stack, the innermost call last: [file, line, function, source] each, without this package and runpy."""
    frame = sys._current_frames().get(thread)
    return [
        [f.filename, f.lineno, f.name, f.line or ""]
        for f in (traceback.extract_stack(frame) if frame else ())
        if not f.filename.startswith(_HIDDEN)
    ]
