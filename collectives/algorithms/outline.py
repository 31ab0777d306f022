"""The outline of a schedule, or of an algorithm at any size: its rounds, without the names of its chunks."""

from itertools import groupby
from typing import Callable, Iterator

import numpy as np

from .catalogue import ALGORITHMS
from .model import Message, Schedule
from .rounds import Outline, Phase

MAX_UNROLLED = 2048  # ranks of a schedule that is made in full


def outline(what: Schedule | Callable[..., Schedule], *args, **kwargs) -> Outline:
    """The outline of a schedule; or of an algorithm, as in `outline(ring_all_reduce, 16384)`.

    Regular algorithms take any number of ranks: the rings, halving and doubling, Rabenseifner, the trees of all_reduce,
    the hierarchical one.  Of the others the schedule is made; raises ValueError for more than 2048 ranks of those.
    """
    if isinstance(what, Schedule):
        return Outline(what.collective, what.name, what.world_size, lambda: _unrolled(what), what.chunks)
    if hasattr(what, "outline"):
        return what.outline(*args, **kwargs)
    n = args[0] if args else kwargs.get("n", 0)
    if n > MAX_UNROLLED:
        names = ", ".join(f.__name__ for f in ALGORITHMS if hasattr(f, "outline"))
        raise ValueError(
            f"{what.__name__} of {n} ranks is too long to write out; at most {MAX_UNROLLED}. At any size: {names}."
        )
    return outline(what(*args, **kwargs))


def _unrolled(s: Schedule) -> Iterator[Phase]:
    steps = (sorted(step, key=_what) for step in s.steps if step)  # a step without messages takes no time
    for rows, same in groupby(steps, lambda step: [_what(m) for m in step]):
        alike = list(same)
        source, target, chunks, adds = map(np.array, zip(*rows))
        yield Phase(len(alike), source, target, chunks / s.cuts, adds, _passed_on(alike))


def _what(m: Message) -> tuple:
    """All of a message but which chunks it carries."""
    return m.source, m.target, len(m.chunks), m.adds


def _passed_on(steps: list[list[Message]]) -> np.ndarray | None:
    """The rings of steps that are alike; None if some rank sends in the second what did not come in the first."""
    if len(steps) < 2:
        return None
    sends = {(m.source, m.chunks): k for k, m in enumerate(steps[1])}
    next_ = [sends.get((m.target, m.chunks)) for m in steps[0]]
    if None in next_ or len(set(next_)) < len(next_):
        return None
    ring, rings = [-1] * len(next_), 0
    for k in range(len(ring)):
        rings += ring[k] < 0
        while ring[k] < 0:
            ring[k], k = rings - 1, next_[k]
    return np.array(ring)
