"""Ranks on engines, which are processes on any machines: to a run's session they look like local ranks.

This module decides which rank goes to which engine, and how they find each other; relay.py moves their messages.
"""

import itertools
import socket
import time
from functools import cache
from typing import Any, Iterable

from ..launch.ranks import Server
from ..launch.wire import Place, ProcessContext, RankSpec
from ..launch.work import LOOPBACK
from ..launch.workers import Patience
from .engine import EngineHost, describe, open_store
from .relay import ANSWER_SECONDS, POLL_SECONDS, Answer, Engines, EngineWorkers

FIRST_ANSWER_SECONDS = 60.0  # at its first request, an engine imports this package
STORE_SECONDS = 120.0  # and one of them loads torch
_numbers = itertools.count()  # of the runs on engines


class EngineError(RuntimeError):
    """An engine that is gone, does not answer, or cannot be used. The message has the remedy."""

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


class _NoServer:
    """A Server that does nothing: each engine has its own, which the session isn't connected to."""

    up, born = True, 0.0

    def __init__(self) -> None:
        self.sock, self._other = socket.socketpair()  # nothing is ever sent

    def read(self) -> None: ...

    def learn(self, modules: list[str]) -> None: ...

    def last_words(self) -> tuple[int | None, str]:
        return None, ""

    def close(self, patience_seconds: float) -> None: ...


@cache
def _no_server() -> _NoServer:
    """The one for all."""
    return _NoServer()


class EngineRanks:
    """Ranks on engines, see ranks.Ranks: consecutive ones on each if there are more ranks than engines.

    usual: the number of engines.

    Raises EngineError if an engine does not answer, or the others cannot reach it.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines, self.usual = engines, len(engines.names)
        if not self.usual:
            raise EngineError("there are no engines here: start some, for example with `ipcluster start -n 4`.")

    def server(self) -> Server:
        return _no_server()

    def workers(self, world_size: int, context: ProcessContext, patience: Patience, new: bool) -> EngineWorkers:
        found = self._about(range(min(self.usual, world_size)))
        # Engines are numbered as they register, whichever host they are on: a ring would go back and forth.
        hosts = list(dict.fromkeys(about.host for about in found.values()))
        by_host = sorted(found, key=lambda engine: hosts.index(found[engine].host))
        engine_of = [by_host[rank * len(found) // world_size] for rank in range(world_size)]
        host_of = [found[engine].host for engine in engine_of]
        if len(hosts) == 1:
            found = {engine: about._replace(address="127.0.0.1", interface=LOOPBACK) for engine, about in found.items()}
        for engine, about in found.items():
            if not about.address:
                raise EngineError(
                    f"{self._engines.names[engine]}: the name {about.host} of its host leads to no address that other "
                    "hosts can reach. Start the engine with GLOO_SOCKET_IFNAME set to the network interface that "
                    "leads to them (`ip address` lists them), or put the host's real address into its /etc/hosts."
                )
        first = engine_of[0]
        port = self._get(first, self._engines.ask(first, open_store), STORE_SECONDS)
        store = f"tcp://{found[first].address}:{port}/run{next(_numbers)}"
        specs = []
        for rank, (engine, host) in enumerate(zip(engine_of, host_of)):
            environ = dict(
                LOCAL_RANK=str(host_of[:rank].count(host)), LOCAL_WORLD_SIZE=str(host_of.count(host)),
                GROUP_RANK=str(hosts.index(host)), GLOO_SOCKET_IFNAME=found[engine].interface,
            )  # fmt: skip
            specs.append(RankSpec(rank, world_size, context, store, Place((), environ)))
        return EngineWorkers(self._engines, engine_of, specs, patience)

    def _about(self, used: Iterable[int]) -> dict[int, EngineHost]:
        """The engines' descriptions of their machines; their clocks are compared with ours the first time only."""
        known = self._engines.known
        asked = {engine: (time.perf_counter(), self._engines.ask(engine, describe)) for engine in used}
        for engine, (before, answer) in asked.items():
            about = self._get(engine, answer, ANSWER_SECONDS if engine in known else FIRST_ANSWER_SECONDS)
            ahead = known[engine].clock if engine in known else about.clock - (before + time.perf_counter()) / 2
            known[engine] = about._replace(clock=ahead)
        return {engine: known[engine] for engine in used}

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
