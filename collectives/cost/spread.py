"""The spread between sources: where rows of a new one are expected."""

import statistics
from math import exp, log, sqrt
from typing import Mapping, NamedTuple, Sequence


class Spread(NamedTuple):
    """Ratios between which nine of ten rows are to be expected, and the median."""

    low: float
    median: float
    high: float


def spread(sources: Mapping[str, Sequence[float]]) -> Spread:
    """The ratios of measured to modeled expected of a new source: the median, and nine of ten around it, if log-normal.

    sources: of two sources or more, the ratios of their rows.  Sources weigh the same.  Few of them widen it, by
    Student's t and by the error of their mean.
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
