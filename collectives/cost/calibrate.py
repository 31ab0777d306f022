"""The calibration of a cluster, under the name that chapters import it by."""

from ..lazy import lazy

__all__ = lazy(__name__, {"collectives.calibrate.calibrate": "Row error fitted main odd priced saved slow stretch"})
