"""The HTML pages of a report: one for each student, one about the class. No scripts; nothing is loaded."""

from __future__ import annotations

from html import escape
from typing import Any

from .gradebook import Student
from .grading import Grading

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }}
pre {{ background: #f5f5f2; padding: .8em 1em; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 14px; line-height: 1.4; }}
table {{ border-collapse: collapse; }} th, td {{ text-align: left; padding: .2em 1.2em .2em 0; }}
td.n, th.n {{ text-align: right; }}
img {{ max-width: 100%; }} .yes {{ color: #1b6e3c; }} .no {{ color: #a8321b; }} .note {{ color: #666; }}
.bar {{ display: inline-block; width: 8em; height: .7em; background: #e6e6e0; }}
.bar span {{ display: block; height: 100%; background: #3f7fbf; }}
</style></head><body>
{body}
</body></html>
"""


def _page(title: str, *parts: str) -> str:
    return _PAGE.format(title=escape(title), body="\n".join([f"<h1>{escape(title)}</h1>", *parts]))


def feedback(title: str, student: Student) -> str:
    """One student's page: points, reasons, and the picture of each run."""
    parts = [f"<p>{escape(student.name)}: <b>{student.total:g} of {student.most:g} points</b></p>"]
    for grading in student.gradings:
        if grading.problem:
            parts.append(f"<h2>{escape(grading.file)}</h2>\n<p class=no>Not graded. {escape(grading.problem)}</p>")
    for exercise, of in student.of.items():
        grading = student.best(exercise)
        parts.append(f"<h2>{escape(exercise)}: {student.points(exercise):g} of {of:g}</h2>")
        parts.append(_checks(grading) if grading else "<p class=note>Not handed in.</p>")
    return _page(title, *parts)


def _checks(grading: Grading) -> str:
    parts, shown, drawn = [], "", set()
    last = {_function(check.what): check for check in grading.checks}
    for check in grading.checks:
        mark = "<b class=no>✗</b>" if check.reason else "<b class=yes>✓</b>"
        parts.append(f"<p>{mark} {check.points:g} of {check.of:g} &ensp; {escape(check.what)}</p>")
        if check.reason and check.reason == shown:
            parts.append("<p class=note>For the same reason.</p>")
        elif check.reason:
            parts.append(f"<pre>{escape(check.reason)}</pre>")
            shown = check.reason
        elif check.cost:
            parts.append(f"<p class=note>{escape(check.cost)}</p>")
        name = _function(check.what)
        if (check.reason or check is last[name]) and name not in drawn and grading.pictures.get(name):
            drawn.add(name)
            source = f"data:image/png;base64,{grading.pictures[name]}"
            parts.append(f'<p><img alt="What the ranks said to each other." src="{source}"></p>')
    for name, why in grading.undrawn.items():
        parts.append(
            f"<p class=no>The picture of {escape(name)} could not be drawn, by a mistake of the course: {escape(why)}</p>"
        )
    return "\n".join(parts)


def _function(what: str) -> str:
    return what.partition(":")[0]


def statistics(title: str, people: list[Student], summary: dict[str, Any], walls: bool) -> str:
    """The class's page: points by exercise, how often each check passed, and the advice given most."""
    parts = [f"<p>{len(people)} students.</p>"]
    if not walls:
        parts.append(
            "<p class=no>Graded without a sandbox: submitted code could read and write what the grader can.</p>"
        )
    rows = [
        "<tr><th>exercise<th class=n>handed in<th class=n>mean<th class=n>median<th class=n>of<th class=n>all points</tr>"
    ]
    for exercise, s in summary.items():
        numbers = (s["handed in"], s["mean"], s["median"], s["of"], s["all points"])
        rows.append(f"<tr><td>{escape(exercise)}" + "".join(f"<td class=n>{n:g}" for n in numbers) + "</tr>")
    parts.append(_table(rows))
    for exercise, s in summary.items():
        parts.append(f"<h2>{escape(exercise)}</h2>")
        parts.append(_table([_share(what, passed, s["handed in"]) for what, passed in s["passed"].items()]))
        if s["reasons"]:
            items = "".join(
                f"<li>{escape(thought)} <span class=note>({n})</span></li>" for thought, n in s["reasons"].items()
            )
            parts.append(f"<p>What they were told to think about most:</p>\n<ol>{items}</ol>")
    parts.append("<h2>Students</h2>")
    rows = ["<tr><th>student<th class=n>points<th class=n>of</tr>"]
    for student in people:
        rows.append(f"<tr><td>{escape(student.name)}<td class=n>{student.total:g}<td class=n>{student.most:g}</tr>")
    return _page(f"{title}: the class", *parts, _table(rows))


def _share(what: str, passed: int, of: int) -> str:
    bar = f'<span class=bar><span style="width: {100 * passed // of}%"></span></span>'
    return f"<tr><td>{escape(what)}<td class=n>{passed} of {of}<td>{bar}</tr>"


def _table(rows: list[str]) -> str:
    return "<table>\n" + "\n".join(rows) + "\n</table>"
