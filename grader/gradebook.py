"""Gradings, the outcome of one submission each, as data to send as JSON; and a class's by student and by exercise."""

import re
import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from .assignment import Adjustment, Assignment
from .entries import Owner
from .safe_text import no_formula, printable, slug


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
    def thought(self) -> str:
        """The question in the reason, or "". (An answer's own words never begin a line.)"""
        lines = [line for line in self.reason.splitlines() if line.startswith("Think: ")]
        return lines[-1].removeprefix("Think: ") if lines else ""


@dataclass(frozen=True)
class Grading(Owner):
    """One submission's points with their reasons."""

    exercise: str = ""  # "02_distributed_mean"; "" if it cannot be graded
    checks: tuple[CheckScore, ...] = ()
    problem: str = ""  # why it cannot be graded; "" if it can
    pictures: dict[str, str] = field(default_factory=dict)  # function -> SVG in base64
    undrawn: dict[str, str] = field(default_factory=dict)  # function -> why its picture could not be drawn
    untouched: bool = False  # all answers are the empty ones, so it isn't handed in
    pieces: dict[str, list[int]] = field(default_factory=dict)  # answer cell -> see alike.pieces
    file: str = ""  # as it was found, below the folder of submissions
    seconds: float = 0.0  # that scoring took

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks)

    @property
    def of(self) -> float:
        return sum(check.of for check in self.checks)

    @property
    def verdicts(self) -> tuple[CheckScore, ...]:
        """Its checks, or the one that a file fails which cannot be graded."""
        return self.checks or (CheckScore("", "can it be graded?", 0, 0, self.problem),)

    @property
    def solved(self) -> bool:
        return not any(check.reason for check in self.checks)

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
    """One student's gradings. If there are several files for one exercise, the assignment has a rule for which counts."""

    name: str
    of: dict[str, float]  # exercise -> points to be had
    gradings: list[Grading] = field(default_factory=list)
    assignment: Assignment = Assignment()

    def attempts(self, exercise: str) -> list[Grading]:
        """The gradings of one exercise, the first attempt first; untouched notebooks aren't handed in."""
        gradings = [one for one in self.gradings if one.exercise == exercise and not one.untouched]
        return sorted(gradings, key=lambda one: (one.time, [int(number) for number in re.findall(r"\d+", one.file)]))

    def counted(self, exercise: str) -> Grading | None:
        """The attempt at an exercise that counts."""
        attempts = self.attempts(exercise)
        if self.assignment.attempt == "best":
            return max(attempts, key=self.worth, default=None)
        return attempts[-1 if self.assignment.attempt == "last" else 0] if attempts else None

    def others(self, exercise: str) -> list[Grading]:
        """The attempts at one exercise that don't count."""
        counts = self.counted(exercise)
        return [one for one in self.attempts(exercise) if one is not counts]

    def worth(self, grading: Grading) -> float:
        """The points of an attempt in this assignment, less what lateness takes."""
        kept = 1 - self.assignment.loss(self.days_late(grading)) / 100
        return round(grading.points / (grading.of or 1) * self.of.get(grading.exercise, grading.of) * kept, 2)

    def days_late(self, grading: Grading) -> int:
        """The days begun since the due date; 1 where the platform has only a word for it."""
        return self.assignment.days_late(grading.time) or int(grading.late)

    @property
    def adjustments(self) -> list[Adjustment]:
        """The assignment's rows that name this student."""
        names = {self.name, no_formula(printable(self.name)), *filter(None, self.id.split(","))}
        return [one for one in self.assignment.adjustments if one.student in names]

    def by_hand(self, exercise: str) -> float:
        return sum(one.points for one in self.adjustments if one.exercise == exercise)

    @property
    def id(self) -> str:
        return next((grading.id for grading in self.gradings if grading.id), "")

    @property
    def late(self) -> bool:
        return any(map(self.days_late, self.gradings))

    @property
    def lacks(self) -> list[str]:
        """The exercises that count and that this student did not hand in."""
        return [exercise for exercise in self.of if not self.counted(exercise)]

    @property
    def besides(self) -> list[str]:
        """Files with exercises that don't count."""
        return [one.file for one in self.gradings if not one.untouched and one.exercise not in ("", *self.of)]

    @property
    def page(self) -> str:
        """The file of the student's page, below the report's folder."""
        return f"students/{slug(self.name)}.html"

    @property
    def done(self) -> bool:
        """Whether an exercise that counts was handed in."""
        return any(map(self.counted, self.of))

    def shown(self, exercise: str) -> str:
        """The points as a table has them: "" for an exercise that was neither handed in nor adjusted."""
        return f"{self.points(exercise):g}" if self.counted(exercise) or self.by_hand(exercise) else ""

    @property
    def row(self) -> list[str]:
        """The cells of a table: points by exercise and in all, the most to be had, "late", and the page."""
        return [*map(self.shown, self.of), f"{self.total:g}", f"{self.most:g}", "late" * self.late, self.page]

    def points(self, exercise: str) -> float:
        grading = self.counted(exercise)
        return (self.worth(grading) if grading else 0) + self.by_hand(exercise)

    @property
    def total(self) -> float:
        return round(sum(map(self.points, self.of)) + self.by_hand(""), 2)

    @property
    def most(self) -> float:
        """The points to be had in all exercises."""
        return sum(self.of.values())

    @property
    def problems(self) -> list[str]:
        """The reasons why files were not graded, one per file."""
        return [grading.problem for grading in self.gradings if grading.problem]


def students(gradings: list[Grading], assignment: Assignment = Assignment()) -> list[Student]:
    """All students with a submission, in the order of the gradings."""
    of = assignment.of({grading.exercise for grading in gradings if not grading.untouched})
    people: dict[str, Student] = {}
    for grading in gradings:
        people.setdefault(grading.student, Student(grading.student, of, [], assignment)).gradings.append(grading)
    return list(people.values())


def unknown(people: list[Student]) -> list[str]:
    """A sentence on adjustments whose student is unknown, or of exercises that don't count, if there are any."""
    known = [one for student in people for one in student.adjustments if one.exercise in ("", *student.of)]
    changes = people[0].assignment.adjustments if people else ()
    lost = [f"{one.student} {one.exercise}".strip() for one in changes if one not in known]
    return [f"Adjusted, but unknown or not part of the assignment: {', '.join(lost)}."] if lost else []


def summary(people: list[Student]) -> dict[str, Any]:
    """Per exercise: number handed in, mean, median, number with all points, each check's passes, frequent advice."""
    rows = {}
    for exercise, of in (people[0].of if people else {}).items():
        having = [student for student in people if student.counted(exercise)]
        points, counted = [student.points(exercise) for student in having], [one.counted(exercise) for one in having]
        each_check = zip(*(grading.checks for grading in counted))
        passed = {same[0].what: sum(bool(check.points) for check in same) for same in each_check}
        thoughts = Counter(thought for one in counted for thought in {check.thought for check in one.checks} if thought)
        rows[exercise] = {
            "of": of, "handed in": len(having), "mean": round(statistics.fmean(points or [0]), 2),
            "median": statistics.median(points or [0]), "all points": sum(p >= of for p in points), "passed": passed,
            "reasons": dict(sorted(thoughts.items(), key=lambda item: (-item[1], item[0]))[:5]),
        }  # fmt: skip
    return rows
