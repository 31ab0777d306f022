"""A class's gradings by student and by exercise, and what they tell about the class."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from .grading import Grading
from .score import checks_of
from .submission import exercises


@dataclass
class Student:
    """One student's gradings. Of several files for one exercise the best counts."""

    name: str
    of: dict[str, float]  # exercise -> points to be had, of all that the class did
    gradings: list[Grading] = field(default_factory=list)

    def best(self, exercise: str) -> Grading | None:
        mine = [grading for grading in self.gradings if grading.exercise == exercise]
        return max(mine, key=lambda grading: grading.points, default=None)

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
        """The reasons why files were not graded, one a file."""
        return [grading.problem for grading in self.gradings if grading.problem]


def students(gradings: list[Grading]) -> list[Student]:
    """Everybody who handed something in, in the order of the gradings."""
    done = {grading.exercise for grading in gradings}
    of = {name: sum(check.points for check in checks_of(name)) for name in exercises() if name in done}
    found: dict[str, Student] = {}
    for grading in gradings:
        found.setdefault(grading.student, Student(grading.student, of)).gradings.append(grading)
    return list(found.values())


def summary(people: list[Student]) -> dict[str, Any]:
    """Per exercise: how many handed it in, mean, median, how many got all, and how often each check passed."""
    found = {}
    for exercise, of in (people[0].of if people else {}).items():
        best = [grading for student in people if (grading := student.best(exercise))]
        points = [grading.points for grading in best]
        passed = {
            check.what: sum(bool(grading.checks[k].points) for grading in best)
            for k, check in enumerate(best[0].checks)
        }
        found[exercise] = {
            "of": of, "handed in": len(best), "mean": round(statistics.fmean(points), 2),
            "median": statistics.median(points), "all points": sum(p == of for p in points), "passed": passed,
            "reasons": reasons(best),
        }  # fmt: skip
    return found


def reasons(gradings: list[Grading]) -> dict[str, int]:
    """The last lines of advice that several got, most frequent first."""
    thoughts: dict[str, int] = {}
    for grading in gradings:
        lines = {line for check in grading.checks for line in check.reason.splitlines()}
        for thought in {line.removeprefix("Think: ") for line in lines if line.startswith("Think: ")}:
            thoughts[thought] = thoughts.get(thought, 0) + 1
    return dict(sorted(thoughts.items(), key=lambda item: (-item[1], item[0]))[:5])
