"""An assignment: the exercises that count and for how much, which attempt does, and changes by hand.

Its file is described in exercises/INSTRUCTOR.md.
"""

import configparser
import csv
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from helpers.exercise.notebook import checks_of, exercises

from .safe_text import read_csv

ATTEMPTS = ("first", "last", "best")
COLUMNS = ("student", "exercise", "points", "comment")
KEYS = {"due", "attempt", "late", "column"}
LATE = re.compile(r"(\d+(?:\.\d+)?) *%?( per day)?(?:,? at most (\d+(?:\.\d+)?) *%?)?")
EXAMPLE, DAY = "10 per day, at most 50", timedelta(days=1)


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
    due: datetime | None = None
    attempt: str = "best"
    late: float = 0.0  # percent that a late attempt loses
    per_day: bool = False  # for each day that has begun
    most: float = 100.0  # percent that it loses at most
    column: str = ""  # of the platform's gradebook, for all points; "": a column for each exercise
    adjustments: tuple[Adjustment, ...] = ()

    def days_late(self, time: str) -> int:
        """The days begun between the due date and a time; 0 where either isn't known.

        A time without a zone is in the due date's, and a due date without one is in this machine's.
        """
        if not self.due or not time:
            return 0
        then = datetime.fromisoformat(time)
        due = self.due.astimezone() if then.tzinfo else self.due.replace(tzinfo=None)
        return max(0, -((due - then) // DAY))

    def loss(self, days: int) -> float:
        """The percentage of its points that an attempt loses, by the days it was late."""
        return min(self.most, self.late * (days if self.per_day else days > 0))

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
        names = [] if numbers in ("", "all") else [_exercise(number, "--exercises") for number in numbers.split(",")]
        return Assignment({name: worth(name) for name in sorted(names)} or None)
    if numbers:
        raise ValueError("--assignment names the exercises, so leave out --exercises.")
    parser = configparser.ConfigParser(allow_no_value=True, interpolation=None)
    try:
        parser.read_string(file.read_text(encoding="utf-8-sig"))
        rules = dict(parser["assignment"]) if parser.has_section("assignment") else {}
        listed = dict(parser["exercises"]) if parser.has_section("exercises") else {}
        if odd := {*parser.sections()} - {"assignment", "exercises"} or rules.keys() - KEYS:
            raise ValueError(f"it knows no {min(odd)}")
        due = _due(rules["due"]) if rules.get("due") else None
        attempt, late = rules.get("attempt") or "best", LATE.fullmatch(rules.get("late") or "0")
        if attempt not in ATTEMPTS or not late or max(map(float, filter(None, late.group(1, 3)))) > 100:
            raise ValueError(f"attempt is one of {', '.join(ATTEMPTS)}, and late a percentage, as in {EXAMPLE!r}")
        named = {_exercise(number, file): float(points) if points else None for number, points in listed.items()}
    except (OSError, ValueError, configparser.Error) as error:
        raise ValueError(f"The assignment {file} cannot be used: {error}.") from None
    points = {name: worth(name) if named[name] is None else named[name] for name in sorted(named)}
    loss, most = float(late[1]), float(late[3] or 100)
    return Assignment(points or None, due, attempt, loss, bool(late[2]), most, rules.get("column") or "")


def _due(text: str) -> datetime:
    """A date with a time, and maybe a zone: +01:00, UTC or Europe/Berlin. Raises ValueError."""
    parts = text.split()
    zone = parts.pop() if len(parts) > 1 and re.match(r"[A-Za-z]", parts[-1]) else ""
    due = datetime.fromisoformat(" ".join(parts).replace(" +", "+").replace(" -", "-"))
    due += timedelta(seconds=59 * (due.second == 0))  # 23:59 is on time until the minute is over
    try:
        return due.replace(tzinfo=timezone.utc if zone == "UTC" else ZoneInfo(zone)) if zone else due
    except ZoneInfoNotFoundError:
        raise ValueError(f"this machine knows no time zone {zone}; write due with an offset, as +01:00") from None


def adjusted(assignment: Assignment, file: Path) -> Assignment:
    """The assignment with the adjustments in a file. Raises ValueError."""
    try:
        columns, rows = read_csv(file)
        if lacking := set(COLUMNS) - set(columns):
            raise ValueError(f"it has no column {min(lacking)}")
        changes = []
        for student, exercise, points, comment in ([row[column].strip() for column in COLUMNS] for row in rows):
            if student:
                name = _exercise(exercise, file) if exercise else ""
                changes.append(Adjustment(student, name, float(points.replace(",", ".") or 0), comment))
        return replace(assignment, adjustments=tuple(changes))
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{file} cannot be used: {error}.") from None


def _exercise(number: str, where: Path | str) -> str:
    """The name of an exercise, by that or its number."""
    number = number.strip()
    for name in exercises():
        if number == name or number.isdigit() and int(number) == int(name.partition("_")[0]):
            return name
    raise ValueError(f"{where}: there is no exercise {number!r}.")
