"""What comes out of grading a class: a table, CSV, JSON, JUnit XML, pages, Gradescope's results.json."""

from __future__ import annotations

import csv
import io
import json
import statistics
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import Any

from . import pages
from .batch import Report, slug, write
from .score import checks_of
from .submission import exercises
from .terminal import printable

TITLE = "Exercises in collective communication"


@dataclass
class Student:
    """One student's gradings. Of several files for one exercise the best counts."""

    name: str
    of: dict[str, float]  # exercise -> points to be had, of all that the class did
    records: list[dict[str, Any]] = field(default_factory=list)

    def best(self, exercise: str) -> dict[str, Any] | None:
        mine = [record for record in self.records if record["exercise"] == exercise]
        return max(mine, key=lambda record: record["points"], default=None)

    def points(self, exercise: str) -> float:
        record = self.best(exercise)
        return record["points"] if record else 0

    @property
    def total(self) -> float:
        return sum(map(self.points, self.of))


def students(records: list[dict[str, Any]]) -> list[Student]:
    done = {record["exercise"] for record in records}
    of = {name: sum(check.points for check in checks_of(name)) for name in exercises() if name in done}
    found: dict[str, Student] = {}
    for record in records:
        found.setdefault(record["student"], Student(record["student"], of)).records.append(record)
    return list(found.values())


def table(people: list[Student]) -> str:
    """For the terminal."""
    if not people:
        return "Nobody handed in anything."
    names = list(people[0].of)
    rows = [["student", *(name.partition("_")[0] for name in names), "points", "of", ""]]
    for student in people:
        cells = [f"{student.points(name):g}" if student.best(name) else "-" for name in names]
        problems = sum(bool(record["problem"]) for record in student.records)
        note = f"{problems} file{'s' * (problems != 1)} not graded" if problems else ""
        rows.append([printable(student.name), *cells, f"{student.total:g}", f"{sum(student.of.values()):g}", note])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(word.ljust(w) if k == 0 else word.rjust(w) for k, (word, w) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def write_all(report: Report, records: list[dict[str, Any]], gradescope: bool = False) -> None:
    """Every file of the report, from the records alone."""
    people, folder = students(records), report.folder
    write(folder / "scores.csv", _csv(people))
    kept = [{key: value for key, value in record.items() if key != "pictures"} for record in records]
    whole = {"grading": report.settings, "statistics": summary(people), "submissions": kept}
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


def summary(people: list[Student]) -> dict[str, Any]:
    """Per exercise: how many handed it in, mean, median, how many got all, and how often each check passed."""
    found = {}
    for exercise, of in (people[0].of if people else {}).items():
        best = [record for student in people if (record := student.best(exercise))]
        points = [record["points"] for record in best]
        checks = {
            check["what"]: sum(bool(record["checks"][k]["points"]) for record in best)
            for k, check in enumerate(best[0]["checks"])
        }
        found[exercise] = {
            "of": of, "handed in": len(best), "mean": round(statistics.fmean(points), 2),
            "median": statistics.median(points), "all points": sum(p == of for p in points), "passed": checks,
            "reasons": _reasons(best),
        }  # fmt: skip
    return found


def _reasons(records: list[dict[str, Any]]) -> dict[str, int]:
    """The last lines of advice that several got, most frequent first."""
    thoughts: dict[str, int] = {}
    for record in records:
        mine = {
            line for check in record["checks"] for line in check["reason"].splitlines() if line.startswith("Think: ")
        }
        for thought in mine:
            thoughts[thought.removeprefix("Think: ")] = thoughts.get(thought.removeprefix("Think: "), 0) + 1
    return dict(sorted(thoughts.items(), key=lambda item: (-item[1], item[0]))[:5])


def _csv(people: list[Student]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(people[0].of) if people else []
    writer.writerow(["student", *names, "points", "of", "problems"])
    for student in people:
        points = [f"{student.points(name):g}" if student.best(name) else "" for name in names]
        problems = " ".join(record["problem"] for record in student.records if record["problem"])
        row = [student.name, *points, f"{student.total:g}", f"{sum(student.of.values()):g}", problems]
        writer.writerow([_no_formula(printable(cell)) for cell in row])
    return out.getvalue()


def _no_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t")) else cell


def _junit(people: list[Student]) -> str:
    root = ET.Element("testsuites", name=TITLE)
    for student in people:
        suite = ET.SubElement(root, "testsuite", name=printable(student.name))
        for record in student.records:
            for check in record["checks"] or [{"what": "can it be graded?", "reason": record["problem"]}]:
                where = record["exercise"] or printable(record["file"])
                case = ET.SubElement(suite, "testcase", classname=where, name=check["what"])
                if check["reason"]:
                    failure = ET.SubElement(case, "failure", message=printable(check["reason"].partition("\n")[0]))
                    failure.text = "".join(c for c in check["reason"] if c == "\n" or c.isprintable())
        failures = len(suite.findall("testcase/failure"))
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(failures))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _gradescope(student: Student) -> str:
    """results.json, as Gradescope's autograder specification has it."""
    tests = [
        {
            "name": f"{record['exercise']}: {check['what']}", "score": check["points"], "max_score": check["of"],
            "status": "failed" if check["reason"] else "passed", "output": check["reason"] or check["cost"],
            "output_format": "text",
        }
        for exercise in student.of
        if (record := student.best(exercise))
        for check in record["checks"]
    ]  # fmt: skip
    problems = "\n".join(record["problem"] for record in student.records if record["problem"])
    result = {
        "score": student.total,
        "output": problems,
        "output_format": "text",
        "visibility": "visible",
        "tests": tests,
    }
    return json.dumps(result, indent=1) + "\n"
