"""A class list, as a learning platform exports it: each student's submissions, and files that the platform imports.

roster.csv is the list with each exercise's points; canvas.csv and moodle.csv are for the gradebook that it came from.
Other lists may follow for the groups alone, as Canvas exports them.
"""

import csv
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from .assignment import Assignment
from .folder import Unfit
from .gradebook import Student
from .safe_text import as_csv, no_formula, read_csv

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")  # of an exported gradebook
MOODLE = ("First name", "Last name", "ID number", "Email address", "Username")
# A column whose rows of one value share a submission.
GROUP = re.compile(r"(group|team|pair)([ _]?name)?", re.IGNORECASE)
HEADER_ROWS = ("Points Possible", "Student, Test")  # what Canvas lists among the people


@dataclass(frozen=True)
class Roster:
    """The columns of a class list, and its rows."""

    columns: list[str]
    rows: list[dict[str, str]]
    groups: dict[str, set[int]]  # the rows of each, by its plain name

    @cached_property
    def by_key(self) -> dict[str, set[int]]:
        """The rows that each name may mean."""
        rows: dict[str, set[int]] = {}
        for k, row in enumerate(self.rows):
            for key in _keys_of(row):
                rows.setdefault(key, set()).add(k)
        return rows

    def row_of(self, name: str) -> int | None:
        """The one row that a name means, or None."""
        rows = self.by_key.get(_plain(name), set())
        return next(iter(rows)) if len(rows) == 1 else None

    def completed(self, people: list[Student], assignment: Assignment) -> list[Student]:
        """The students, with the adjustments that name them as the list does, and with their group's work.

        A student without a submission is one of them if there is an adjustment.
        """
        joined, _ = self.joined(people)
        changes, more = [], {}
        for change in assignment.adjustments:
            row = None if any(change in student.adjustments for student in people) else self.row_of(change.student)
            if row is not None:
                student = joined[row][1]
                own = student and row in map(self.row_of, _names_of(student))
                change = replace(change, student=student.name if own else self._name(row))
                more |= {} if own else {change.student: Student(change.student, {})}
            changes.append(change)
        assignment = replace(assignment, adjustments=tuple(changes))
        of = people[0].of if people else assignment.of(set())
        people = [replace(student, of=of, assignment=assignment) for student in (*people, *more.values())]
        joined, _ = self.joined(people)
        work = {}
        for rows in self.groups.values():
            members = [student for k in rows if (student := joined[k][1])]
            best = max(members, key=lambda student: student.total, default=None)
            work |= {student.name: best.gradings for student in members if not student.done and best.done}
        return [replace(one, gradings=[*one.gradings, *work.get(one.name, [])]) for one in people]

    def _name(self, row: int) -> str:
        """A name that means this row alone."""
        cells = self.rows[row]
        full = f"{cells.get('First name', '')} {cells.get('Last name', '')}"
        return next(name for name in (full, *cells.values()) if self.row_of(name) == row)

    def joined(self, people: list[Student]) -> tuple[list[tuple[dict[str, str], Student | None]], list[Student]]:
        """Each row with its student, None without submissions; and the students that no row or several rows name."""
        found: dict[int, Student] = {}
        strangers = []
        for student in people:
            names = _names_of(student)
            rows = list(dict.fromkeys(row for name in names if (row := self.row_of(name)) is not None))
            rows = rows[: student.id.count(",") + 1]
            rows = rows or next((self.groups[name] for name in map(_plain, names) if name in self.groups), [])
            if free := set(rows) - found.keys():
                found |= dict.fromkeys(free, student)
            else:
                strangers.append(student)
        for rows in self.groups.values():  # a partner without a submission has the group's
            if theirs := [found[k] for k in sorted(rows) if k in found]:
                found = dict.fromkeys(rows, max(theirs, key=lambda student: student.total)) | found
        return [(row, found.get(k)) for k, row in enumerate(self.rows)], strangers

    def files(self, people: list[Student]) -> dict[str, str]:
        """The files for the platform, content by name."""
        if not self.rows:
            return {}
        joined, _ = self.joined(people)
        of, column = (people[0].of, people[0].assignment.column) if people else ({}, "")
        by_hand = any(student.by_hand("") for student in people)  # points that belong to no exercise
        worth = {column: sum(of.values())} if column else of | {"by hand": 0} if by_hand else of

        def cell(student: Student | None, name: str) -> str:
            if not student or name == column and not student.done and not student.adjustments:
                return ""
            if name == column:
                return f"{student.total:g}"
            return student.shown(name) if name in of else f"{student.by_hand(''):g}" if student.by_hand("") else ""

        def imported(names: list[str], *above: list[str]) -> str:
            rows = [[*_of(row, names), *(cell(student, name) for name in worth)] for row, student in joined]
            return as_csv([[*names, *worth], *above, *rows])

        blank = [""] * (len(of) + 4)
        rows = [[*map(no_formula, row.values()), *(student.row if student else blank)] for row, student in joined]
        files = {"roster.csv": as_csv([[*self.columns, *of, "points", "of", "late", "page"], *rows])}
        if {"Student", "ID"} <= set(self.columns):
            known = [name for name in CANVAS if name in self.columns]
            most = ["    Points Possible", *[""] * (len(known) - 1), *(f"{points:g}" for points in worth.values())]
            files["canvas.csv"] = imported(known, most)
        if known := [name for name in MOODLE if name in self.columns]:
            files["moodle.csv"] = imported(known)
        return files

    def remarks(self, people: list[Student]) -> list[str]:
        """Sentences on students without submissions, and on strangers."""
        if not self.rows:
            return []
        joined, strangers = self.joined(people)
        missing = [" ".join(_of(row, self.columns[:2])) for row, who in joined if not (who and who.gradings)]
        said = [f"{len(joined)} on the roster, {len(joined) - len(missing)} handed in."]
        column = people[0].assignment.column if people else ""
        if column and {"Student", "ID"} <= set(self.columns) and column not in self.columns:
            said.append(f"The roster has no column {column}, so Canvas would add one. Is its name spelled as there?")
        said += [f"Nothing from: {', '.join(missing)}."] if missing else []
        unknown = ", ".join(student.name for student in strangers)
        return said + ([f"Not on the roster, or more than once: {unknown}."] if strangers else [])


def read(paths: list[Path]) -> Roster:
    """The class list in the first CSV file, with the groups of all; without a file, an empty list. Raises Unfit."""
    tables = list(map(_table, paths))
    columns, rows = tables[0] if tables else ([], [])
    roster = Roster(columns, rows, {})
    for names, members in tables:
        for row in members:
            who = next((k for key in sorted(_keys_of(row)) if (k := roster.row_of(key)) is not None), None)
            for name in (row[column] for column in names if GROUP.fullmatch(column) and row[column].strip()):
                roster.groups.setdefault(_plain(name), set()).update([] if who is None else [who])
    return roster


def _table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a list, and its rows of people. Raises Unfit."""
    try:
        columns, rows = read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise Unfit(f"The roster {path} cannot be read as CSV: {error}.") from None
    rows = [row for row in rows if any(row.values()) and not next(iter(row.values())).strip().startswith(HEADER_ROWS)]
    if not rows:
        raise Unfit(f"The roster {path} names nobody: it needs a line of names of columns, and one for each student.")
    return columns, rows


def _of(row: dict[str, str], columns: list[str]) -> list[str]:
    return [row.get(name, "") for name in columns]


def _names_of(student: Student) -> list[str]:
    return [*filter(None, student.id.split(",")), student.name, student.name.removesuffix(f" {student.id}")]


def _keys_of(row: dict[str, str]) -> set[str]:
    """The names a student of this row may go by: each of its cells, and first and last name in either order."""
    first, last = row.get("First name", ""), row.get("Last name", "") or row.get("Surname", "")
    names = [first + last, last + first]
    names += ["".join(reversed(row.get("Student", "").split(", ")))]  # Canvas: "Lee, Ann"
    names += [row.get("Email address", "").partition("@")[0], row.get("SIS Login ID", "").partition("@")[0]]
    return {key for name in (*row.values(), *names) if (key := _plain(name))}


def _plain(name: str) -> str:
    """A name without what platforms leave out of names of files."""
    return re.sub(r"\W|_", "", name).casefold()
