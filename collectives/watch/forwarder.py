"""The collector of a host that rank 0 is not on: it forwards its ranks' messages to the collector of rank 0's host.

That collector's address is in the launcher's store.  Both clocks are compared, since each host has its own.

    up      {"token"}  {"ping"}  {"clock"}  {"arrived", "about"}  {"told", "lost"} with records  {"said", "what"}  {"cut"}  {"gone", "status"}
    down    {"pong"}  {"to", "what"}
"""

import json
import os
import selectors
import socket
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from .pipe import reach, say
from .rings import Host, Local

FIND_SECONDS = 60.0  # for the address to be in the store
PING_SECONDS = 10.0
PINGS = 8  # the one that was answered fastest gives the other clock's time
END_SECONDS = 5.0  # for the other collector to have read all


def store() -> dist.TCPStore:
    """A client of the launcher's store, or of the one that init_process_group makes in rank 0."""
    host, port, wait = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=FIND_SECONDS)
    return dist.TCPStore(host, port, None, False, wait, wait_for_workers=False)


def key() -> str:
    """The store's key of the collector's address: each restart of the ranks has its own collectors."""
    environ = os.environ
    return f"collectives/{environ.get('TORCHELASTIC_RUN_ID')}/{environ.get('TORCHELASTIC_RESTART_COUNT')}/collector"


def publish(way: dict) -> None:
    """Put the way to the collector of rank 0's host, its addresses, port and token, into the store."""
    try:
        store().set(key(), json.dumps(way))
    except Exception as error:
        say(f"ranks of other hosts are not recorded: the launcher's store is not reachable ({error})")


class Forwarder(Host):
    """The ranks of this host, for the other collector."""

    def __init__(self, listener: socket.socket, count: int) -> None:
        super().__init__(listener, count)
        way = json.loads(store().get(key()))
        self._pipe = reach(way["addresses"], way["port"])
        self._pipe.send({"token": way["token"]})
        self._pings: deque[tuple[float, float]] = deque(maxlen=PINGS)  # (round trip, offset to add to this clock)
        self._open = True
        for _ in range(PINGS):
            self._ping()
            self._heard()
        self._select.register(self._pipe.sock, selectors.EVENT_READ, self._heard)

    def serve(self) -> None:
        """Until the ranks of this host have ended, or the other collector has."""
        while self._open and not self.is_over:
            self.look()
            if time.perf_counter() > self._next_ping:
                self._ping()
        with suppress(OSError):  # the end of the other side: it has read all that was sent
            self._pipe.sock.shutdown(socket.SHUT_WR)
            self._pipe.sock.settimeout(END_SECONDS)
            while self._pipe.receive() is not None:
                pass

    def arrived(self, rank: Local, about: dict) -> None:
        self._pipe.send({"arrived": rank.number, "about": about})

    def told(self, number: int, piece: bytes, lost: bool) -> None:
        self._pipe.send({"told": number, "lost": lost}, piece)

    def said(self, number: int, what: dict) -> None:
        self._pipe.send({"said": number, "what": what})

    def cut(self, number: int) -> None:
        self._pipe.send({"cut": number})

    def gone(self, number: int, status: int | None) -> None:
        self._pipe.send({"gone": number, "status": status})

    def _ping(self) -> None:
        self._next_ping = time.perf_counter() + PING_SECONDS
        self._pipe.send({"ping": time.perf_counter()})

    def _heard(self) -> None:
        frames = self._pipe.receive()
        if frames is None:
            self._open = False
            return
        for what, _ in frames:
            if "pong" in what:
                sent, theirs = what["pong"]
                now = time.perf_counter()
                self._pings.append((now - sent, theirs - (sent + now) / 2))
                self._pipe.send({"clock": min(self._pings)[1]})
            elif (rank := self.local.get(what["to"])) is not None:
                rank.tell(what["what"])
