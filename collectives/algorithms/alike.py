"""Steps of a schedule that are alike in all but the chunks that they carry, as a ring's are."""

from itertools import groupby
from typing import Iterator

from .schedule import Message, Schedule


def similar_steps(s: Schedule) -> Iterator[tuple[list[list[Message]], list[int] | None]]:
    """Steps in a row with the same messages, in the same order; and their rings, as `_passed_on` finds them."""
    steps = (sorted(step, key=but_chunks) for step in s.steps if step)  # a step without messages takes no time
    for _, same in groupby(steps, lambda step: [but_chunks(m) for m in step]):
        found = list(same)
        yield found, _passed_on(found)


def but_chunks(m: Message) -> tuple:
    """All of a message but which chunks it carries."""
    return m.source, m.target, len(m.chunks), m.adds


def _passed_on(steps: list[list[Message]]) -> list[int] | None:
    """For each message the number of its ring; None if a second step sends chunks that the first didn't bring."""
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
    return ring
