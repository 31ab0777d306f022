"""The files of a class's report: a table, CSV, JSON, JUnit XML, HTML pages, Gradescope's results.json.

A page for each student and one about the class have no scripts, and load nothing. They show text of untrusted notebooks,
which the templates escape: whatever they insert becomes text, never markup.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FileSystemLoader

from collectives.format import align
from collectives.version import __version__

from . import alike
from .entries import Entry
from .folder import ReportFolder, write
from .gradebook import Grading, Student, summary
from .safe_text import as_csv, no_formula, printable, short, slug


def table(people: list[Student]) -> str:
    """For the terminal."""
    names = list(people[0].of)
    rows = [["student", *(name.partition("_")[0] for name in names), "points", "of", ""]]
    for student in people:
        cells = [student.shown(name) or "-" for name in names]
        problems = len(student.problems)
        note = f"{problems} file{'s' * (problems != 1)} not graded" if problems else ""
        rows.append([short(student.name), *cells, f"{student.total:g}", f"{student.most:g}", note])
    return align(rows, right=range(1, len(rows[0])))


def listing(entries: list[Entry]) -> str:
    """A table of files and the students they would be graded for, for the terminal."""
    rows = [["student", "id", "late", "file", "why it can't be graded"]]
    rows += [[one.student, one.id, "late" * one.late, one.file, one.problem] for one in entries]
    lost = len({one.student for one in entries} - {one.student for one in entries if not one.problem})
    count = f"{len({one.student for one in entries})} students, {lost} of them with nothing to grade."
    return f"{align([list(map(short, row[:-1])) + [printable(row[-1])] for row in rows])}\n\n{count}"


def write_all(report: ReportFolder, people: list[Student], gradings: list[Grading], gradescope: bool = False) -> None:
    """Writes the files of the report."""
    folder = report.folder
    write(folder / "scores.csv", _csv(people))
    pages = {student.name: student.page for student in people}
    submissions = [one.data() | {"page": pages[one.student]} for one in gradings]
    submissions = [{k: row[k] for k in row.keys() - {"pictures", "pieces"}} for row in submissions]
    whole = {"grading": report.settings, "statistics": summary(people), "submissions": submissions}
    write(folder / "report.json", json.dumps(whole, indent=1, sort_keys=True) + "\n")
    write(folder / "junit.xml", rendered("junit.xml", people=people))
    walls, pairs = report.settings["sandbox"], alike.pairs(people)[:100]
    page = rendered("class.html", people=people, summary=summary(people), walls=walls, pairs=pairs)
    write(folder / "statistics.html", page)
    for name in ("students", *["gradescope"] * gradescope):
        (folder / name).mkdir(exist_ok=True)
    for student in people:
        drawn = [replace(one, pictures=one.pictures or report.pictures(one)) for one in student.gradings]
        write(folder / student.page, rendered("student.html", student=replace(student, gradings=drawn)))
        if gradescope:
            write(folder / "gradescope" / f"{slug(student.name)}.json", _gradescope(student))
    write(folder / "return.zip", _returned(folder, people))


def _returned(folder: Path, people: list[Student]) -> bytes:
    """A zip of the pages, named as each student's first file or folder was, by which platforms know them, or as the page."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for student in people:
            # A partner's file is named after the partner.
            answers = (grading.file for grading in student.gradings if grading.student == student.name)
            first, *rest = PurePath(next(answers, student.page.partition("/")[2])).parts
            name = re.sub(r"[\\:]", "_", printable(f"{first}/feedback.html" if rest else f"{PurePath(first).stem}.html"))
            name = PurePath(student.page).name if name in archive.namelist() else name
            page = zipfile.ZipInfo(name)  # without a time, so the same pages give the same archive
            page.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(page, (folder / student.page).read_bytes())
    return content.getvalue()


def _csv(people: list[Student]) -> str:
    names = list(people[0].of) if people else []
    hands = any(student.adjustments for student in people)
    rows = [["student", *names, "points", "of", "late", "page", "problems", *["by hand", "comments"] * hands]]
    for student in people:
        row = [student.name, *student.row, " ".join(student.problems)]
        by_hand = f"{sum(one.points for one in student.adjustments):g}" if student.adjustments else ""
        row += [by_hand, " ".join(filter(None, (one.comment for one in student.adjustments)))] * hands
        rows.append([no_formula(printable(cell)) for cell in row])
    return as_csv(rows)


def _gradescope(student: Student) -> str:
    """results.json, as Gradescope's autograder specification has it."""
    tests = [
        {
            "name": f"{exercise}: {check.what}", "score": check.points, "max_score": check.of,
            "status": "failed" if check.reason else "passed", "output": check.reason or check.cost,
            "output_format": "text",
        }
        for exercise in student.of
        if (grading := student.counted(exercise))
        for check in grading.checks
    ]  # fmt: skip
    result = {
        "score": student.total, "output": "\n".join(student.problems), "output_format": "text", "visibility": "visible",
        "tests": tests, "extra_data": {"of": student.most},
    }  # fmt: skip
    return json.dumps(result, indent=1) + "\n"


def rendered(template: str, **data: Any) -> str:
    """A page or file of the report, from its template."""
    return _PAGES.get_template(template).render(data)


def _rows(grading: Grading) -> Iterator[dict[str, Any]]:
    """Each check, whether its reason was given before, and its function's picture: at its first that fails, or last."""
    reason, drawn = "", set()
    last = {check.function: check for check in grading.checks}
    for check in grading.checks:
        name = check.function
        picture = "" if name in drawn or not (check.reason or check is last[name]) else grading.pictures.get(name, "")
        drawn |= {name} if picture else set()
        yield {"check": check, "same": check.reason and check.reason == reason, "picture": picture}
        reason = check.reason or reason


_FILES = FileSystemLoader(Path(__file__).with_name("templates"))
_PAGES = Environment(loader=_FILES, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
_PAGES.globals |= {"title": "Exercises in collective communication", "version": __version__}
_PAGES.filters |= {"number": lambda value: f"{value:g}", "rows": _rows, "printable": printable}
