"""Runs the course's notebook with a learner's answers in it under nbval, and reads what came out.

This is feedback for a learner who wants it.  Whoever runs in the check's own process can
fake the outcome, so it is no score.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import nbformat
from nbformat import NotebookNode

from ..notebooks import ROOT
from ..release import is_check
from .submission import Submission, graft, slips

CELL_SECONDS = 60
NOTEBOOK, PROFILE = "exercise.ipynb", "ipython"
# The learner's own conftest.py, plugins, ini and IPython profile stay out.
COMMAND = [
    *(sys.executable, "-c", "import sys, helpers.grade, pytest; sys.exit(pytest.main(sys.argv[1:]))"),
    *("-c", "pytest.ini", "--rootdir", ".", "--noconftest"),
    *("-p", "nbval.plugin", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-kernel-name", "python3"),
    *("--nbval-cell-timeout", str(CELL_SECONDS), "--junit-xml", "outcome.xml", "-v", "--color", "no", NOTEBOOK),
]
OUTCOME = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
COLOURS = re.compile(r"(\x1b|#x1B)\[[0-9;]*m")  # as such, and as XML holds them


@dataclass(frozen=True)
class Check:
    """One check cell."""

    what: str  # its code
    points: float  # to be had
    passed: bool


@dataclass(frozen=True)
class Feedback:
    exercise: str
    checks: list[Check]
    reason: str  # why the first cell that failed did; "" if none
    hints: int  # how many belong to the first check that failed

    @property
    def points(self) -> float:
        return sum(check.points for check in self.checks if check.passed)

    @property
    def of(self) -> float:
        return sum(check.points for check in self.checks)

    @property
    def solved(self) -> bool:
        return not self.reason


def give(submission: Submission, progress: Callable[[int, int], None] = lambda done, of: None) -> Feedback:
    """Grades one submission.  progress: called with the cells done, and how many there are."""
    notebook = graft(submission)
    slip = slips(submission)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if slip:
        checks = [Check(cell.source, cell.metadata.nbgrader.points, False) for cell in cells if is_check(cell)]
        return Feedback(submission.exercise, checks, slip, 0)
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        here = Path(folder)
        nbformat.write(notebook, here / NOTEBOOK)
        (here / "pytest.ini").write_text("[pytest]\n")
        startup = here / PROFILE / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "ranks.py").write_text("import helpers\n")  # they start while the first cell imports torch
        said = _run(here, lambda done: progress(done, len(cells)))
        outcomes = _outcomes(here / "outcome.xml", len(cells)) or [said] * len(cells)
    checks = [
        Check(cell.source, cell.metadata.nbgrader.points, not outcome)
        for cell, outcome in zip(cells, outcomes)
        if is_check(cell)
    ]
    failed = [k for k, outcome in enumerate(outcomes) if outcome]
    first = next((k for k in failed if is_check(cells[k])), None)
    reason = outcomes[failed[0]] if failed else ""  # the others may only follow from it
    return Feedback(submission.exercise, checks, reason, _hints(notebook, cells[first]) if first is not None else 0)


def _run(here: Path, progress: Callable[[int], None]) -> str:
    """Runs nbval to its end; returns its last words, for when it left no outcome."""
    environ = {
        **os.environ,
        "IPYTHONDIR": str(here / PROFILE),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    environ.pop("PYTEST_ADDOPTS", None)
    process = subprocess.Popen(
        COMMAND, cwd=here, env=environ, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said, done = [], 0
    with process:
        try:
            for line in process.stdout:
                said.append(line)
                if "::Cell" in line and OUTCOME.search(line):
                    done += 1
                    progress(done)
        except BaseException:  # Control-C
            os.killpg(process.pid, signal.SIGTERM)
            raise
    return "The notebook could not be run.\n" + "".join(said[-12:])


def _outcomes(path: Path, count: int) -> list[str]:
    """Per code cell: '' if it passed, else why not. Only a cell that says it passed did."""
    try:
        found = {case.get("name"): case for case in ET.parse(path).iter("testcase")}
    except (OSError, ET.ParseError):
        return []
    return [_outcome(found.get(f"Cell {k}"), k) for k in range(count)]


def _outcome(case: ET.Element | None, k: int) -> str:
    if case is None:
        return f"code cell {k + 1} did not run."
    trouble = [child for child in case if child.tag in ("failure", "error", "skipped")]
    if not trouble:
        return ""
    text = COLOURS.sub("", trouble[0].text or trouble[0].get("message") or "")
    if "Timeout of" in text:
        return f"code cell {k + 1} took longer than {CELL_SECONDS} seconds. Is there a loop that does not end?"
    return (text.partition("Traceback:")[2] or text).strip() or f"code cell {k + 1} did not run to its end."


def _hints(notebook: NotebookNode, check: NotebookNode) -> int:
    """The hints in the first cell after this one that has any."""
    after = notebook.cells[[cell.id for cell in notebook.cells].index(check.id) :]
    return next((n for cell in after if (n := cell.source.count("<details>"))), 0)
