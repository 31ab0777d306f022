"""The ranks of one run on engines: the data in their sockets and pipes is forwarded to the engines and back.

Each rank has a socket and two pipes here, as a local rank has. A thread serves them by question and answer, so any
means of calling a function on an engine will do.
"""

import os
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Callable, Hashable, Mapping, Protocol

from ..launch.wire import Job, Message, RankSpec, frame
from ..launch.workers import Patience, WorkerGroup
from .engine import EngineHost, Reply, end, exchange, read_now, start

ANSWER_SECONDS = 10.0  # an engine that takes longer counts as hung
POLL_SECONDS = 0.002


class Answer(Protocol):
    """An engine's future answer. get() returns it, or raises the error of the request."""

    def ready(self) -> bool: ...

    def get(self) -> Any: ...


class Engines(ABC):
    """Processes that call functions of engine.py for us: a subclass implements `ask`.

    names: the learner's names for them, in the order of their ranks.
    known: engines that were used before; their `clock` is the seconds by which theirs is ahead of ours.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.known: dict[int, EngineHost] = {}

    @abstractmethod
    def ask(self, engine: int, function: Callable, *args: Any) -> Answer: ...


class EngineWorkers(WorkerGroup):
    """Ranks on engines, see ranks.Workers.  engine_of: by rank."""

    def __init__(self, engines: Engines, engine_of: list[int], specs: list[RankSpec], patience: Patience) -> None:
        self.engines, self.engine_of = engines, engine_of
        self._ranks: list[_Remote] = []
        self._computed: dict[Hashable, float] = {}  # by engine and process there
        self._over, self._thread = threading.Event(), threading.Thread(target=self._relay, daemon=True)
        super().__init__(specs, patience)
        self._thread.start()

    def _fork(self, spec: RankSpec, descriptors: list[int], patience: Patience) -> None:
        self._ranks.append(_Remote(self, spec, list(map(os.dup, descriptors))))

    def tell(self, message: Message) -> None:
        for rank, engine in enumerate(self.engine_of):
            shifted = message
            if isinstance(message, Job):
                shifted = message._replace(began=message.began + self.engines.known[engine].clock)
            self.queue(rank, frame(shifted))

    def ask_for_stacks(self) -> None:
        for rank in self._ranks:
            rank.stack_wanted = True

    @property
    def computed(self) -> Mapping[Hashable, float]:
        """As each engine reported them last, which is a fraction of a second ago."""
        return dict(self._computed)  # a copy: the relay's thread continues

    def note_computed(self, engine: int, computed: Mapping[Hashable, float]) -> None:
        self._computed |= {(engine, process): seconds for process, seconds in computed.items()}

    def _end_ranks(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        else:  # no room for all the ranks
            self._close()

    def _relay(self) -> None:
        try:
            while not self._over.is_set():
                if not any([rank.step() for rank in self._ranks]):
                    self._over.wait(POLL_SECONDS)
        finally:
            self._close()

    def _close(self) -> None:
        for rank in self._ranks:
            rank.close()


class _Remote:
    """The relay's side of one rank: its last request, and the data that has yet to reach the session.

    descriptors: for its messages, output and errors, and to wake the session.
    """

    def __init__(self, group: EngineWorkers, spec: RankSpec, descriptors: list[int]) -> None:
        self._group, self._rank, self._engine = group, spec.rank, group.engine_of[spec.rank]
        self._key = f"{os.getpid()}.{id(group)}.{spec.rank}"
        self._messages, self._out, self._err, self._wakeup = self._sinks = [Sink(d) for d in descriptors]
        self.stack_wanted = False
        self._ended = False
        self._ask(start, spec._replace(context=None))  # its context is the engine's own

    def _ask(self, function: Callable, *args: Any) -> None:
        self._since = time.monotonic()
        try:
            self._answer = self._group.engines.ask(self._engine, function, self._key, *args)
        except Exception:  # a client that knows that an engine is gone takes no more for it
            self._lost("is gone")

    def step(self) -> bool:
        """Forward the available data. Return whether there was any."""
        for sink in self._sinks:
            sink.push()
        if self._ended:
            return False
        if not self._answer.ready():
            if time.monotonic() - self._since > ANSWER_SECONDS:
                self._lost(f"has not answered for {ANSWER_SECONDS:g} s")
            return False
        try:
            heard = self._answer.get()
        except Exception:
            self._lost("is gone")
            return True
        self._take(heard)
        if not self._ended:
            if stack := self.stack_wanted:
                self.stack_wanted = False
            self._ask(exchange, read_now(self._messages.descriptor), stack)
        return bool(heard.data)

    def _take(self, heard: Reply) -> None:
        self._group.note_computed(self._engine, heard.computed)
        if heard.refused:
            self._group.refused = self._rank, heard.refused
        self._messages.add(heard.data)
        self._out.add(heard.out)
        self._err.add(heard.err)
        if heard.data:
            self._wakeup.add(b"!")
        if heard.ended and heard.status is not None:
            self._finish(heard.status)

    def _lost(self, why: str) -> None:
        name, about = self._group.engines.names[self._engine], self._group.engines.known[self._engine]
        self._finish(f"was lost with {name} on {about.host}, which {why}")

    def _finish(self, status: int | str) -> None:
        self._group.exits[self._rank] = status
        self._messages.finish()
        self._wakeup.add(b"!")
        self._ended = True

    def close(self) -> None:
        with suppress(Exception):
            self._group.engines.ask(self._engine, end, self._key)
        for sink in self._sinks:
            sink.close()


class Sink:
    """A descriptor that is written to when it has room, and the bytes that wait for room."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._waiting, self._finished = descriptor, bytearray(), False
        os.set_blocking(descriptor, False)

    def add(self, data: bytes) -> None:
        self._waiting += data
        self.push()

    def push(self) -> None:
        try:
            while self._waiting and self.descriptor >= 0:
                del self._waiting[: os.write(self.descriptor, self._waiting)]
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            self._waiting.clear()
        if self._finished:
            self.close()

    def finish(self) -> None:
        """Close the descriptor once all is written."""
        self._finished = True
        self.push()

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
