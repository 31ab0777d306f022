"""The training step of each call: as its rank counted, else found from the repetition of calls."""

from collections import Counter

import numpy as np

from ...log.calls import Call
from ...log.event import Event

LOOKED_AT = 4096  # calls of a rank, the last ones, in which the period is looked for
MIN_REPEATS = 3  # repetitions that make a period
MIN_EQUAL_SHARE = 0.5  # the share of calls, at least, that equal the ones a period earlier

Numbers = list[list[int | None]]  # by rank: of each of its events; None: of no step


def has_steps(events: list[list[Event]]) -> bool:
    """Whether ranks have counted their steps."""
    return any(e.step for mine in events for e in mine)


def number_steps(events: list[list[Event]], calls: list[Call]) -> Numbers:
    """The step of each event.

    Ranks that counted none get the steps of ranks they share calls with. Where no rank did, the steps of the rank
    with the most calls are the repetitions of its longest pattern.
    """
    known: dict[int, int | None] = {}  # id(call) -> step
    numbers: Numbers = [[None] * len(mine) for mine in events]
    of = {id(e): call for call in calls for e in call}
    if has_steps(events):
        begun = [rank for rank, mine in enumerate(events) if any(e.step for e in mine)]
        for rank in begun:
            numbers[rank] = [e.step for e in events[rank]]
    else:
        begun = [max(range(len(events)), key=lambda rank: len(events[rank]), default=0)] if events else []
        for rank in begun:
            numbers[rank] = repetitions(events[rank])
    for rank in begun:
        _share(events[rank], numbers[rank], of, known)
    left = [rank for rank in range(len(events)) if rank not in begun and events[rank]]
    while left:
        rank = max(left, key=lambda rank: sum(id(of[id(e)]) in known for e in events[rank]))
        left.remove(rank)
        numbers[rank] = _carried_on(events[rank], of, known)
        _share(events[rank], numbers[rank], of, known)
    return numbers


def _share(events: list[Event], numbers: list[int | None], of: dict[int, Call], known: dict[int, int | None]) -> None:
    for e, number in zip(events, numbers):
        known.setdefault(id(of[id(e)]), number)


def _carried_on(events: list[Event], of: dict[int, Call], known: dict[int, int | None]) -> list[int | None]:
    """Calls that no other rank has numbered belong to the step of the call before."""
    last, numbers = None, []
    for e in events:
        number = known.get(id(of[id(e)]), last)
        last = number if None in (number, last) else max(number, last)
        numbers.append(last)
    return numbers


# --- a pattern that repeats ---------------------------------------------------------------


def repetitions(events: list[Event]) -> list[int | None]:
    """The number of each event's repetition, from 0; None where the calls follow no pattern."""
    kinds: dict[tuple, int] = {}
    made = np.array([kinds.setdefault(_kind(e), len(kinds)) for e in events], dtype=np.int64)
    period = _period(made[-LOOKED_AT:])
    if period is None:
        return [None] * len(events)
    pattern = _pattern(made, events, period)
    numbers: list[int | None] = [None] * len(events)
    at = number = 0
    while at + period <= len(made):
        if np.array_equal(made[at : at + period], pattern):
            numbers[at : at + period] = [number] * period
            at, number = at + period, number + 1
        else:
            at += 1
    return numbers


def _kind(e: Event) -> tuple:
    """A key that is equal for calls made in the same place of every step."""
    line = e.line and (e.line.file, e.line.number)
    return e.op, e.group_name, e.group, e.src, e.dst, e.tag, e.dtype, e.shape, e.within, line


def _period(made: np.ndarray) -> int | None:
    """The distance at which most calls equal the earlier ones; the shortest of equally good ones."""
    best, alike = None, MIN_EQUAL_SHARE
    for distance in range(1, len(made) // MIN_REPEATS + 1):
        share = float(np.mean(made[distance:] == made[:-distance]))
        if share > alike + 1e-9:
            best, alike = distance, share
    return best


def _pattern(made: np.ndarray, events: list[Event], period: int) -> np.ndarray:
    """The calls of a step, the first of them the one before which the rank usually works longest."""
    windows = np.lib.stride_tricks.sliding_window_view(made, period)
    common = Counter(map(bytes, windows)).most_common(period)
    pauses = []
    for pattern, times in common:
        kinds = np.frombuffer(pattern, made.dtype)
        starts = np.flatnonzero((windows == kinds).all(axis=1))
        gaps = [events[at].start - _end_time(events[at - 1]) for at in starts if at]
        if times * 2 >= common[0][1] and gaps:
            pauses.append((float(np.median(gaps)), kinds))
    return max(pauses, key=lambda pause: pause[0])[1]


def _end_time(e: Event) -> float:
    """The time at which the rank continued after a call."""
    blocked = not e.async_op or e.waiting is not None
    return e.end if blocked and e.end is not None else e.start
