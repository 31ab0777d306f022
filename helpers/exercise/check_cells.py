"""The functions of an exercise's check cells:

    from helpers.exercise import check_budget, check_practice, check_values
    check_values(distributed_mean)  # is it right?
    check_budget(distributed_mean)  # ... and does it move no more than it must?
    check_practice(in_sync)  # both at once, for a chapter's short task

    @mine_or  # the learner's from here on, if it is right
    def in_sync(x): ...

An answer runs on real ranks, at eight world sizes, on inputs it has not seen.
"""

import ast
import contextlib
import io
import pickle
import re
import sys
from typing import Any, Callable

from collectives import frontend
from collectives.format import size, wrap
from collectives.launch import run as launch
from collectives.launch.pickling import pack
from collectives.launch.pool import preload
from collectives.launch.session import Settings
from collectives.outcome.run import Run

from .. import progress
from .cases import WORLD_SIZES, Case, ranks
from .feedback import to_write, traffic_words
from .notebook import after, checks_of, exercises
from .on_rank import perform
from .task import Attempt, Puzzle, Task
from .tasks import EXERCISES, PRACTICE, TASKS
from .trial import (
    AnswerTrial,
    CheckFailed,
    NotWritten,
    TriedCase,
    calls_words,
    of_the_chapter,
    telling_run,
    tried_words,
)

TIMEOUT_SECONDS = 10.0  # an answer may take for the cases of one world size,
COMPUTING_SECONDS = 2.5  # or longer while it computes, until a rank has used this: see grader/inside/seccomp.py


def check_values(answer: Callable) -> None:
    """Check that a function returns what its exercise asks for, by the calls it allows.

    answer: named as in the exercise.  Prints a line if all is well, raises CheckFailed with the reason otherwise, and
    TypeError or ValueError if it isn't an answer at all.
    """
    task, key = task_of(answer), _key(answer)
    try:
        tried = attempt_all(task, answer, budget=False)
    except CheckFailed as failed:
        _wrong.update(() if isinstance(failed, NotWritten) else [key])
        raise
    _wrong.discard(key)
    print(wrap(f"Right: {task.name} does what it should in {tried_words(task)}."))
    _record_success(task, "values", tried)


def check_budget(answer: Callable) -> None:
    """Check values as check_values does, and traffic: it must stay within the exercise's budget."""
    task, key = task_of(answer), _key(answer)
    if key is not None and key in _wrong:
        raise CheckFailed(f"{task.name} isn't right yet, so its budget wasn't checked. See what check_values says.")
    tried = attempt_all(task, answer, budget=True)
    if isinstance(task, Puzzle):
        case, inputs, attempt = tried[-1]
        print(wrap(f"Right, in {tried_words(task)}. {task.praise(case, inputs[0], attempt.results[0])}"))
    else:
        case, inputs, attempt = max(
            tried, key=lambda each: (each[0].world_size, not each[0].uneven, each[2].traffic.busiest)
        )  # with uneven sizes one rank's traffic means little
        budget = task.budget(case, inputs)
        best = "" if budget.least is None else f", and less than {size(round(budget.least))} is impossible"
        print(f"Right and within its budget, in {tried_words(task)}.")
        print(wrap(f"With {ranks(case.world_size)}, {traffic_words(attempt.traffic)}{best}."))
        print(wrap(f"The budget: {budget.words}."))
    _record_success(task, "budget", tried)


def check_practice(answer: Callable) -> None:
    """Check the answer to a chapter's short task as check_budget does. One that is not written yet isn't an error."""
    task = task_of(answer)
    if answer is _answers.get(task.name):
        print(f"This {task.name} is the course's answer. Run the cell with yours, then this one.")
        return
    _passed.pop(task.name, None)
    try:
        tried = attempt_all(task, answer, budget=True)
    except NotWritten:
        print(to_write(task, "Or open the answer below."))
        return
    _passed[task.name] = answer
    print(wrap(f"Right, in {tried_words(task)}{calls_words(task, tried)}. {_of_the_chapter(task)}"))
    progress.practised(task.name)
    if isinstance(task, Task):
        _show_one(task, tried)


def mine_or(answer: Callable) -> Callable:
    """The learner's function of the same name if it has passed its check, and the course's answer if not; prints which."""
    name = task_of(answer).name
    _answers[name] = answer
    print(f"From here on, {name} is {'yours' if name in _passed else 'ours'}.")
    return _passed.get(name, answer)


def _of_the_chapter(task: Task | Puzzle) -> str:
    chapter, tasks = next((item for item in PRACTICE.items() if task in item[1]), ("", (task,)))
    done = {*progress.practice().get(chapter, ()), *_passed}  # a script notes nothing
    return of_the_chapter(task.name, chapter, [practice.name for practice in tasks], done)


def _record_success(task: Task | Puzzle, aspect: str, tried: list[TriedCase]) -> None:
    """Print the points of this check and what comes next; after a function's last check show one of its runs."""
    for exercise in (name for name in exercises() if task in EXERCISES.get(name, ())):
        checks = [check for check in checks_of(exercise) if check.function == task.name]
        for check in (check for check in checks if check.aspect == aspect):
            print(
                wrap(f"{check.points:g} of {check.points:g} point{'s' * (check.points != 1)}. {after(exercise, check)}")
            )
            if check is checks[-1] and not isinstance(task, Puzzle):
                _show_one(task, tried)


def _show_one(task: Task, tried: list[TriedCase]) -> None:
    """Show the most telling run of a right answer that fits a picture."""
    if frontend.shell() is not None and (shown := telling_run(task, tried)) is not None:
        _display(shown)


def _require_latest(name: str) -> None:
    """Raise CheckFailed if the last cell that defines a function doesn't compile: an earlier version would be checked."""
    shell = frontend.shell()
    cells = shell.user_ns.get("In", []) if shell else []
    latest = next((source for source in reversed(cells) if re.search(rf"^def {name}\(", source, re.MULTILINE)), "")
    try:
        ast.parse(latest)
    except SyntaxError as error:
        raise CheckFailed(
            f"The last version of {name} has a syntax error, so Python still has the one before.\n"
            f"SyntaxError in line {error.lineno}: {error.msg}. Fix that cell and run it, then this one."
        ) from None


def task_of(answer: Any) -> Task | Puzzle:
    """The task that a function answers, by its name."""
    if not callable(answer):
        raise TypeError(f"check the function itself, like check_values(my_function), not {answer!r}.")
    name = getattr(answer, "__name__", type(answer).__name__)
    if name not in TASKS:  # a lambda, or an object that is called: known by the variable that holds it
        variables = vars(sys.modules["__main__"])
        name = next((task for task in TASKS if variables.get(task) is answer), name)
    if name not in TASKS:
        raise ValueError(f"no exercise asks for a function named {name}. Keep the name that the statement gives it.")
    return TASKS[name]


def attempt_all(task: Task | Puzzle, answer: Callable, budget: bool) -> list[TriedCase]:
    """Try every case and return the outcomes; raises CheckFailed for the first case that fails."""
    _require_latest(task.name)
    kept = _last_attempts.pop(_key(answer), {}) if budget else {}
    _last_attempts.clear()
    if isinstance(task, Task):
        preload(task.imports)
    tried = AnswerTrial(task, answer, budget, _run, _show, TIMEOUT_SECONDS).all_cases(WORLD_SIZES, kept)
    if not budget:
        _last_attempts[_key(answer)] = kept
    return tried


_wrong: set[Any] = set()  # answers that check_values found wrong when it last ran, by _key
_passed: dict[str, Callable] = {}  # a learner's functions that passed check_practice when it last ran
_answers: dict[str, Callable] = {}  # the course's, by mine_or
_last_attempts: dict[Any, dict[int, list[Attempt]]] = {}  # check_values' last runs, which check_budget judges next


def _key(answer: Callable) -> Any:
    """Differs when the answer does, or anything in the notebook that it uses."""
    try:
        return pack(answer)
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RuntimeError):
        return None  # it cannot travel; run, which comes next, names the variable


def _run(answer: Callable, cases: list[Case], inputs: list[list[tuple]]) -> Run:
    """The run of cases of one world size one after the other, on the same ranks."""
    with contextlib.redirect_stdout(io.StringIO()):  # ranks' output is shown for the failing case only
        late = [case.late for case in cases]
        settings = Settings(cases[0].world_size, TIMEOUT_SECONDS, True, False, True, *launch.usual, 0, COMPUTING_SECONDS)
        return launch.run_on(launch.where(), settings, perform, (answer, late, inputs), {})


def _show(done: Run, shows: Any = None) -> None:
    """Show the output of the learner's ranks and, in a notebook, the picture of their run, or of its result."""
    for rank, text in enumerate(done.stdout):
        for line in text.splitlines():
            print(f"[{rank}] {line}")
    if frontend.shell() is not None and (shows or any(done.events)):
        _display((shows or done).draw())


def _display(what: Any) -> None:
    from IPython.display import display

    display(what)


def _explain_missing_name(shell: Any, kind: type, error: NameError, trace: Any, tb_offset: int | None = None) -> None:
    """Show a NameError, or advice if it is about an answer that does not exist yet."""
    if error.name in TASKS:
        said = f"{error.name} does not exist yet. Run the cell with `def {error.name}` first, then this one."
        error._render_traceback_ = lambda: [said]  # instead of the traceback
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


if (_shell := frontend.shell()) is not None:  # a check cell's own line fails before any check is called
    _shell.set_custom_exc((NameError,), _explain_missing_name)
