"""asyncio without a descriptor: a loop that waits for other threads and for time, since there is no network to wait for.

The loop of the standard library wakes itself by a pair of sockets and waits by epoll.  Ranks have neither: sockets take
their inode numbers from one counter of the machine, and epoll's watches count against one quota of the user, so both
would show a rank what the others do.
"""

import asyncio
import selectors
import threading


class Alarm(selectors.SelectSelector):
    """A selector of nothing, whose wait another thread can end."""

    def __init__(self) -> None:
        super().__init__()
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def select(self, timeout: float | None = None) -> list:
        self._rung.wait(timeout)
        self._rung.clear()
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._alarm = Alarm()
        super().__init__(self._alarm)

    def _make_self_pipe(self) -> None:
        pass

    _close_self_pipe = _make_self_pipe

    def _write_to_self(self) -> None:
        self._alarm.ring()


class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop
