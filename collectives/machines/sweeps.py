"""Published sweeps of nccl-tests and similar programs: the figures that calibration() compares the model with.

sweeps.csv lists each sweep with its machine and source; measurements.csv has a row for each size, the faster of out of
place and in place.  Sweeps are included if they name machine, collective and sizes, and force at most the algorithm.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .data_sheets import FOLDER, at, records
from .presets import machine
from .topology import Machine

FITTED_ROLE = "fitted"  # constants were taken from this very sweep
FORM = "form"  # no constant is from here, but the shape of the model (chunks in tuning.py) was found by looking at it
HELD_OUT = "held out"  # kept back, source by source, until the model was final
SUSPECT = "suspect"  # something is wrong with the sweep, see its note; it counts nowhere


class Sweep(NamedTuple):
    """Measurements of one collective on one machine: a row of sweeps.csv with its figures."""

    sweep: str  # its name
    what: str
    machine: Machine
    gpus: int
    collective: str
    unit: str  # of the figures: µs, or GB/s of bus bandwidth
    algorithm: str | None  # that was forced, if one was
    version: str  # of NCCL, as nccl() has it: "2.26" if the source has that
    nccl: str | None  # the version that the source names
    exposed: bool  # whether each call's launch is in the time: see LAUNCH_SECONDS in cost/calibration.py
    role: str
    note: str | None
    source: str
    figures: tuple[tuple[int, float], ...]  # (bytes, figure) for each size


ROLES = ("", FITTED_ROLE, FORM, HELD_OUT, SUSPECT)
COLUMNS = Sweep.__annotations__ | {"machine": str, "unit": ("µs", "GB/s"), "role": ROLES}
del COLUMNS["figures"]


@cache
def sweeps(file: Path = FOLDER / "sweeps.csv", measurements: Path = FOLDER / "measurements.csv") -> tuple[Sweep, ...]:
    """All published sweeps, in the order of the file.  Raises ValueError for a mistake in one."""
    figures, places = defaultdict(list), {}
    for place, row in records(measurements, {"sweep": str, "bytes": int, "value": float}, ("sweep", "bytes")):
        figures[row["sweep"]].append((row["bytes"], row["value"]))
        places[row["sweep"]] = place
    known = []
    for place, row in records(file, COLUMNS, ("sweep",)):
        with at(place):
            if row["sweep"] not in figures:
                raise ValueError(f"{measurements.name} has no row of the sweep {row['sweep']!r}.")
            row["machine"] = machine(row["machine"], row["gpus"])
        known.append(Sweep(**row, figures=tuple(figures.pop(row["sweep"]))))
    for name in figures:
        raise ValueError(f"{places[name]}: {file.name} has no sweep {name!r}.")
    return tuple(known)
