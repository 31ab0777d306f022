"""An assignment: the exercises that count and for how much, which attempt does, and changes by hand.

[assignment]                    a file of one, all of it optional
due = 2026-11-10 23:59          for names that have a time; others are late if they have LATE
attempt = last                  first, last or best, which is the default
late = 10                       percent of its points that a late attempt loses

[exercises]
02 = 10                         points; by default, what its checks give
05 =
"""

import configparser
import csv
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from helpers.exercise.notebook import checks_of, exercises

ATTEMPTS = ("first", "last", "best")
COLUMNS = ("student", "exercise", "points", "comment")


@dataclass(frozen=True)
class Adjustment:
    """Points that an instructor gives or takes, and a comment."""

    student: str  # as in scores.csv, or an id
    exercise: str  # "02_distributed_mean"; "" for all of them
    points: float
    comment: str


@dataclass(frozen=True)
class Assignment:
    points: dict[str, float] | None = None  # of each exercise; None: what the class did, for the points of its checks
    due: str = ""  # "2026-11-10 23:59:00"
    attempt: str = "best"
    late: float = 0.0  # percent that a late attempt loses
    adjustments: tuple[Adjustment, ...] = ()

    def of(self, done: set[str]) -> dict[str, float]:
        """The points of each exercise that counts. done: what the class handed in."""
        if self.points is not None:
            return self.points
        return {name: worth(name) for name in exercises() if name in done}


def worth(exercise: str) -> float:
    return sum(check.points for check in checks_of(exercise))


def read(numbers: str, file: Path | None) -> Assignment:
    """The assignment of --exercises and --assignment. Raises ValueError."""
    if file is None:
        names = [_exercise(number, "--exercises") for number in numbers.split(",")] if numbers else None
        return Assignment({name: worth(name) for name in sorted(names)} if names else None)
    if numbers:
        raise ValueError("--assignment names the exercises, so leave out --exercises.")
    parser = configparser.ConfigParser(allow_no_value=True, interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8-sig"))
        rules = dict(parser["assignment"]) if parser.has_section("assignment") else {}
        listed = dict(parser["exercises"]) if parser.has_section("exercises") else {}
        if odd := {*parser.sections()} - {"assignment", "exercises"} or rules.keys() - {"due", "attempt", "late"}:
            raise ValueError(f"it knows no {min(odd)}")
        due = str(datetime.fromisoformat(rules["due"])) if rules.get("due") else ""
        attempt, late = rules.get("attempt") or "best", float((rules.get("late") or "0").rstrip("% "))
        if attempt not in ATTEMPTS or not 0 <= late <= 100:
            raise ValueError(f"attempt is one of {', '.join(ATTEMPTS)}, and late 0 to 100")
        named = {_exercise(number, file): float(points) if points else None for number, points in listed.items()}
    except (OSError, ValueError, configparser.Error) as error:
        raise ValueError(f"The assignment {file} cannot be used: {error}.") from None
    points = {name: worth(name) if named[name] is None else named[name] for name in sorted(named)}
    return Assignment(points or None, due, attempt, late)


def adjusted(assignment: Assignment, file: Path) -> Assignment:
    """The assignment with the adjustments in a file. Raises ValueError."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=text.partition("\n")[0].count))
        if lacking := set(COLUMNS) - set(rows.fieldnames or ()):
            raise ValueError(f"it has no column {min(lacking)}")
        given = [{key: (row[key] or "").strip() for key in COLUMNS} for row in rows]
        return replace(assignment, adjustments=tuple(_adjustment(row, file) for row in given if row["student"]))
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{file} cannot be used: {error}.") from None


def _adjustment(row: dict[str, str], file: Path) -> Adjustment:
    exercise = _exercise(row["exercise"], file) if row["exercise"] else ""
    return Adjustment(row["student"], exercise, float(row["points"].replace(",", ".") or 0), row["comment"])


def _exercise(number: str, where: Path | str) -> str:
    """The name of an exercise, by that or its number."""
    number = number.strip()
    for name in exercises():
        if number == name or number.isdigit() and int(number) == int(name.partition("_")[0]):
            return name
    raise ValueError(f"{where}: there is no exercise {number!r}.")
