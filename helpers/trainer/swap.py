"""A copy of the trainer in which functions that chapters ask for are a learner's."""

import ast
import builtins
import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from .. import course, progress
from ..exercise.tasks import PRACTICE


class TrainerTask(NamedTuple):
    """A function of the trainer that a chapter's short task asks for."""

    name: str
    chapter: str
    file: str


def parts() -> list[TrainerTask]:
    """All such functions, in the order of the chapters."""
    files = {name: path.name for path in sorted(course.TRAINER.glob("*.py")) for name in functions(path.read_text())}
    tasks = [(task.name, chapter) for chapter, tasks in PRACTICE.items() for task in tasks]
    return [TrainerTask(name, chapter, files[name]) for name, chapter in tasks if name in files]


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """The functions that a source defines at its top level, by name."""
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def swap(folder: Path) -> dict[TrainerTask, bool]:
    """Write the trainer to a folder, with the learner's functions that have passed their checks; which these are."""
    shutil.copytree(course.TRAINER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    passed, swapped = progress.practice(), {}
    for part in parts():
        cell = answer(part) if part.name in passed.get(part.chapter, ()) else None
        swapped[part] = cell is not None
        if cell is not None:
            path = folder / part.file
            lines, node = path.read_text().splitlines(), functions(path.read_text())[part.name]
            lines[node.lineno - 1 : node.end_lineno] = cell.splitlines()
            path.write_text("\n".join(lines) + "\n")
    return swapped


def answer(part: TrainerTask) -> str | None:
    """The cell in which a learner has written a function, after the imports it needs; None if it isn't written."""
    cells = code(course.NOTEBOOKS / f"{part.chapter}.ipynb")
    written = [
        cell
        for cell in cells
        if (node := functions(cell).get(part.name)) and not node.decorator_list and "NotImplementedError" not in cell
    ]
    return "\n".join([*imports(written[-1], cells), written[-1].strip()]) if written else None


def imports(cell: str, cells: list[str]) -> list[str]:
    """The import statements among a notebook's cells that bind names which a cell uses: torch's and the standard library's."""
    names = {node.id for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Name)} - set(dir(builtins))
    lines = {}
    for node in (node for text in cells for node in ast.parse(text).body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            plain = all(module.partition(".")[0] in {"torch", *sys.stdlib_module_names} for module in modules)
            if plain and names & {alias.asname or alias.name.partition(".")[0] for alias in node.names}:
                lines[ast.unparse(node)] = None
    return list(lines)


def code(notebook: Path) -> list[str]:
    """The code cells of a notebook that are Python: no magic, no syntax error."""
    sources = [
        "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    return [source for source in sources if parses(source)]


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
