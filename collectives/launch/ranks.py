"""The interface between a run and its ranks: everything that a Session uses of them, wherever they are.

    Ranks     their source            LocalRanks (pool.py), HostRanks (remote/destinations.py), EngineRanks (remote/engines.py)
    Server    the process they need   ForkServer (forkserver.py), _NoServer (remote/engines.py)
    Workers   the ranks of one run    LocalWorkers (forkserver.py), EngineWorkers (remote/relay.py)

mypy checks each implementation against these (tests/test_ranks.py), so a member is added here first.
"""

import socket
from typing import Hashable, Mapping, Protocol

from .wire import Message, ProcessContext
from .workers import Output, Patience


class Server(Protocol):
    """The process that the ranks are forked from. Its methods raise ConnectionError once it is gone.

    up: whether it has loaded torch.
    born: time.perf_counter() of its start.
    sock: readable when there is something for read(), and once it is gone.
    """

    up: bool
    born: float
    sock: socket.socket

    def read(self) -> None:
        """Read its replies; the Workers that a reply concerns keep it."""

    def learn(self, modules: list[str]) -> None:
        """Have it import modules that a rank had to import, so that later ranks inherit them. It may decline."""

    def last_words(self) -> tuple[int | None, str]:
        """Its exit status, or minus a signal number, and the end of its standard error. None: not known."""

    def close(self, patience_seconds: float) -> None:
        """End it and every rank, by force after patience_seconds."""


class Workers(Protocol):
    """The ranks of one run: a socket and two output streams each, and one wake-up pipe for all.

    context: the process state with which the ranks started.
    born: time.perf_counter() of the first request.
    socks, out, err: by rank.
    hosts: how many computers they are on.
    wakeup: a descriptor, readable when a rank has something to report that the session waits for.
    exits: by rank, the exit status as from os.waitstatus_to_exitcode, or a sentence's predicate ("was lost with ...").
    halted: by rank, the signal that stopped it, such as SIGSTOP, on this machine.
    refused: (rank, errno) of the first rank for which the system gave no process, or None.
    """

    context: ProcessContext | None
    born: float
    hosts: int
    socks: list[socket.socket]
    out: list[Output]
    err: list[Output]
    wakeup: int
    exits: dict[int, int | str]
    halted: dict[int, int]
    refused: tuple[int, int] | None

    @property
    def computed(self) -> Mapping[Hashable, float]:
        """CPU seconds by process, other processes of the same server included.

        Empty where the system doesn't report them: then no run gets more time than its timeout.
        """

    def tell(self, message: Message) -> None:
        """Queue a message for every rank; push() sends it."""

    def push(self, rank: int) -> bool:
        """Send a rank as much as its socket takes at once. Return whether nothing is left to send."""

    def ask_for_stacks(self) -> None:
        """Have every rank write its Python stack to its err."""

    def read(self) -> None:
        """Read what is left in the ranks' output streams."""

    def end(self) -> None:
        """End the ranks and the processes that they started. They exit moments later."""

    def prepare_successors(self, patience: Patience) -> None:
        """Have ranks like these made in advance for the next run, if that is possible. Raises OSError."""


class Ranks(Protocol):
    """The source of a run's ranks."""

    def server(self) -> Server:
        """The server that the ranks depend on. Raises OSError if the system has no room for it."""

    def workers(self, world_size: int, context: ProcessContext, patience: Patience, new: bool) -> Workers:
        """Unused ranks of the server returned last. new: none that were made in advance. Raises OSError."""
