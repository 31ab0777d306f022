"""Intervals of time, or of a file."""

from typing import Iterable


def merge(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals (start, end) in order, those that touch or overlap as one; empty ones are left out."""
    apart: list[tuple[float, float]] = []
    for start, end in sorted((start, end) for start, end in intervals if start < end):
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        else:
            apart.append((start, end))
    return apart


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length that is covered by any of them."""
    return sum(end - start for start, end in merge(intervals))
