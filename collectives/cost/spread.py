"""How far apart sources lie: where rows of one that nobody has seen are to be expected."""

import statistics
from math import exp, log, sqrt
from typing import Mapping, NamedTuple, Sequence


class Spread(NamedTuple):
    """Ratios between which nine of ten rows are to be expected, and the median."""

    low: float
    median: float
    high: float


def spread(sources: Mapping[str, Sequence[float]]) -> Spread:
    """What rows of a new source take of what they should: the median, and around it nine of ten, if ratios are log-normal.

    sources: of two sources or more, the ratios of their rows.  Sources weigh the same.  That they are few widens it, by
    Student's t and by what the mean of so many may be off.
    """
    many = len(sources)
    rows = sorted((log(ratio), 1 / len(ratios) / many) for ratios in sources.values() for ratio in ratios)
    mean = sum(ratio * weight for ratio, weight in rows)
    variance = sum(weight * (ratio - mean) ** 2 for ratio, weight in rows) * many / (many - 1)
    z = statistics.NormalDist().inv_cdf(0.95)
    t = z + (z**3 + z) / (4 * (many - 1))  # Student's, for few sources
    half, passed = t * sqrt(variance * (1 + 1 / many)), 0.0
    median = next(ratio for ratio, weight in rows if (passed := passed + weight) >= 0.5)
    return Spread(exp(median - half), exp(median), exp(median + half))
