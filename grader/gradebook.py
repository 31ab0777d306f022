"""Gradings, the outcome of one submission each, as data to send as JSON; and a class's by student and by exercise."""

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from helpers.exercise.notebook import checks_of, exercises

from .slugs import slug


@dataclass(frozen=True)
class CheckScore:
    """The points of one check cell."""

    name: str  # the cell's id
    what: str  # it asks, of which function
    points: float
    of: float
    reason: str = ""  # why it is not all of them; "" if it is
    cost: str = ""  # the cost of a right answer

    @property
    def function(self) -> str:
        return self.what.partition(":")[0]

    @property
    def kind(self) -> str:
        """The kind of failure: "wrong" or "over budget"; "" for none."""
        return "" if not self.reason else "over budget" if self.what.endswith("budget?") else "wrong"

    @property
    def thought(self) -> str:
        """The question in the reason, or "". (An answer's own words never begin a line.)"""
        lines = [line for line in self.reason.splitlines() if line.startswith("Think: ")]
        return lines[-1].removeprefix("Think: ") if lines else ""


@dataclass(frozen=True)
class Grading:
    """One submission's points with their reasons."""

    exercise: str = ""  # "02_distributed_mean"; "" if it cannot be graded
    checks: tuple[CheckScore, ...] = ()
    problem: str = ""  # why it cannot be graded; "" if it can
    pictures: dict[str, str] = field(default_factory=dict)  # function -> SVG in base64
    undrawn: dict[str, str] = field(default_factory=dict)  # function -> why its picture could not be drawn
    student: str = ""
    file: str = ""  # as it was found, below the folder of submissions
    id: str = ""  # the student's number in the platform it comes from
    late: bool = False  # according to the platform
    time: str = ""  # when the platform got it: "2025-11-10 23:59:00"
    seconds: float = 0.0  # that scoring took

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
    def from_data(cls, data: Any) -> "Grading":
        """The grading, restored. Raises KeyError or TypeError if the data isn't one."""
        checks = tuple(CheckScore(**check) for check in data["checks"])
        return cls(**{key: data[key] for key in cls.__dataclass_fields__} | {"checks": checks})


@dataclass
class Student:
    """One student's gradings. If there are several files for one exercise, the best counts."""

    name: str
    of: dict[str, float]  # exercise -> points to be had, of all that the class did
    gradings: list[Grading] = field(default_factory=list)

    def best(self, exercise: str) -> Grading | None:
        gradings = [grading for grading in self.gradings if grading.exercise == exercise]
        return max(gradings, key=lambda grading: grading.points, default=None)

    def others(self, exercise: str) -> list[Grading]:
        """The gradings of one exercise that do not count, because another one has as many points or more."""
        counts = self.best(exercise)
        return [one for one in self.gradings if one.exercise == exercise and one is not counts]

    @property
    def id(self) -> str:
        return next((grading.id for grading in self.gradings if grading.id), "")

    @property
    def late(self) -> bool:
        return any(grading.late for grading in self.gradings)

    @property
    def lacks(self) -> list[str]:
        """The exercises that others did and this one did not hand in."""
        return [exercise for exercise in self.of if not self.best(exercise)]

    @property
    def page(self) -> str:
        """The file of the student's page, below the report's folder."""
        return f"students/{slug(self.name)}.html"

    def points(self, exercise: str) -> float:
        grading = self.best(exercise)
        return grading.points if grading else 0

    @property
    def total(self) -> float:
        return sum(map(self.points, self.of))

    @property
    def most(self) -> float:
        """The points to be had in all exercises."""
        return sum(self.of.values())

    @property
    def problems(self) -> list[str]:
        """The reasons why files were not graded, one per file."""
        return [grading.problem for grading in self.gradings if grading.problem]


def students(gradings: list[Grading]) -> list[Student]:
    """All students with a submission, in the order of the gradings."""
    done = {grading.exercise for grading in gradings}
    of = {name: sum(check.points for check in checks_of(name)) for name in exercises() if name in done}
    people: dict[str, Student] = {}
    for grading in gradings:
        people.setdefault(grading.student, Student(grading.student, of)).gradings.append(grading)
    return list(people.values())


def summary(people: list[Student]) -> dict[str, Any]:
    """Per exercise: the number handed in, mean, median, the number with all points, and each check's passes."""
    rows = {}
    for exercise, of in (people[0].of if people else {}).items():
        best = [grading for student in people if (grading := student.best(exercise))]
        points = [grading.points for grading in best]
        each_check = zip(*(grading.checks for grading in best))
        passed = {same[0].what: sum(bool(check.points) for check in same) for same in each_check}
        rows[exercise] = {
            "of": of, "handed in": len(best), "mean": round(statistics.fmean(points), 2),
            "median": statistics.median(points), "all points": sum(p == of for p in points), "passed": passed,
            "reasons": reasons(best),
        }  # fmt: skip
    return rows


def reasons(gradings: list[Grading]) -> dict[str, int]:
    """The last lines of advice that several got, most frequent first."""
    thoughts = Counter()
    for grading in gradings:
        thoughts.update({thought for check in grading.checks if (thought := check.thought)})
    return dict(sorted(thoughts.items(), key=lambda item: (-item[1], item[0]))[:5])
