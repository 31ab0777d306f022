"""A rank's way to the collector: found through the launcher's store, used by a thread of its own.

The program's threads only append to a queue.  Whatever happens to the collector, training goes on: a
rank that cannot reach it says so in one line, and is not recorded from there on.
"""

import _thread
import json
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Callable

import torch.distributed as dist

from ..launch.source import with_text
from ..rank.protocol import Message
from .ends import here
from .lines import written

BATCH_SECONDS = 0.02  # between two looks at the queue
MAX_QUEUE = 20_000  # messages; with more, the program waits for the collector
MAX_HELD_SECONDS = 5.0  # that it waits, all in all; then it is recorded no more
FIND_SECONDS = 60.0  # for the collector's address to be in the store
CONNECT_SECONDS = 3.0  # for each of its addresses
START_SECONDS = 5.0  # that the script waits for the connection: of a rank that dies at once something is known
END_SECONDS = 5.0  # for the collector to have read the last line
PING_SECONDS = 10.0
PINGS = 8  # of which the one that was answered fastest tells the collector's time
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def clock() -> str:
    """What perf_counter counts from: processes that share it need not compare their clocks."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/time")
    return socket.gethostname()


def store(rank: int) -> dist.TCPStore:
    """A client of the launcher's store, or of the one that init_process_group will use."""
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    wait = timedelta(seconds=FIND_SECONDS)
    return dist.TCPStore(host, port, None, rank == 0 and not by_agent, wait, wait_for_workers=False, multi_tenant=True)


def key() -> str:
    """Where the store holds the collector's address: each restart of the ranks has a collector of its own."""
    environ = os.environ
    return f"collectives/{environ.get('TORCHELASTIC_RUN_ID')}/{environ.get('TORCHELASTIC_RESTART_COUNT')}/collector"


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


def say(words: str, by: str = "collectives.jobs: ") -> None:
    """To the job's standard error in one piece: unbuffered, print would let a rank come between text and line end."""
    print(f"{by}{words}\n", end="", file=sys.stderr, flush=True)


class Link:
    """What a rank tells the collector, and what it is asked.

    rank: global.  began: time.perf_counter() from which the messages count their seconds.
    collector: what rank 0 puts into the store: addresses, port and token of the collector; None on other ranks.
    """

    def __init__(self, rank: int, began: float, collector: dict | None) -> None:
        self._rank, self._began, self._collector = rank, began, collector
        self._queue: deque[Message] = deque()
        self._held = 0.0
        self._off = False  # nothing is recorded any more
        self._over = False  # the script has ended
        self._up, self._ended = threading.Event(), threading.Event()
        self._socket: LineSocket | None = None
        self.before_stack: Callable[[], None] = lambda: None  # tells what is to be known before this rank's stack is
        self._pings: deque[tuple[float, float]] = deque(maxlen=PINGS)  # (round trip, what to add to this clock)
        self._next_ping = 0.0
        self._with_text = cache(with_text)
        self._main = threading.main_thread().ident
        os.register_at_fork(after_in_child=self._in_child)
        _thread.start_new_thread(self._run, ())
        self._up.wait(START_SECONDS)

    def emit(self, message: Message) -> None:
        """Take a message, which will be sent soon. Blocks only while the collector is far behind."""
        if self._off:
            return
        self._queue.append(message)
        while len(self._queue) > MAX_QUEUE and not self._off:
            time.sleep(0.001)
            self._held += 0.001
            if self._held > MAX_HELD_SECONDS:
                self._give_up("the collector does not keep up")

    def end(self) -> None:
        """Send what is left, and wait until it has been read."""
        if not self._off:
            self._over = True
            self._ended.wait(END_SECONDS)

    def _in_child(self) -> None:
        """A process that the program forks is no rank. It must not keep the rank's connection open either."""
        self._off = True
        self._queue.clear()
        if self._socket is not None:
            with suppress(OSError):
                os.close(self._socket.sock.detach())

    def _give_up(self, why: Any) -> None:
        if not self._off:
            self._off = True
            say(f"rank {self._rank} is not recorded: {why}. Training goes on.")
        self._queue.clear()
        self._up.set()
        self._ended.set()

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._connect()
            told = False  # the collector, that this is all
            while not self._off:
                over = self._over
                self._send_queue()
                if over and not told:
                    self._socket.send({"end": True})
                    told = True
                self._listen(BATCH_SECONDS)
        except Exception as error:
            self._give_up(f"the collector is not reachable ({error or type(error).__name__})")

    def _connect(self) -> None:
        self._store = store(self._rank)  # kept: the others may ask it
        if self._collector:
            self._store.set(key(), json.dumps(self._collector))
        about = self._collector or json.loads(self._store.get(key()))
        self._socket = LineSocket(_reach(about["addresses"], about["port"]))
        self._socket.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = {"token": about["token"], "rank": self._rank, "host": socket.gethostname(), "pid": os.getpid()}
        hello["processes"] = here()
        self._socket.send(hello)
        self._zero = about["began"]
        if about["clock"] == clock():
            self._pings.append((0.0, 0.0))
            return
        for _ in range(PINGS):
            self._ping()
            self._listen(CONNECT_SECONDS)

    def _ping(self) -> None:
        self._next_ping = time.perf_counter() + PING_SECONDS
        self._socket.send({"ping": time.perf_counter()})

    def _send_queue(self) -> None:
        if self._next_ping and time.perf_counter() > self._next_ping:
            self._ping()
        if self._queue:
            messages = [self._queue.popleft() for _ in range(len(self._queue))]
            shift = self._began - self._zero + min(self._pings, default=(0.0, 0.0))[1]
            self._socket.sock.sendall(b"".join(written(self._rank, messages, shift, self._with_text)))

    def _listen(self, seconds: float) -> None:
        if not select.select([self._socket.sock], [], [], seconds)[0]:
            return
        lines = self._socket.receive()
        if lines is None:
            raise ConnectionError("it has ended")
        for line in lines:
            self._asked(json.loads(line))

    def _asked(self, what: dict) -> None:
        if "pong" in what:
            sent, theirs = what["pong"]
            now = time.perf_counter()
            self._pings.append((now - sent, theirs - (sent + now) / 2))
        elif "stack" in what:
            self.before_stack()
            self._send_queue()
            self._socket.send({"stack": [] if self._over else stack(self._main)})
        elif "welcome" in what:
            self._up.set()
        elif "bye" in what:
            self._off = True
            self._ended.set()


def _reach(addresses: list[str], port: int) -> socket.socket:
    for address in addresses:
        try:
            found = socket.create_connection((address, port), CONNECT_SECONDS)
            found.settimeout(None)
            return found
        except OSError as error:
            last = error
    raise ConnectionError(f"{', '.join(addresses)}, port {port}: {last}")


def stack(thread: int) -> list[list]:
    """What a thread executes now, the innermost call last: [file, line, function, source], without this package."""
    frame = sys._current_frames().get(thread)
    return [
        [f.filename, f.lineno, f.name, f.line or ""]
        for f in (traceback.extract_stack(frame) if frame else ())
        if not f.filename.startswith((_PACKAGE, "<frozen runpy"))
    ]
