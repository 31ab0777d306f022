"""Ordinary torch.distributed code, run for real on local ranks, and seen whole.

from helpers import run
"""

from .launch.pool import start_early
from .lazy import lazy
from .progress import follow

# Each module and its names, loaded when one is asked for: the grader starts without torch, ranks without pictures.
__all__ = lazy(
    __name__,
    {
        "launch.run": "run",
        "record.calls": "Call",
        "record.event": "Event Line Summary",
        "results.errors": "Mismatch RankFailed RunError Stuck",
        "results.run": "Run",
        "views.costs": "costs",
        "views.explore.explorer": "explore",
        "views.predict.predict": "predict",
        "views.step": "step",
        "views.timeline": "timeline",
    },
)

start_early()
follow()
