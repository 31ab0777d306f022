"""The points of a check cell, and what comes after it, as the course's own notebooks say."""

from __future__ import annotations

import re
from typing import NamedTuple

import nbformat

from ..course import SOLUTIONS
from .notebook import CHECK, is_check
from .tasks import EXERCISES


class Cell(NamedTuple):
    """A check cell."""

    points: float
    next: str  # what comes after it, in a sentence
    is_last: bool  # of the checks of its function


def cell_of(function: str, aspect: str) -> Cell | None:
    """The check cell of a function.  aspect: "values" or "budget".  None where the course has no such cell."""
    exercise = next((name for name, tasks in EXERCISES.items() if any(t.name == function for t in tasks)), "")
    path = SOLUTIONS / f"{exercise}.ipynb"
    if not path.is_file():
        return None
    cells = list(filter(is_check, nbformat.read(path, as_version=4).cells))
    calls = [CHECK.match(cell.source.strip()).groups() for cell in cells]
    if (aspect, function) not in calls:
        return None
    k = calls.index((aspect, function))
    after = calls[k + 1][1] if k + 1 < len(calls) else None
    if after is None:
        said = _exercise_after(exercise)
    elif after == function:
        said = "Next: the check in the cell below."
    else:
        said = f"Next: {after}, below."
    return Cell(cells[k].metadata.nbgrader.points, said, after != function)


def _exercise_after(exercise: str) -> str:
    later = [name for name in EXERCISES if name > exercise and (SOLUTIONS / f"{name}.ipynb").is_file()]
    if not later:
        return "That was the last exercise."
    title = re.match(r"# Exercise (.+)", nbformat.read(SOLUTIONS / f"{later[0]}.ipynb", as_version=4).cells[0].source)
    return f"Next: exercise {title[1]} ({later[0]}.ipynb)."
