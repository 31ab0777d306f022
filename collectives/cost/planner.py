"""The planner, under the name that chapters import it by: `from collectives.cost.planner import plan, step`."""

from importlib import import_module

from ..lazy import lazy

HOME = "collectives.planner"  # above this package: no module of it may import that
__all__ = lazy(__name__, {HOME: " ".join(import_module(HOME).__all__)})
