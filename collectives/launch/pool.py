"""Ranks of this machine, connected and waiting for work: made in advance, used once."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Callable, Iterable, Sequence

from . import called_here
from .conversation import Interrupts
from .forkserver import ForkServer, LocalWorkers
from .wire import Place, ProcessContext
from .workers import Patience

if TYPE_CHECKING:
    from .ranks import Server, Workers

HEAD_START_SECONDS = 0.005  # the caller's head start with the processor, before the next ranks are made
DISCARD_SECONDS = 1.0  # for an abandoned server to end by itself
BACKGROUND_SECONDS = 5.0  # for the server to accept requests in the background

_server: ForkServer | None = None
_preloaded: list[str] = []


def server() -> ForkServer:
    """This process's server, started at first use and again if it was lost.

    Raises OSError when the system has no process, memory, descriptor or disk space for one.
    """
    global _server
    if _server is not None and not _server.alive:
        lost, _server = _server, None
        lost.close(patience_seconds=0.5)
    if _server is None:
        _server = ForkServer()
        if _preloaded:
            _server.learn(_preloaded)
    return _server


def start_early(world_size: int = 4) -> None:
    """In a Jupyter kernel: start the server and a first worker group, so that the first call finds them ready.

    Nowhere else: a script may never call run, and the server imports this package too.
    """
    if _server is None and _in_kernel():
        sys.modules["IPython"].get_ipython().events.register("post_run_cell", called_here.advise)
        with suppress(OSError):  # the first run tries again, and reports the error
            server().prepare(world_size, Patience())


def preload(modules: Iterable[str]) -> None:
    """In a Jupyter kernel: have the server import modules in the background, for all ranks to come.

    Each rank that imports torch._dynamo by itself takes more than a second of processor time, and the
    next run waits until the server has imported it too.  Here that happens once, while the reader reads.  Ranks
    on standby lack the modules, so new ones replace them; a run that starts before that waits.
    """
    new = [module for module in modules if module not in _preloaded]
    if new and _in_kernel():
        _preloaded.extend(new)
        wait_for_successors()
        if _server is not None and _server.alive:
            with suppress(OSError):  # it was ended from outside: the next one imports them from the start
                _server.preload(new, Patience(time.monotonic() + BACKGROUND_SECONDS))


def _in_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@atexit.register
def _stop() -> None:
    if _server is not None:
        _server.close()


# Else a forked child would keep the socket open, and the server outlive the kernel.
os.register_at_fork(after_in_child=_stop)


class LocalRanks:
    """Ranks on this machine, see ranks.Ranks."""

    def server(self) -> ForkServer:
        self._server = server()
        return self._server

    def workers(self, world_size: int, context: ProcessContext, patience: Patience, new: bool) -> LocalWorkers:
        return self._server.workers(world_size, context, patience, new, self._places(world_size))

    def _places(self, world_size: int) -> Sequence[Place]:
        """The host of each rank; empty for this machine itself."""
        return ()


class FreshRanks(LocalRanks):
    """Ranks on this machine, each a Python of its own rather than a fork."""

    def _places(self, world_size: int) -> Sequence[Place]:
        return [Place(fresh=True)] * world_size


# --- between two runs ---------------------------------------------------------------------

_replacing: threading.Thread | None = None
_next_call = threading.Event()


def in_background(work: Callable[[], None]) -> None:
    """Do the work while the caller uses the results. The next call waits until it is done."""
    global _replacing
    _next_call.clear()
    _replacing = threading.Thread(target=work)
    try:
        _replacing.start()
    except RuntimeError:  # the system gives no thread, or Python is about to end
        _replacing = None
        work()


def replace(workers: Workers) -> None:
    """End the ranks, and make their successors."""
    _next_call.wait(HEAD_START_SECONDS)
    workers.end()
    with suppress(OSError):  # the next call tries again, and reports the error
        workers.prepare_successors(Patience(time.monotonic() + BACKGROUND_SECONDS))


def discard(server: Server, workers: Workers | None) -> None:
    """End a server that missed its deadline: the next call starts a new one."""
    if workers:
        workers.end()
    server.close(DISCARD_SECONDS)


def wait_for_successors(interrupts: Interrupts | None = None) -> None:
    _next_call.set()
    while _replacing is not None and _replacing.is_alive() and not (interrupts and interrupts.count):
        _replacing.join(0.1 if interrupts else None)  # SIGINT's handler runs meanwhile, but does not end join()
