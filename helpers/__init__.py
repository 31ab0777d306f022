"""Ordinary torch.distributed code, run for real on local ranks, and seen whole.

from helpers import run
"""

from .crew import start_early
from .errors import Mismatch, RankFailed, RunError, Stuck
from .launch import run
from .progress import follow
from .record import Call, Event, Line, Run, Summary

__all__ = ["run", "Run", "Event", "Call", "Line", "Summary", "RunError", "RankFailed", "Mismatch", "Stuck"]
__all__ += ["predict", "explore", "step", "timeline"]

# Loaded when first used: ranks import this package too, and need no widgets and no pictures.
_LATER = {"predict": "prediction", "explore": "explorer", "step": "stepping", "timeline": "timing"}


def __getattr__(name: str):
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = value = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


start_early()
follow()
