"""Makes exercises/ from solutions/:   python -m tools.release [--force] [--handout FOLDER]     (make exercises)

The same cells without answers and outputs, see exercise/notebook.py.  An exercise that somebody has worked in is left
alone, unless --force.  With --handout, all go to FOLDER instead, without their hints.  Exercises of one's own
(COURSE_TASKS=folder) go to `exercises` in their folder.  Nothing is made while a file of exercises/tasks/ has faults: `problems` lists them.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers import course
from helpers.course import NOTEBOOKS
from helpers.exercise.cases import WORLD_SIZES, Case
from helpers.exercise.notebook import CHECK, exercises, is_answer, is_check, pristine, solution, without_solution
from helpers.exercise.task import Budget, Puzzle, Task
from helpers.exercise.tasks import EXERCISES, PRACTICE

ASPECTS = {"values", "inputs", "waits", "calls", "traffic", "Mismatch", "RankFailed", "Stuck"}  # of a task's thoughts
LIMITS = {field.name for field in fields(Budget)}
HINTS = re.compile(r"(## Hints\n(?:(?!<details>).)*)?<details>\s*<summary>Hint \d.*?</details>\s*", re.DOTALL)


def problems() -> list[str]:
    """A sentence for each thing that is missing or wrong."""
    lacking = set(exercises()) - set(EXERCISES)
    found = [f"exercises/tasks/{name}.py is missing: solutions/{name}.ipynb needs it." for name in lacking]
    for name, tasks in EXERCISES.items():
        found += _unlike_notebook(name, [task.name for task in tasks])
    for chapter, short in PRACTICE.items():
        path = NOTEBOOKS / f"{chapter}.ipynb"
        cells = nbformat.read(path, as_version=4).cells if path.is_file() else []
        for task in short:
            if not any(cell.source.strip() == f"check_practice({task.name})" for cell in cells):
                found.append(f"{task.name}: no cell of notebooks/{chapter}.ipynb is check_practice({task.name}).")
    tasks = [task for tasks in (*EXERCISES.values(), *PRACTICE.values()) for task in tasks]
    counts = Counter(task.name for task in tasks)
    found += [f"{name}: {count} tasks have this name." for name, count in counts.items() if count > 1]
    return found + [f"{task.name}: {what}" for task in tasks for what in flaws(task)]


def _unlike_notebook(exercise: str, names: list[str]) -> Iterator[str]:
    """The differences between the functions that an exercise's file and its notebook ask for, a sentence each."""
    if exercise not in exercises():
        yield f"solutions/{exercise}.ipynb is missing: exercises/tasks/{exercise}.py needs it."
        return
    cells = pristine(exercise).cells
    answers = "\n".join(cell.source for cell in cells if is_answer(cell))
    matches = {cell.id: CHECK.match(cell.source.strip()) for cell in cells if is_check(cell)}
    checked = {match[2] for match in matches.values() if match}
    for cell, match in matches.items():
        if not match:
            yield f"{exercise}: the check cell {cell} is not one call of check_values or check_budget."
    for name in names:
        if not re.search(rf"^def {name}\(", answers, re.MULTILINE):
            yield f"{name}: no answer cell of solutions/{exercise}.ipynb defines it."
        if name not in checked:
            yield f"{name}: no cell of solutions/{exercise}.ipynb checks it."
    for name in checked - set(names):
        yield f"{name}: exercises/tasks/{exercise}.py has no task of this name."


def flaws(task: Task | Puzzle) -> Iterator[str]:
    """The faults that keep a task from judging an answer, case by case."""
    sizes = (1,) if isinstance(task, Puzzle) else WORLD_SIZES
    if left_out := [size for size in sizes if size not in {case.world_size for case in task.cases}]:
        yield f"no case has world size {', '.join(map(str, left_out))}."
    known = ASPECTS | LIMITS
    for case in task.cases:
        if case.world_size not in sizes:
            yield f"the case {case} has world size {case.world_size}, and answers are tried at {sizes}."
            continue
        try:
            known |= _measured_quantities(task, case)
        except Exception as error:
            yield f"its case {case} with world size {case.world_size} fails: {type(error).__name__}: {error}"
    if isinstance(task, Task) and (strange := set(task.thoughts) - known):
        yield f"nothing that can be wrong is called {', '.join(sorted(strange))}, as in its thoughts."


def _measured_quantities(task: Task | Puzzle, case: Case) -> set[str]:
    """The names of the quantities in a case's budget, once all that a judge needs from the task has been computed."""
    arguments = task.arguments(case)
    if isinstance(task, Puzzle):
        return set()
    by_rank = {"results": task.reference(arguments), "arguments": (task.after or list)(arguments)}
    for what, values in (by_rank | {"needs": task.needs(case, arguments)}).items():
        if len(values) != case.world_size:
            raise ValueError(f"{len(values)} {what} are wanted of {case.world_size} ranks")
    for suspect in task.suspects:
        suspect.result(arguments)
    return {measure.words for measure in task.budget(case, arguments).measures}


def is_worked_in(path: Path, wanted: NotebookNode) -> bool:
    """Whether an exercise holds somebody's work: it was run, or an answer isn't the stub."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception:  # cut short, or no notebook at all: not ours to overwrite
        return True
    stubs = {cell.id: cell.source for cell in wanted.cells if is_answer(cell)}
    unlike = (stubs.get(cell.get("id"), cell.source) != cell.source for cell in notebook.cells)
    return any(unlike) or any(cell.get("execution_count") for cell in notebook.cells)


def without_hints(exercise: NotebookNode) -> NotebookNode:
    """The same exercise without its folded hints, and without a cell that held nothing else."""
    made = nbformat.from_dict(exercise)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = HINTS.sub("", cell.source).rstrip()
    made.cells = [cell for cell in made.cells if cell.source or cell.cell_type == "code"]
    return made


def text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def main(arguments: list[str]) -> int:
    handout = arguments[arguments.index("--handout") + 1 :][:1] if "--handout" in arguments else None
    if handout == [] or handout and handout[0].startswith("-"):
        print("Name a folder: python -m tools.release --handout handout", file=sys.stderr)
        return 2
    if wrong := problems():
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    kept = []
    for name in exercises():
        exercise, own = without_solution(pristine(name)), solution(name).parent
        path = (course.EXERCISES if own == course.SOLUTIONS else own / "exercises") / f"{name}.ipynb"
        if handout:
            exercise, path = without_hints(exercise), Path(handout[0]) / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
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
