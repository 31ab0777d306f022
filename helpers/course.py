"""The course's files: chapters, exercises, their tasks, solutions."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, EXERCISES, SOLUTIONS = ROOT / "notebooks", ROOT / "exercises", ROOT / "solutions"
TRAINER = NOTEBOOKS / "trainer"  # a program of its own, whose files import each other
TASKS = EXERCISES / "tasks"  # a Python file for each exercise
OWN_FOLDER = (
    "COURSE_TASKS"  # environment variable: a folder of further exercises, a solved notebook and a Python file for each
)


def own_exercises() -> list[Path]:
    """The folder of further exercises, if there is one."""
    return [Path(os.environ[OWN_FOLDER])] if os.environ.get(OWN_FOLDER) else []


def chapters() -> list[Path]:
    """The chapters' notebooks, in reading order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
