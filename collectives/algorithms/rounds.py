"""The rounds of an algorithm: senders, receivers and sizes of the messages, and how often a step is repeated.

That is all a price depends on, and it is small where an algorithm is regular: the ring repeats one step 2 (N - 1)
times.  So a regular algorithm is written as phases, for any number of ranks; its schedule has them message by message.
"""

import functools
import inspect
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, NamedTuple

import numpy as np

from .schedule import Message, Schedule


class Phase(NamedTuple):
    """One step, done `times` times in a row.  Arrays have one entry a message.

    ring: the number of each message's ring, where a rank forwards in every step the data of the last; None elsewhere.
    chunks: of the k-th time, a row a message; None where they are not known.
    """

    times: int
    source: np.ndarray  # ranks
    target: np.ndarray
    share: np.ndarray  # of the whole buffer S
    adds: np.ndarray  # bool
    ring: np.ndarray | None = None
    chunks: Callable[[int], np.ndarray] | None = None


def phase(times: int, source, target, adds, share: float, chunks: Callable[[int], np.ndarray], ring=None) -> Phase:
    """A phase whose messages are all of one size."""
    n = len(source)
    return Phase(times, source, target, np.full(n, share), np.full(n, adds), ring, chunks)


def rings(
    ranks: np.ndarray, axis: int, adds: bool, share: float, chunks: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Phase:
    """Rings along an axis of a table of ranks: each forwards the piece it got, until every piece has been everywhere.

    chunks: from arrays of the rings' numbers and of the pieces' to the chunks, a row a message.
    """
    at, n = np.indices(ranks.shape), ranks.shape[axis]
    place, ring = at[axis].ravel(), at[1 - axis].ravel()
    target = np.roll(ranks, -1, axis).ravel()
    return phase(n - 1, ranks.ravel(), target, adds, share, lambda k: chunks(ring, (place - k - adds) % n), ring)


def one_ring(n: int, adds: bool) -> Phase:
    """In step k, rank r sends piece r - k to its right; where it adds, piece r - k - 1."""
    return rings(np.arange(n)[None], 1, adds, 1 / n, lambda ring, piece: piece[:, None])


def exchange(n: int, d: int, adds: bool) -> Phase:
    """Partners at distance d: each gives its own block of d chunks; where it adds, its partner's."""
    r = np.arange(n)
    block = (r ^ d if adds else r) // d * d
    return phase(1, r, r ^ d, adds, d / n, lambda k: block[:, None] + np.arange(d))


@dataclass(frozen=True, repr=False)
class Outline:
    """The phases of an algorithm; they are made one by one, each time they are asked for.

    Raises ValueError if it cannot be a schedule.
    """

    collective: str
    name: str
    world_size: int
    make: Callable[[], Iterable[Phase]]
    chunks: int = 1

    def __post_init__(self) -> None:
        self._schedule([])

    def __iter__(self) -> Iterator[Phase]:
        return (phase for phase in self.make() if phase.times > 0)

    def __repr__(self) -> str:
        return f"{self.collective} by {self.name}, {self.world_size} ranks"

    def schedule(self) -> Schedule:
        """Every message of every step."""
        return self._schedule(step for phase in self for step in _messages(phase))

    def _schedule(self, steps: Iterable[list[Message]]) -> Schedule:
        return Schedule(self.collective, self.world_size, steps, self.chunks, name=self.name)


def _messages(phase: Phase) -> Iterator[list[Message]]:
    source, target, adds = (column.tolist() for column in (phase.source, phase.target, phase.adds))
    for k in range(phase.times):
        yield list(map(Message, source, target, map(tuple, phase.chunks(k).tolist()), adds))


def regular(algorithm: Callable[..., Outline]) -> Callable[..., Schedule]:
    """An algorithm that is written as its outline: called, it returns the schedule; `outline` has it at any size."""

    @functools.wraps(algorithm)
    def scheduled(*args, **kwargs) -> Schedule:
        return algorithm(*args, **kwargs).schedule()

    scheduled.__signature__ = inspect.signature(algorithm).replace(return_annotation="Schedule")
    scheduled.outline = algorithm
    return scheduled
