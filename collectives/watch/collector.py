"""The process that collects all ranks' messages: it writes the record, judges, and prints.

It runs on rank 0's host and outlives rank 0; each other host has one that forwards its ranks' messages (forwarder.py).
It only reads: no rank is ended or raised in by it.
"""

import argparse
import errno
import gc
import selectors
import signal
import socket
import threading
import time
from contextlib import closing, suppress
from functools import partial
from typing import Callable, Iterator

from ..log.event import Line
from ..log.messages import Skipped
from ..rank.callers import innermost
from . import alarm, report
from .exit_status import wait_for_end
from .forwarder import Forwarder, publish
from .job_judge import Judge
from .message_decoder import MessageDecoder
from .pipe import Pipe, alive, say
from .report import RankPlace
from .rings import Host, Local
from .sockets import Listener
from .writer import Writer

LAUNCHER_SECONDS = 5.0  # for the launcher to end, once all ranks have
JUDGE_SECONDS = 0.05  # between two checks for a verdict
STACK_SECONDS = 0.3  # for the ranks to send their stacks
GOES_ON_SECONDS = 10.0  # without its connection, until a process is assumed to continue unrecorded
DARK = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN}  # how connections to a dark host end
HELLO_BYTES = 4096
# Objects more, until Python looks for cycles among all objects: only signatures make some, and it takes long.
GARBAGE = 50_000, 1, 1


def collect(
    local: Listener,
    others: socket.socket | None,
    way: dict,
    world_size: int,
    count: int,
    folder: str | None,
    options: argparse.Namespace,
) -> None:
    """Collect until all ranks have ended.

    local: where this host's `count` ranks connect.  others: where the collectors of other hosts do, if there are any,
    and way, for them: the addresses, port and token.  folder: of the record; None on a host without rank 0.
    options: of recorder.py.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # SIG_IGN would hold for the alarm's command too
    gc.set_threshold(*GARBAGE)
    if folder is None:
        try:
            Forwarder(local, count).serve()
        except Exception as error:  # its ranks report that they are not recorded
            say(f"the collector of {socket.gethostname()} has ended ({error or type(error).__name__})")
        return
    if others is not None:
        threading.Thread(target=publish, args=(way,), daemon=True).start()
    Collector(local, others, way, world_size, count, folder, options).serve()


class _Rank:
    """A rank, on whatever host.  ask: sends it something.  origin: the time on its host's clock that its times count from."""

    def __init__(self, number: int, about: dict, shift: float, ask: Callable[[dict], None]) -> None:
        self.number, self.ask, self.origin = number, ask, about["began"]
        self.hearer = MessageDecoder(number, shift)
        self.where = RankPlace(about["host"], about["pid"])
        self.ended = False  # its last message has arrived
        self.cut_at: float | None = None  # time.monotonic() since which its process's end is unknown


class _OtherCollector(Pipe):
    """The collector of another host, once it has shown the token.  clock: offset to add to its times."""

    known = False
    clock = 0.0

    def ask(self, number: int, what: dict) -> None:
        with suppress(OSError):  # its end will be read
            self.send({"to": number, "what": what})


class Collector(Host):
    """All ranks, the record, and the judge."""

    def __init__(self, local, others, way: dict, world_size: int, count: int, folder: str, options) -> None:
        super().__init__(local, count)
        self._others, self._token, self._size, self._began = others, way["token"], world_size, way["began"]
        self._ranks: dict[int, _Rank] = {}  # of all hosts
        self._hosts: dict[_OtherCollector, set[int]] = {}  # the ranks of each other host
        if others is not None:
            self._select.register(others, selectors.EVENT_READ, self._accept_other)
        self._writer = Writer(folder, world_size, options.script, options.last, self._standing, self._began)
        self._judge, self._alarm = Judge(world_size, options.patience), options.alarm
        self._asked: float | None = None  # until when to wait for stacks
        self._skipped = False  # lost calls have been reported
        self._damaged: set[int] = set()  # ranks of which records were damaged
        self._finished = False  # the summary has been printed
        self._blamed: tuple[int, ...] | None = None  # the ranks of the last verdict
        self._launcher = way.get("launcher")

    def serve(self) -> None:
        looked = 0.0
        with closing(self._writer):
            while not self.is_over:
                self.look()
                if time.monotonic() - looked > JUDGE_SECONDS:
                    looked = time.monotonic()
                    self._writer.flush()
                    self._look()
            if not self._finished:
                self._finish()

    @property
    def is_over(self) -> bool:
        if self._connected:
            return False
        return len(self._ranks) == self._size or self.is_quiet

    # --- ranks of this host ---------------------------------------------------------------

    def arrived(self, rank: Local, about: dict) -> None:
        self._arrived(_Rank(rank.number, about, about["began"] - self._began, rank.tell))

    def told(self, number: int, piece: bytes, lost: bool) -> None:
        hearer = self._ranks[number].hearer
        for line, message in hearer.hear(piece, lost):
            self._writer.add(number, line, message)
            if message is not None:
                self._judge.take(number, message)
                if type(message) is Skipped and not self._skipped and number not in self._damaged:
                    self._skipped = True
                    say(
                        f"rank {number} makes calls faster than they can be read: some are not recorded, the newest are."
                    )
        if hearer.is_deaf and number not in self._damaged:
            self._damaged.add(number)
            self._judge.blind()
            say(f"some records of rank {number} are damaged and lost, so no verdict follows. Training goes on.")

    def said(self, number: int, what: dict) -> None:
        rank = self._ranks[number]
        if "stack" in what:
            rank.where.stack = tuple(Line(*line) for line in what["stack"])
            self._judge.locate(number, *innermost(reversed(rank.where.stack)))
        elif "end" in what:
            if sum(r.ended for r in self._ranks.values()) == self._size - 1:
                self._finish()
            rank.ended = True
            self._writer.flush()
            rank.ask({"bye": True})

    def cut(self, number: int) -> None:
        rank = self._ranks[number]
        rank.where.connected, rank.cut_at = False, time.monotonic()

    def gone(self, number: int, status: int | None) -> None:
        rank = self._ranks[number]
        self._judge.ended(number, rank.cut_at, status)
        rank.cut_at = None

    def _arrived(self, rank: _Rank) -> None:
        self._ranks[rank.number] = rank
        self._judge.arrived(rank.number)
        self._writer.arrived(rank.number, rank.where.host, rank.where.pid)
        self._writer.standing([rank.hearer.clock()])
        if len(self._ranks) == self._size:
            ranks, hosts = self._size, len({r.where.host for r in self._ranks.values()})
            say(f"records {ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)} in {self._writer.folder}")

    def _standing(self) -> Iterator[bytes]:
        for rank in self._ranks.values():
            yield from rank.hearer.standing()

    # --- and of others --------------------------------------------------------------------

    def _accept_other(self) -> None:
        sock, _ = self._others.accept()
        alive(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other = _OtherCollector(sock)
        self._connected += 1
        self._hosts[other] = set()
        self._select.register(sock, selectors.EVENT_READ, partial(self._hear, other))

    def _hear(self, other: _OtherCollector) -> None:
        try:
            frames = other.receive()
            for what, piece in frames or ():
                self._take(other, what, piece)
            if frames is None or not other.known and other.unread > HELLO_BYTES:
                self._close_other(other)
        except (ValueError, KeyError, TypeError):  # this isn't a collector
            self._close_other(other)
        except OSError as error:
            if error.errno in DARK and (ranks := self._left(other)):
                self._judge.dark(self._ranks[min(ranks)].where.host, ranks)
            self._close_other(other)

    def _take(self, other: _OtherCollector, what: dict, piece: bytes) -> None:
        if not other.known:
            if what["token"] != self._token:
                raise ValueError("no collector of this job")
            other.known = True
        elif "ping" in what:
            other.send({"pong": [what["ping"], time.perf_counter()]})
        elif "clock" in what:
            other.clock = what["clock"]
            for number in self._hosts[other]:
                hearer = self._ranks[number].hearer
                hearer.shift = self._ranks[number].origin + other.clock - self._began
                self._writer.standing([hearer.clock()])
        elif "arrived" in what:
            number, about = what["arrived"], what["about"]
            self._hosts[other].add(number)
            self._arrived(_Rank(number, about, about["began"] + other.clock - self._began, partial(other.ask, number)))
        elif "told" in what:
            self.told(what["told"], piece, what["lost"])
        elif "said" in what:
            self.said(what["said"], what["what"])
        elif "cut" in what:
            self.cut(what["cut"])
        elif "gone" in what:
            self.gone(what["gone"], what["status"])

    def _close_other(self, other: _OtherCollector) -> None:
        self._select.unregister(other.sock)
        other.sock.close()
        self._connected -= 1
        self._quiet_since = time.monotonic()
        for number in sorted(self._left(other)):
            self.cut(number)
            self.gone(number, None)
        del self._hosts[other]

    def _left(self, other: _OtherCollector) -> set[int]:
        """The ranks of another host that have not ended, according to its collector."""
        return {number for number in self._hosts[other] if self._ranks[number].where.connected}

    # --- verdicts -------------------------------------------------------------------------

    def _look(self) -> None:
        self._note()
        cut = [rank for rank in self._ranks.values() if rank.cut_at is not None and not rank.ended]
        if cut and time.monotonic() < min(rank.cut_at for rank in cut) + GOES_ON_SECONDS:
            return  # how they end will be known soon
        for rank in cut:
            self._judge.blind()
            rank.cut_at = None
            say(f"rank {rank.number} is no longer recorded: it closed its connection. Training goes on.")
        if not self._judge.is_due:
            self._asked = None
            return
        if self._asked is None:
            self._asked = time.monotonic() + STACK_SECONDS
            for rank in self._ranks.values():
                rank.where.stack = None
                if rank.where.connected:
                    rank.ask({"stack": True})
        awaited = [r for r in self._ranks.values() if r.where.connected and r.where.stack is None and not r.ended]
        if not awaited or time.monotonic() > self._asked:
            self._asked = None
            self._announce()

    def _note(self) -> None:
        for note in self._judge.notes():
            self._writer.verdict(note)
            say(note)

    def _announce(self) -> None:
        if verdict := self._judge.conclude():
            for number, end in self._judge.ends.items():
                self._ranks[number].where.end = end
            text = report.report(verdict, {number: rank.where for number, rank in self._ranks.items()})
            self._writer.verdict(text, verdict)
            self._blamed = report.culprits(verdict, self._size)
            say(text, by="")
            if self._alarm:
                try:
                    alarm.ring(self._alarm, text, self._writer.folder)
                except OSError as error:
                    say(f"the alarm could not be started: {error}")

    def _finish(self) -> None:
        self._finished = True
        self._judge.nothing_more()
        self._note()
        self._announce()
        say(self._writer.summary(time.perf_counter() - self._began))
        if self._blamed is not None:
            wait_for_end(self._launcher, LAUNCHER_SECONDS)  # its own report comes first, and would hide this line
            say(report.pointer(self._blamed, self._writer.folder), by="collectives: ")
