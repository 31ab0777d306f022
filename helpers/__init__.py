"""Ordinary torch.distributed code, run for real on local ranks, and seen whole.

from helpers import run
"""

from importlib import import_module

from .crew import start_early
from .progress import follow

# Each name's module, loaded when it is asked for: the grader starts without torch, ranks without pictures.
_HOME = {
    "run": "launch",
    **dict.fromkeys(("Run", "Event", "Call", "Line", "Summary"), "record"),
    **dict.fromkeys(("RunError", "RankFailed", "Mismatch", "Stuck"), "errors"),
    "predict": "prediction",
    "explore": "explorer",
    "step": "stepping",
    "timeline": "timing",
}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


start_early()
follow()
