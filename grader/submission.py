"""Reads a submitted notebook and takes the answers out of it: the source of the answer cells, nothing else.

A submission is never changed and never run as it is.  Its answers are put into the course's own notebook, whose checks,
metadata and kernel stay what they are.
"""

import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from helpers.exercise.notebook import checks_of, exercises, is_answer, is_check, pristine, without_solution

from .inside.cell import code_of

MOST_CELLS = 2_000
MOST_CHARACTERS = 16_384  # of an answer, lest it is a table of inputs that were seen; the tests' longest has 3,467


class UnusableSubmission(Exception):
    """A file that cannot be graded. The message has the reason and the remedy."""


@dataclass(frozen=True)
class Submission:
    exercise: str  # "02_distributed_mean"
    answers: dict[str, str]  # cell id -> source
    elsewhere: dict[str, int] = field(default_factory=dict)  # name -> number of the other cell that defines it

    @property
    def untouched(self) -> bool:
        """Whether every answer is still the stub."""
        return all(self.answers[name].strip() == stub.strip() for name, stub in stubs(self.exercise).items())


class SubmittedCell:
    """A cell as it was handed in, whatever tool saved it."""

    def __init__(self, number: int, saved: dict[str, Any]) -> None:
        self.number = number  # in the notebook, from 1
        self.id = _text(saved.get("id"))
        metadata = saved.get("metadata")
        grading = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        # nbgrader's name of a cell, which is its id in the course, and outlives tools that know no ids; "" for none
        self.grade_id = _text(grading.get("grade_id")) if isinstance(grading, dict) else ""
        self.is_code = saved.get("cell_type") == "code"
        source = saved.get("source")
        self.source = "".join(map(_text, source)) if isinstance(source, list) else _text(source)

    def defines(self, wanted: NotebookNode) -> bool:
        """Whether it defines all functions of an answer cell."""
        return set() < set(_functions(wanted.source)) <= set(_functions(self.source))


def _text(saved: Any) -> str:
    return saved if isinstance(saved, str) else ""


def _functions(source: str) -> list[str]:
    return re.findall(r"^def (\w+)", source, re.MULTILINE)


def stubs(exercise: str) -> dict[str, str]:
    """The answer cells as they are handed out, id -> source."""
    return {cell.id: cell.source for cell in without_solution(pristine(exercise)).cells if is_answer(cell)}


def parse(path: Path, content: bytes) -> Submission:
    """The submission in a file's content; the path only names it. Raises UnusableSubmission."""
    cells = _cells(path, content)
    exercise = _exercise_of(path, cells)
    given, answers, used = stubs(exercise), {}, []
    for wanted in filter(is_answer, pristine(exercise).cells):
        matches = [cell for cell in cells if cell.id == wanted.id]
        matches = matches or [cell for cell in cells if cell.grade_id == wanted.id][:1]
        if [cell.source.strip() for cell in matches] in ([], [given[wanted.id].strip()]):
            matches = _elsewhere(wanted, cells, matches) or matches
        if flaw := _flaw(exercise, wanted, matches, cells):
            raise UnusableSubmission(f"{path}: {flaw}")
        used += (parts := _parts(wanted, matches[0], cells))
        answers[wanted.id] = "\n".join(cell.source for cell in parts)
        if (length := len(answers[wanted.id])) > MOST_CHARACTERS:
            raise UnusableSubmission(
                f"{path}: the answer cell of {_function(wanted)} has {length:,} characters, and an answer has at most "
                f"{MOST_CHARACTERS:,}. Compute what you look up in it, and leave out tables and data."
            )
    submission = Submission(exercise, answers, _strays(exercise, cells, used))
    names = [name for source in given.values() for name in _functions(source)] if submission.untouched else []
    if astray := next((name for name in names if name in submission.elsewhere), None):
        what = f"there is a {astray} in cell {submission.elsewhere[astray]}, and that is not the answer cell."
        raise UnusableSubmission(f"{path}: {what} Put your code into the answer cell itself, replacing what is there.")
    return submission


def _elsewhere(wanted: NotebookNode, cells: list[SubmittedCell], without: list[SubmittedCell]) -> list[SubmittedCell]:
    """The one other cell that defines an answer's functions, as where it was typed again, or saved without metadata."""
    found = [cell for cell in cells if cell not in without and cell.is_code and cell.defines(wanted)]
    return found if len({cell.source.strip() for cell in found}) == 1 else []


def _parts(wanted: NotebookNode, first: SubmittedCell, cells: list[SubmittedCell]) -> list[SubmittedCell]:
    """The answer's cells: those that splitting it has left, if their code makes sense together; not its copies."""
    name = first.grade_id or wanted.id
    parts = [cell for cell in cells if cell is first or cell.grade_id == name and cell.is_code]
    if sum(cell.defines(wanted) for cell in parts) > 1:
        return [first]
    source = "\n".join(cell.source for cell in parts)
    try:
        if len(source) <= MOST_CHARACTERS:  # else they are refused, and compiling them may take minutes
            code_of(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [first]
    return parts


def _strays(exercise: str, cells: list[SubmittedCell], used: list[SubmittedCell]) -> dict[str, int]:
    """By name, the number of the first cell that defines it and is none of the course's, nor used as an answer."""
    own = {str(cell.id) for cell in pristine(exercise).cells}
    nameless = own - {cell.id for cell in cells if cell not in used}  # these are known by their grade_id
    found: dict[str, int] = {}
    for cell in cells:
        if cell.is_code and cell not in used and cell.id not in own and cell.grade_id not in nameless:
            for name in re.findall(r"^(?:def|class) (\w+)|^(\w+) *=[^=]", cell.source, re.MULTILINE):
                found.setdefault("".join(name), cell.number)
    return found


def graft(submission: Submission) -> NotebookNode:
    """The course's notebook with the learner's answers in it, without the cells for trying things out."""
    notebook = pristine(submission.exercise)
    notebook.cells = [cell for cell in notebook.cells if "try" not in cell.metadata.get("tags", ())]
    for cell in notebook.cells:
        if cell.id in submission.answers:
            cell.source = submission.answers[cell.id]
    return notebook


def _cells(path: Path, content: bytes) -> list[SubmittedCell]:
    try:
        notebook = json.loads(content.decode("utf-8-sig"))  # Windows editors begin a file with a mark
    except (ValueError, RecursionError) as error:
        marks = (b"<<<<<<<", b">>>>>>>")
        line = next((k for k, line in enumerate(content.splitlines(), 1) if line.lstrip().startswith(marks)), 0)
        why = f"Line {line} is the mark of a git merge (<<<<<<<)." if line else "Was it saved to the end?"
        raise UnusableSubmission(
            f"{path} is not a notebook, or its file is damaged ({error}). {why} "
            "Take a fresh copy of the exercise and paste your answer in."
        ) from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if isinstance(notebook, dict) and "worksheets" in notebook:
        raise UnusableSubmission(
            f"{path} is of the old format 3. Open and save it in JupyterLab, or: jupyter nbconvert --to notebook --inplace"
        )
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UnusableSubmission(f"{path} is not a Jupyter notebook of format 4: it has no list of cells.")
    if len(cells) > MOST_CELLS:
        raise UnusableSubmission(
            f"{path} has {len(cells):,} cells, and at most {MOST_CELLS:,} are looked through. "
            "Take a fresh copy of the exercise and paste your answer in."
        )
    return [SubmittedCell(number, cell) for number, cell in enumerate(cells, 1)]


def _exercise_of(path: Path, cells: list[SubmittedCell]) -> str:
    """The exercise whose cells these are; a file may be named as it likes, but not like another exercise."""
    ids = {name for cell in cells for name in (cell.id, cell.grade_id)}
    marked = _marked_names()
    if not any(own & ids for own in marked.values()):  # Colab and others may drop all metadata
        ids = {name for cell in cells if cell.is_code for name in _functions(cell.source)}
        marked = {name: {check.function for check in checks_of(name)} for name in exercises()}
    overlap = {name: len(own & ids) for name, own in marked.items()}
    best = max(overlap, key=overlap.__getitem__, default="")
    named = next((name for name in marked if path.stem.startswith(name)), None)
    if not best or not overlap[best]:
        what = f"none of the cells of exercise {named}" if named else "the cells of no exercise of this course"
        raise UnusableSubmission(
            f"{path} holds {what}. Cells are known by their id, by nbgrader's "
            "grade_id, or by the function they define: put the answers into the course's own notebook."
        )
    if named and overlap[named] < overlap[best]:
        raise UnusableSubmission(f"{path} is named like exercise {named}, but holds {best}. Which one do you mean?")
    return best


@functools.cache
def _marked_names() -> dict[str, set[str]]:
    """The ids of answer and check cells of each exercise."""
    return {n: {c.id for c in pristine(n).cells if is_answer(c) or is_check(c)} for n in exercises()}


def _function(cell: NotebookNode) -> str:
    return ", ".join(_functions(cell.source)) or cell.id


def _flaw(exercise: str, wanted: NotebookNode, matches: list[SubmittedCell], cells: list[SubmittedCell]) -> str:
    """The reason why there is not one answer cell, a code cell; "" if there is.  matches: the cells with its id."""
    name = _function(wanted)
    if len(matches) > 1:
        several = f"there are {len(matches)} cells with the id {wanted.id}"
        return f"{several}, so it is not clear which is your answer to {name}. Delete all but one."
    if matches:
        remedy = "Select it in JupyterLab and press Y, which makes it one."
        return "" if matches[0].is_code else f"the answer cell of {name} is no longer a code cell. {remedy}"
    k = next((cell.number for cell in cells if name in _functions(cell.source)), 0)
    copied = "one that was copied or cut and pasted gets a new id"
    elsewhere = f" There is a {name} in cell {k}, but that is a different cell: {copied}." if k else ""
    anew = f"Take a fresh copy of the exercise (git restore exercises/{exercise}.ipynb; keep a copy of yours)"
    missing = f"the answer cell of {name} is missing (the cell with the id {wanted.id}).{elsewhere}"
    return f"{missing} {anew} and put your code into its answer cell."
