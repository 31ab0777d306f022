"""The files of a class's report: a table, CSV, JSON, JUnit XML, pages, Gradescope's results.json."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET

from . import pages
from .batch import Report, slug, write
from .gradebook import Student, students, summary
from .grading import CheckScore, Grading
from .terminal import printable

TITLE = "Exercises in collective communication"


def table(people: list[Student]) -> str:
    """For the terminal."""
    if not people:
        return "Nobody handed in anything."
    names = list(people[0].of)
    rows = [["student", *(name.partition("_")[0] for name in names), "points", "of", ""]]
    for student in people:
        cells = [f"{student.points(name):g}" if student.best(name) else "-" for name in names]
        problems = len(student.problems)
        note = f"{problems} file{'s' * (problems != 1)} not graded" if problems else ""
        rows.append([printable(student.name), *cells, f"{student.total:g}", f"{student.most:g}", note])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(word.ljust(w) if k == 0 else word.rjust(w) for k, (word, w) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def write_all(report: Report, gradings: list[Grading], gradescope: bool = False) -> None:
    """Writes every file of the report, from the gradings alone."""
    people, folder = students(gradings), report.folder
    write(folder / "scores.csv", _csv(people))
    submissions = [{key: value for key, value in one.data().items() if key != "pictures"} for one in gradings]
    whole = {"grading": report.settings, "statistics": summary(people), "submissions": submissions}
    write(folder / "report.json", json.dumps(whole, indent=1, sort_keys=True) + "\n")
    write(folder / "junit.xml", _junit(people))
    write(folder / "statistics.html", pages.statistics(TITLE, people, summary(people), report.walls))
    (folder / "students").mkdir(exist_ok=True)
    for student in people:
        write(folder / "students" / f"{slug(student.name)}.html", pages.feedback(TITLE, student))
    if gradescope:
        (folder / "gradescope").mkdir(exist_ok=True)
        for student in people:
            write(folder / "gradescope" / f"{slug(student.name)}.json", _gradescope(student))


def _csv(people: list[Student]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(people[0].of) if people else []
    writer.writerow(["student", *names, "points", "of", "problems"])
    for student in people:
        points = [f"{student.points(name):g}" if student.best(name) else "" for name in names]
        problems = " ".join(student.problems)
        row = [student.name, *points, f"{student.total:g}", f"{student.most:g}", problems]
        writer.writerow([_no_formula(printable(cell)) for cell in row])
    return out.getvalue()


def _no_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t")) else cell


def _junit(people: list[Student]) -> str:
    root = ET.Element("testsuites", name=TITLE)
    for student in people:
        suite = ET.SubElement(root, "testsuite", name=printable(student.name))
        for grading in student.gradings:
            for check in grading.checks or [CheckScore("", "can it be graded?", 0, 0, grading.problem)]:
                where = grading.exercise or printable(grading.file)
                case = ET.SubElement(suite, "testcase", classname=where, name=check.what)
                if check.reason:
                    failure = ET.SubElement(case, "failure", message=printable(check.reason.partition("\n")[0]))
                    failure.text = "".join(c for c in check.reason if c == "\n" or c.isprintable())
        failures = len(suite.findall("testcase/failure"))
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(failures))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _gradescope(student: Student) -> str:
    """results.json, as Gradescope's autograder specification has it."""
    tests = [
        {
            "name": f"{exercise}: {check.what}", "score": check.points, "max_score": check.of,
            "status": "failed" if check.reason else "passed", "output": check.reason or check.cost,
            "output_format": "text",
        }
        for exercise in student.of
        if (grading := student.best(exercise))
        for check in grading.checks
    ]  # fmt: skip
    result = {
        "score": student.total,
        "output": "\n".join(student.problems),
        "output_format": "text",
        "visibility": "visible",
        "tests": tests,
    }
    return json.dumps(result, indent=1) + "\n"
