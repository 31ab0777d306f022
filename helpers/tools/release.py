"""Makes exercises/ from solutions/:   python -m helpers.tools.release [--force]     (make exercises)

The same cells without answers and outputs, see exercise/notebook.py.  An exercise that somebody
has worked in is left alone, unless --force.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ..course import EXERCISES, SOLUTIONS
from ..exercise.notebook import is_answer, released


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
