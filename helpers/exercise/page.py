"""A reader's cells on a page of the website: executed on pretended ranks, checked as in the notebook, and shown.

A page has Python and its standard library; before this module is imported, `torch` and `matplotlib` must be the small ones of
collectives/pretend and collectives/draw.
"""

import ast
import io
import linecache
import runpy
import traceback
from contextlib import redirect_stdout
from typing import Any, Callable

import collectives
import helpers
from collectives.format import wrap
from collectives.launch.pretended import run, run_separately
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run
from collectives.pretend.dtypes import Absent
from helpers import course, exercise

from . import on_rank
from .cases import WORLD_SIZES, Case
from .task import Task
from .trial import AnswerTrial, CheckFailed, NotWritten, calls_words, of_the_chapter, telling_run, tried_words

MOST_PRINTED = 20_000  # characters


class Page:
    """The outputs of a notebook's cell on a page.

    notebook: its name, "00_start_here".  finished: its short tasks that were solved before.  outputs: a {"text"} or a {"picture",
    "words"} each.  solved: the task that this cell solves.
    """

    def __init__(self, notebook: str, finished: list[str]) -> None:
        self.notebook, self.finished = notebook, set(finished)
        self.outputs: list[dict] = []
        self.solved: str | None = None
        self.printed = io.StringIO()
        file = course.TASKS / "practice" / f"{notebook}.py"
        self.tasks = {task.name: task for task in runpy.run_path(str(file))["TASKS"]} if file.exists() else {}

    def show(self, value: Any, words: str = "") -> None:
        """Show a run, a picture, or the words for another value."""
        self.flush()
        picture = value.draw() if isinstance(value, Run) and any(value.events) else value
        if hasattr(picture, "svg"):
            self.outputs.append(
                {"picture": picture.image(), "words": words or (repr(value) if isinstance(value, Run) else "")}
            )
        elif value is not None:
            self.outputs.append({"text": repr(value)})

    def flush(self) -> None:
        """Show what was printed so far."""
        if text := self.printed.getvalue()[:MOST_PRINTED]:
            self.outputs.append({"text": text})
        self.printed.seek(0)
        self.printed.truncate()

    def check_practice(self, answer: Callable) -> None:
        """Check an answer as `helpers.exercise.check_practice` does. Raises CheckFailed for one that isn't right."""
        task = self.tasks.get(getattr(answer, "__name__", ""))
        if task is None:
            raise ValueError("this page has no task of that name. Keep the name that the function had.")
        tried = AnswerTrial(task, answer, True, on_pretended_ranks, self._show_failed, 0).all_cases(WORLD_SIZES, {})
        self.solved = task.name
        count = of_the_chapter(task.name, self.notebook, list(self.tasks), self.finished)
        print(wrap(f"Right, in {tried_words(task)}{calls_words(task, tried)}. {count}"))
        if isinstance(task, Task):
            self.show(telling_run(task, tried))

    def _show_failed(self, failed: Run, shows: Any) -> None:
        for rank, text in enumerate(failed.stdout):
            for line in text.splitlines():
                print(f"[{rank}] {line}")
        if shows or any(failed.events):
            self.show(shows or failed)


def on_pretended_ranks(answer: Callable, cases: list[Case], inputs: list[list[tuple]]) -> Run:
    """The run of cases of one world size, one after the other."""
    size, late = cases[0].world_size, [case.late for case in cases]

    def inputs_of(rank: int) -> list[list]:
        return [[arguments[rank] if k == rank else None for k in range(size)] for arguments in inputs]

    return run_separately(on_rank.perform, [((answer, late, inputs_of(rank)), {}) for rank in range(size)], quiet=True)


def evaluate(cell: dict) -> dict:
    """The outcome of a cell: {outputs, failure, line, solved}.

    cell: {notebook, before, source, check, finished}; before: the sources of the cells above, which run first, without showing
    anything; check: the function to be checked after the cell has run, or None.
    failure: in words, None if all went well.  line: the place in the cell where it failed; None where no line of it raised.
    """
    on_rank.LATE_SECONDS = 0
    page, above = Page(cell["notebook"], cell["finished"]), Page("", [])
    names: dict[str, Any] = {"__name__": "__main__"}
    failed = None
    for number, source in enumerate(cell["before"]):
        with redirect_stdout(io.StringIO()):
            try:
                _execute(source, f"<cell {number + 1}>", names, above)
            except (Exception, SystemExit) as error:
                failed = failed or f"{type(error).__name__}: {error}".partition("\n")[0]
    file, failure, line = "<this cell>", None, None
    with redirect_stdout(page.printed):
        try:
            page.show(_execute(cell["source"], file, names, page))
            if cell["check"]:
                if cell["check"] not in names:
                    raise CheckFailed(
                        f"There is no function {cell['check']} in the cell: it begins with `def {cell['check']}(`."
                    )
                page.check_practice(names[cell["check"]])
        except (Exception, SystemExit) as error:
            page.flush()
            failure, line = _words(error, file), _line(error, file)
            if isinstance(error, RunError):
                page.show(error.draw() if getattr(error, "waits", None) else error.run)
            if failed and isinstance(error, NameError):
                failure += f"\nA cell above ended with an error: {failed}"
    page.flush()
    return {"outputs": page.outputs, "failure": failure, "line": line, "solved": page.solved}


def _execute(source: str, file: str, names: dict[str, Any], page: Page) -> Any:
    """Execute a cell. Returns the value of its last line if that is an expression, for which a notebook shows it."""
    _provide(page)
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    if last is None or source.rstrip().endswith(";"):
        if last is not None:
            exec(compile(ast.Module([last], []), file, "exec"), names)
        return None
    return eval(compile(ast.Expression(last.value), file, "eval"), names)


def _provide(page: Page) -> None:
    """Give the course's modules the functions that a cell imports from them."""

    def predict(fn: Callable, *args: Any, ask: Any = None, call: Any = None, answer: Any = None, **options: Any) -> Run:
        return run(fn, *args, **options)

    for room, provided in (
        (collectives, {"run": run}),
        (helpers, {"run": run, "predict": predict}),
        (exercise, {"check_practice": page.check_practice}),
    ):
        for name, value in provided.items():
            setattr(room, name, value)


def _words(error: BaseException, file: str) -> str:
    if isinstance(error, NotWritten):
        return (
            "The line is still to be written: replace `raise NotImplementedError()` with your code, then run the cell."
        )
    if isinstance(error, CheckFailed):
        return str(error)
    if isinstance(error, RunError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, Absent):
        return (
            f"{str(error)[:1].upper()}{str(error)[1:]}. JupyterLab has it: install the course, and run the cell there."
        )
    where = f"line {line}: " if (line := _line(error, file)) else ""
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    words = f"{where}{type(error).__name__}: {words}"
    if isinstance(error, ImportError):
        words += ". A page has Python's standard library, a small torch, and of the course `run` and `check_practice`."
    return words


def _line(error: BaseException, file: str) -> int | None:
    """The last line of the cell that an error went through; a SyntaxError's own."""
    if isinstance(error, (RunError, CheckFailed)):
        return None  # the words name the ranks' lines
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None
