"""The results of a run's ranks, and the bytes that their sockets carried."""

from typing import Any, Collection

from ..log.messages import Returned
from .pickling import unpack
from .tcp import TcpCounters, arrived
from .wire import Counted


class Returns:
    """The results of a run's ranks, and the bytes that their sockets carried."""

    def __init__(self, world_size: int) -> None:
        self._n = world_size
        self._results: dict[int, bytes] = {}
        self._moved: dict[int, tuple[int | None, int | None]] = {}  # bytes (sent, received)
        self._traffic: list[TcpCounters | None] = []

    def take(self, rank: int, message: Returned | Counted) -> None:
        self._moved[rank] = message.moved
        if isinstance(message, Returned):
            self._results[rank] = message.result
            self._traffic.append(message.traffic)

    def all_in(self, losses: Collection[int]) -> bool:
        """Whether every rank has returned, except lost ones."""
        return len(self._results.keys() | losses) == self._n

    @property
    def all_arrived(self) -> bool:
        """Whether nothing was in flight any more when the ranks, which have all returned, counted."""
        return arrived(self._traffic)

    def count_again(self) -> None:
        """Discard the counts; newer ones follow."""
        self._moved.clear()

    def all_counted(self, losses: Collection[int]) -> bool:
        """Whether every rank has counted, except lost ones."""
        return len(self._moved.keys() | losses) == self._n

    @property
    def bytes(self) -> tuple[list[int | None], list[int | None]]:
        """By rank, the bytes sent, and those received."""
        sent, received = zip(*(self._moved.get(rank, (None, None)) for rank in range(self._n)))
        return list(sent), list(received)

    def unpack(self) -> tuple[list[Any], dict[int, Exception]]:
        """The results by rank, and the errors of those that cannot be unpickled: such a result is None.

        This may run the learner's own code.
        """
        results, unreadable = [None] * self._n, {}
        for rank, packed in sorted(self._results.items()):
            try:
                results[rank] = unpack(packed)
            except Exception as error:
                unreadable[rank] = error
        return results, unreadable
