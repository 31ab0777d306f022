"""A grading: what came out for one submission, as data that travels as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CheckScore:
    """The points of one check cell."""

    name: str  # the cell's id
    what: str  # it asks, of which function
    points: float
    of: float
    reason: str = ""  # why it is not all of them; "" if it is
    cost: str = ""  # what a right answer costs


@dataclass(frozen=True)
class Grading:
    """One submission's points with their reasons."""

    exercise: str = ""  # "01_distributed_mean"; "" if it cannot be graded
    checks: tuple[CheckScore, ...] = ()
    problem: str = ""  # why it cannot be graded; "" if it can
    pictures: dict[str, str] = field(default_factory=dict)  # function -> PNG in base64
    undrawn: dict[str, str] = field(default_factory=dict)  # function -> why its picture could not be drawn
    student: str = ""
    file: str = ""  # as it was found, below the folder of submissions

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)

    @property
    def of(self) -> float:
        return sum(check.of for check in self.checks)

    def data(self) -> dict[str, Any]:
        """The grading as plain data for json.dumps, with the sums of the points."""
        return {**asdict(self), "points": self.points, "of": self.of}

    @classmethod
    def from_data(cls, data: Any) -> Grading:
        """The grading again. Raises KeyError or TypeError for what is none."""
        fields = {key: data[key] for key in cls.__dataclass_fields__}
        return cls(**{**fields, "checks": tuple(CheckScore(**check) for check in fields["checks"])})
