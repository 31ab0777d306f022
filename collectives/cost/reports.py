"""Reports of nccl-tests, under the name that chapters import them by."""

from ..lazy import lazy

__all__ = lazy(__name__, {"collectives.calibrate.reports": "Measured measured of_sweep"})
