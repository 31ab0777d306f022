"""Makes exercises/ from solutions/:   python -m helpers.release [--force]     (make exercises)

An answer cell keeps what stands outside these lines, and loses what stands between them:

    ### BEGIN SOLUTION          a `raise NotImplementedError()` takes its place,
    ### END SOLUTION
    ### BEGIN STUB              or, if there is one, this block without its "# "
    ### END STUB

The outputs go too.  An exercise that somebody has worked in is left alone, unless --force.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from .notebooks import ROOT

SOLUTIONS, EXERCISES = ROOT / "solutions", ROOT / "exercises"
SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION\n?", re.DOTALL | re.MULTILINE)
STUB = re.compile(r"^[ \t]*### BEGIN STUB\n(.*?)^[ \t]*### END STUB\n?", re.DOTALL | re.MULTILINE)
PLACEHOLDER = "raise NotImplementedError()  # your code in place of this line\n"


def is_answer(cell: NotebookNode) -> bool:
    """Whether the learner writes this cell."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: NotebookNode) -> bool:
    """Whether this cell gives points."""
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def released(solution: NotebookNode) -> NotebookNode:
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
    stub = STUB.search(source)
    if stub:
        source = STUB.sub("", source)
        given = re.sub(r"^([ \t]*)# ?", r"\1", stub[1], flags=re.MULTILINE)
        given = re.sub(r"[ \t]+$", "", given, flags=re.MULTILINE)
        return SOLUTION.sub(lambda _: given, source).rstrip()
    return SOLUTION.sub(lambda match: match[1] + PLACEHOLDER, source).rstrip()


def is_worked_in(path: Path, wanted: NotebookNode) -> bool:
    """Whether an exercise holds somebody's work: it was run, or an answer is no stub."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception:  # cut short, or no notebook at all: not ours to overwrite
        return True
    stubs = {cell.id: cell.source for cell in wanted.cells if is_answer(cell)}
    return any(
        cell.get("execution_count") or stubs.get(cell.get("id"), cell.source) != cell.source for cell in notebook.cells
    )


def text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def main(arguments: list[str]) -> int:
    kept = []
    for source in sorted(SOLUTIONS.glob("*.ipynb")):
        exercise, path = released(nbformat.read(source, as_version=4)), EXERCISES / source.name
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before == text(exercise):
            print(f"{path.name}: as before")
        elif before is not None and "--force" not in arguments and is_worked_in(path, exercise):
            kept.append(path.name)
        else:
            path.write_text(text(exercise), encoding="utf-8")
            print(f"{path.name}: made")
    for name in kept:
        print(f"{name}: left alone, it has answers or outputs in it (--force makes it new)", file=sys.stderr)
    return int(bool(kept))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
