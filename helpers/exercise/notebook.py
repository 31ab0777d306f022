"""An exercise's notebook: its answers and checks, their points, and how the exercise comes out of its solution. Needs no torch.

In a solution's answer cell the lines outside these marks stay, and the lines between them go:

    ### BEGIN SOLUTION          a `raise NotImplementedError()` takes their place,
    ### END SOLUTION
    ### BEGIN STUB              or, if there is one, this block without its "# "
    ### END STUB
"""

import copy
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from ..course import SOLUTIONS, own_exercises

SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION\n?", re.DOTALL | re.MULTILINE)
CHECK = re.compile(r"^check_(values|budget)\((\w+)\)$")  # the one line of a check cell: aspect, function
STUB = re.compile(r"^[ \t]*### BEGIN STUB\n(.*?)^[ \t]*### END STUB\n?", re.DOTALL | re.MULTILINE)
PLACEHOLDER = "raise NotImplementedError()  # replace this line with your code\n"


def exercises() -> list[str]:
    """The names of all exercises, in the order in which they can be done: "02_distributed_mean"."""
    return sorted(path.stem for folder in (SOLUTIONS, *own_exercises()) for path in folder.glob("*.ipynb"))


def chapter_before(exercise: str) -> str:
    """The number of the last chapter that an exercise's opening asks for: "05"; "" for none."""
    return max(re.findall(r"/notebooks/(\d\d)_", pristine(exercise).cells[0].source), default="")


def solution(exercise: str) -> Path:
    """The file of an exercise's solved notebook."""
    paths = [folder / f"{exercise}.ipynb" for folder in (*own_exercises(), SOLUTIONS)]
    return next((path for path in paths if path.exists()), paths[-1])


def pristine(exercise: str) -> NotebookNode:
    """The course's own notebook of an exercise, solved."""
    path = solution(exercise)
    return copy.deepcopy(_read(path, path.stat().st_mtime_ns))


@lru_cache
def _read(path: Path, saved: int) -> NotebookNode:
    """The notebook in a file that was last saved then."""
    return nbformat.read(path, as_version=4)


def is_answer(cell: NotebookNode) -> bool:
    """Whether the learner writes this cell."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: NotebookNode) -> bool:
    """Whether this cell gives points."""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def without_solution(solution: NotebookNode) -> NotebookNode:
    """The exercise that a learner gets: the same cells, without answers and outputs."""
    exercise = nbformat.from_dict(solution)
    for cell in exercise.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if is_answer(cell):
                cell.source = stubbed(cell.source)
    return exercise


def stubbed(source: str) -> str:
    source += "\n"
    if stub := STUB.search(source):
        source = STUB.sub("", source)
        code = re.sub(r"^([ \t]*)# ?", r"\1", stub[1], flags=re.MULTILINE)
        code = re.sub(r"[ \t]+$", "", code, flags=re.MULTILINE)
        return SOLUTION.sub(lambda _: code, source).rstrip()
    return SOLUTION.sub(lambda match: match[1] + PLACEHOLDER, source).rstrip()


class CheckCell(NamedTuple):
    """A cell that gives points."""

    name: str  # its id
    aspect: str  # "values" or "budget"
    function: str
    points: float


def checks_of(exercise: str) -> list[CheckCell]:
    """The check cells of an exercise. Raises ValueError for one that is not a single call of a check."""
    checks = []
    for cell in filter(is_check, pristine(exercise).cells):
        match = CHECK.match(cell.source.strip())
        if not match:
            raise ValueError(f"{exercise}: the check cell {cell.id} is not one call of check_values or check_budget")
        checks.append(CheckCell(cell.id, match[1], match[2], cell.metadata.nbgrader.points))
    return checks


def after(exercise: str, check: CheckCell) -> str:
    """A sentence on what comes after a check cell."""
    checks = checks_of(exercise)
    if following := checks[checks.index(check) + 1 :]:
        same = following[0].function == check.function
        return "Next: the check in the cell below." if same else f"Next: {following[0].function}, below."
    order = exercises()
    name = next(iter(order[order.index(exercise) + 1 :]), None)
    if name is None:
        return "That was the last exercise."
    title = re.match(r"# Exercise (.+)", pristine(name).cells[0].source)
    chapter = chapter_before(name)
    first = f", after chapter {chapter}" if chapter > chapter_before(exercise) else ""
    return f"Next: exercise {title[1]} ({name}.ipynb){first}."
