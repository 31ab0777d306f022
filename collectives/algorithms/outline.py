"""The outline of a schedule, or of an algorithm at any size: its rounds, without the names of its chunks."""

from typing import Callable, Iterator

import numpy as np

from .alike import but_chunks, similar_steps
from .catalogue import ALGORITHMS
from .rounds import Outline, Phase
from .schedule import Schedule

MAX_UNROLLED = 2048  # ranks of a schedule that is made in full


def outline(what: Schedule | Callable[..., Schedule], *args, **kwargs) -> Outline:
    """The outline of a schedule; or of an algorithm, as in `outline(ring_all_reduce, 16384)`.

    Regular algorithms take any number of ranks: the rings, halving and doubling, Rabenseifner, the trees of all_reduce,
    the hierarchical one.  For the others the schedule is made; raises ValueError for more than 2048 ranks then.
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
    for steps, ring in similar_steps(s):
        source, target, chunks, adds = map(np.array, zip(*map(but_chunks, steps[0])))
        yield Phase(len(steps), source, target, chunks / s.cuts, adds, None if ring is None else np.array(ring))
