"""A course kept with nbgrader itself, in an environment of its own, whose kernel is this course's.

For the test that exercises work there as they are, and for the benchmark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import nbformat

from helpers.course import ROOT, SOLUTIONS

VERSION = "0.9.6"
SCORES = """
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    print({s.student.id: (s.score, s.max_score) for s in book.assignment_submissions("exercise")})
"""


class NotInstalled(Exception):
    """nbgrader could not be installed. The message says why."""


def environment(folder: Path) -> Path:
    """Makes an environment with nbgrader, or takes the one that is there; returns its Python. Raises NotInstalled."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", f"nbgrader=={VERSION}"], capture_output=True, text=True
    )
    if done.returncode:
        raise NotInstalled(done.stderr.strip().rpartition("\n")[2])
    return python


class Course:
    """A course folder with one assignment, made from one solution."""

    def __init__(self, folder: Path, python: Path, exercise: str) -> None:
        self.folder, self.exercise, self._python = folder, exercise, python
        source = folder / "source" / "exercise"
        source.mkdir(parents=True)
        shutil.copy(SOLUTIONS / f"{exercise}.ipynb", source)
        kernel = folder / "jupyter" / "kernels" / "python3"
        kernel.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (kernel / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": "the course's", "language": "python"})
        )
        (folder / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'course'\n")

    def _run(self, *command: str) -> subprocess.CompletedProcess:
        environ = {
            **os.environ,
            "PATH": f"{self._python.parent}{os.pathsep}{os.environ['PATH']}",
            "JUPYTER_PATH": str(self.folder / "jupyter"),
            "IPYTHONDIR": str(self.folder / "ipython"),
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.run([self._python, *command], cwd=self.folder, env=environ, capture_output=True, text=True)

    def _nbgrader(self, *command: str) -> subprocess.CompletedProcess:
        return self._run("-m", "nbgrader", *command)

    def generate(self) -> nbformat.NotebookNode:
        """nbgrader's own release version of the solution."""
        done = self._nbgrader("generate_assignment", "exercise", "--force")
        assert done.returncode == 0, done.stderr
        return nbformat.read(self.folder / "release" / "exercise" / f"{self.exercise}.ipynb", as_version=4)

    def submit(self, student: str, notebook: str) -> None:
        place = self.folder / "submitted" / student / "exercise"
        place.mkdir(parents=True)
        (place / f"{self.exercise}.ipynb").write_text(notebook, encoding="utf-8")

    def autograde(self) -> dict[str, tuple[float, float]]:
        """Student -> points and points to be had."""
        done = self._nbgrader("autograde", "exercise", "--force")
        return self.scores(done.stderr)

    def scores(self, said: str = "") -> dict[str, tuple[float, float]]:
        """Student -> points and points to be had, in the gradebook.  said: before, by nbgrader."""
        told = self._run("-c", SCORES)
        assert told.returncode == 0, said + told.stderr
        return eval(told.stdout)

    def to_gradebook(self, report: Path) -> str:
        """Takes the points of a report.json into the gradebook; returns what that said."""
        done = self._run(str(ROOT / "exercises" / "nbgrader" / "to_nbgrader.py"), str(report), "gradebook.db")
        assert done.returncode == 0, done.stderr
        return done.stdout
