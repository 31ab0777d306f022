"""A class list, as a learning platform exports it: each student's submissions, and files that the platform imports.

roster.csv    the list as it was, with each exercise's points
canvas.csv    for Canvas's gradebook, where the list is one that was exported there
moodle.csv    for Moodle's grade import, where the list has a column that it maps people by
"""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .folder import Unfit
from .gradebook import Student
from .safe_text import no_formula

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")  # of an exported gradebook
MOODLE = ("First name", "Last name", "ID number", "Email address", "Username")
GROUP = re.compile(
    r"(group|team|pair)([ _]?name)?", re.IGNORECASE
)  # a column whose rows of one value share a submission
HEADER_ROWS = ("Points Possible", "Student, Test")  # what Canvas lists among the people


@dataclass(frozen=True)
class Roster:
    """The columns of a class list, and its rows."""

    columns: list[str]
    rows: list[dict[str, str]]

    def joined(self, people: list[Student]) -> tuple[list[tuple[dict[str, str], Student | None]], list[Student]]:
        """Each row with its student, None without submissions; and the students that no row or several rows name."""
        by_key: dict[str, set[int]] = {}
        groups: dict[str, set[int]] = {}
        for k, row in enumerate(self.rows):
            for key in _keys_of(row):
                by_key.setdefault(key, set()).add(k)
            for name in (row[column] for column in self.columns if GROUP.fullmatch(column) and row[column].strip()):
                groups.setdefault(_plain(name), set()).add(k)
        found: dict[int, Student] = {}
        strangers = []
        for student in people:
            names = list(map(_plain, (student.name, student.name.removesuffix(f" {student.id}"))))
            keys = [*map(_plain, student.id.split(",")), *names]
            rows = [rows for key in filter(None, keys) if len(rows := by_key.get(key, set())) == 1]
            rows = rows[: max(1, student.id.count(",") + 1)] or [groups[name] for name in names if name in groups]
            if free := set().union(*rows) - found.keys():
                found |= dict.fromkeys(free, student)
            else:
                strangers.append(student)
        for rows in groups.values():  # a partner without a submission has the group's
            if theirs := [found[k] for k in sorted(rows) if k in found]:
                found = dict.fromkeys(rows, max(theirs, key=lambda student: student.total)) | found
        return [(row, found.get(k)) for k, row in enumerate(self.rows)], strangers


def read(path: Path) -> Roster:
    """The class list in a CSV file, with a line of names of columns. Raises Unfit."""
    try:
        content = path.read_text(encoding="utf-8-sig")
        lines = csv.DictReader(io.StringIO(content), delimiter=max(",;\t", key=content.partition("\n")[0].count))
        rows = [{name: value or "" for name, value in row.items() if name} for row in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Unfit(f"The roster {path} cannot be read as CSV: {error}.") from None
    rows = [row for row in rows if any(row.values()) and not next(iter(row.values())).strip().startswith(HEADER_ROWS)]
    if not rows:
        raise Unfit(
            f"The roster {path} names nobody: it needs a line of names of columns, and a line for each student."
        )
    return Roster(
        [name.strip() for name in lines.fieldnames or ()], [{k.strip(): v for k, v in r.items()} for r in rows]
    )


def write(roster: Roster, people: list[Student], save: Callable[[str, str], None]) -> str:
    """Save the files, by name and content; return a message: students without submissions, and strangers."""
    joined, strangers = roster.joined(people)
    of = people[0].of if people else {}

    def points(student: Student | None) -> list[str]:
        return [f"{student.points(name):g}" if student and student.counted(name) else "" for name in of]

    head = [*roster.columns, *of, "points", "of", "late", "page"]
    rows = []
    for row, student in joined:
        rest = [f"{student.total:g}", f"{student.most:g}", "late" * student.late, student.page] if student else [""] * 4
        rows.append([*map(no_formula, row.values()), *points(student), *rest])
    save("roster.csv", _csv(head, rows))
    if {"Student", "ID"} <= set(roster.columns):
        known = [name for name in CANVAS if name in roster.columns]
        most = ["    Points Possible", *[""] * (len(known) - 1), *(f"{points:g}" for points in of.values())]
        save("canvas.csv", _csv([*known, *of], [most, *([*_of(row, known), *points(who)] for row, who in joined)]))
    if known := [name for name in MOODLE if name in roster.columns]:
        save("moodle.csv", _csv([*known, *of], [[*_of(row, known), *points(who)] for row, who in joined]))
    missing = [" ".join(_of(row, roster.columns[:2])) for row, who in joined if not who]
    said = [f"{len(joined)} on the roster, {len(joined) - len(missing)} handed in."]
    said += [f"Nothing from: {', '.join(missing)}."] if missing else []
    unknown = ", ".join(student.name for student in strangers)
    said += [f"Not on the roster, or more than once: {unknown}."] if strangers else []
    return "\n".join(said)


def _of(row: dict[str, str], columns: list[str]) -> list[str]:
    return [row.get(name, "") for name in columns]


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


def _csv(head: list[str], rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([head, *rows])
    return out.getvalue()
