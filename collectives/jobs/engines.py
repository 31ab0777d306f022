"""Ranks on engines, which are processes on whatever machines: to a run's session they look like local ranks.

Here it is decided which rank goes to which engine, and how they find each other; relay.py moves their messages.
"""

from __future__ import annotations

import itertools
import socket
import time
import weakref
from functools import cache
from typing import Any, Iterable

from ..launch.ranks import Ranks
from ..launch.workers import Patience
from ..rank.protocol import ProcessContext, RankSpec
from ..rank.work import LOOPBACK
from .engine import About
from .relay import ANSWER_SECONDS, POLL_SECONDS, Answer, Engines, EngineWorkers, Seat

FIRST_ANSWER_SECONDS = 60.0  # an engine that is asked for the first time imports this package
STORE_SECONDS = 120.0  # and one of them loads torch


class EngineError(RuntimeError):
    """An engine that is gone, does not answer, or cannot be used. The message says what to do."""

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


class EngineRanks(Ranks):
    """Ranks on engines, next to each other on each if there are more ranks than engines.

    usual: the number of engines.

    Raises EngineError if an engine does not answer, or the others cannot reach it.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines, self.usual = engines, len(engines.names)
        if not self.usual:
            raise EngineError("there are no engines here: start some, for example with `ipcluster start -n 4`.")

    def server(self) -> _NoServer:
        return _no_server()

    def workers(
        self, server: Any, world_size: int, context: ProcessContext, patience: Patience, new: bool
    ) -> EngineWorkers:
        used = range(min(self.usual, world_size))
        found = self._about(used)
        # Engines are numbered as they register, whichever host they are on: a ring would go back and forth.
        hosts = list(dict.fromkeys(found[engine].host for engine in used))
        by_host = sorted(used, key=lambda engine: (hosts.index(found[engine].host), engine))
        engine_of = [by_host[rank * len(used) // world_size] for rank in range(world_size)]
        host_of = [found[engine].host for engine in engine_of]
        address, interfaces = self._network(found, several=len(hosts) > 1)
        store = f"tcp://{address[engine_of[0]]}:{self._port(engine_of[0])}/run{next(_numbers)}"
        seats = []
        for rank, (engine, host) in enumerate(zip(engine_of, host_of)):
            environ = dict(
                LOCAL_RANK=str(host_of[:rank].count(host)), LOCAL_WORLD_SIZE=str(host_of.count(host)),
                GROUP_RANK=str(hosts.index(host)), GLOO_SOCKET_IFNAME=interfaces[engine],
            )  # fmt: skip
            seats.append(Seat(engine, f"{self._engines.names[engine]} on {host}", environ, found[engine].clock))
        specs = [RankSpec(rank, world_size, context, store) for rank in range(world_size)]
        return EngineWorkers(self._engines, seats, specs, patience)

    def _about(self, used: Iterable[int]) -> dict[int, About]:
        """What the engines say of themselves, with `.clock` as seconds by which theirs is ahead of ours."""
        known = _known.setdefault(self._engines, {})
        found = {}
        asked = {engine: (time.perf_counter(), self._engines.ask(engine, "about")) for engine in used}
        for engine, (before, answer) in asked.items():
            about = self._get(engine, answer, ANSWER_SECONDS if engine in known else FIRST_ANSWER_SECONDS)
            known.setdefault(engine, about.clock - (before + time.perf_counter()) / 2)
            found[engine] = about._replace(clock=known[engine])
        return found

    def _network(self, found: dict[int, About], several: bool) -> tuple[dict[int, str], dict[int, str]]:
        """By engine, the address that the others reach it at and its interface. Loopback if there is one host."""
        if not several:
            return dict.fromkeys(found, "127.0.0.1"), dict.fromkeys(found, LOOPBACK)
        for engine, about in found.items():
            if not about.address:
                raise EngineError(
                    f"{self._engines.names[engine]}: the name {about.host} of its host leads to no address that other "
                    "hosts can reach. Start the engine with GLOO_SOCKET_IFNAME set to the network interface that "
                    "leads to them (`ip address` lists them), or put the host's real address into its /etc/hosts."
                )
        return {e: a.address for e, a in found.items()}, {e: a.interface for e, a in found.items()}

    def _port(self, engine: int) -> int:
        ports = _ports.setdefault(self._engines, {})
        if engine not in ports:
            ports[engine] = self._get(engine, self._engines.ask(engine, "open_store"), STORE_SECONDS)
        return ports[engine]

    def _get(self, engine: int, answer: Answer, seconds: float) -> Any:
        name, until = self._engines.names[engine], time.monotonic() + seconds
        while not answer.ready():
            if time.monotonic() > until:
                raise EngineError(
                    f"{name} has not answered for {seconds:g} s: it is busy with something else, or its process is "
                    "stopped. End it, or leave it out: jobs.run(fn, client[[0, 1]]) takes engines 0 and 1."
                )
            time.sleep(POLL_SECONDS)
        try:
            return answer.get()
        except Exception as error:
            raise EngineError(f"{name} could not be used: {type(error).__name__}: {error}") from None


# What is known of engines that were used before.
_known: weakref.WeakKeyDictionary[Engines, dict[int, float]] = weakref.WeakKeyDictionary()
_ports: weakref.WeakKeyDictionary[Engines, dict[int, int]] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


class _NoServer:
    """What a session expects of the process that forks ranks: here the engines have them, and this does nothing."""

    up, born = True, 0.0

    def __init__(self) -> None:
        self.sock, self._other = socket.socketpair()  # nothing is ever sent

    def read(self) -> None: ...

    def learn(self, modules: list[str]) -> None: ...

    def close(self, patience_seconds: float = 0.0) -> None: ...

    def last_words(self) -> tuple[None, str]:
        return None, ""


_no_server = cache(_NoServer)
