"""The functions of an exercise's check cells:

    from helpers.exercise import check_budget, check_practice, check_values
    check_values(distributed_mean)  # is it right?
    check_budget(distributed_mean)  # ... and does it move no more than it must?
    check_practice(in_sync)  # both at once, for a chapter's short task

    @mine_or  # the learner's from here on, if it is right
    def in_sync(x): ...

An answer runs on real ranks, at eight world sizes, on inputs it has not seen.
"""

import contextlib
import io
import pickle
import sys
from collections import Counter
from typing import Any, Callable

from collectives import frontend
from collectives.format import size, wrap
from collectives.launch import run as launch
from collectives.launch.pickling import pack
from collectives.launch.pool import preload
from collectives.launch.session import Settings
from collectives.log.event import Event
from collectives.outcome.errors import RunError, Stuck
from collectives.outcome.run import Run

from .. import progress
from .cases import WORLD_SIZES, Case, ranks
from .feedback import broken_words, explain, not_again, to_write, too_slow, traffic_words, unwritten
from .judgment import judge, unheard
from .notebook import after, checks_of, exercises
from .on_rank import File, perform
from .task import Attempt, Finding, Puzzle, Task
from .tasks import EXERCISES, PRACTICE, TASKS

TIMEOUT_SECONDS = 10.0  # an answer may take for the cases of one world size,
COMPUTING_SECONDS = 2.5  # or longer while it computes, until a rank has used this: see grader/inside/seccomp.py
MOST_RANKS_SHOWN, MOST_EVENTS_SHOWN = 4, 60  # in the picture of an answer that is right
LEAST_RANKS_FOLLOWED = 4  # in a picture of each chunk's journey
TriedCase = tuple[Case, list[tuple], Attempt]


class CheckFailed(AssertionError):
    """An answer that is not right yet. `.verdict` has the reason as data, if the run came to its end."""

    def __init__(self, message: str, verdict: Finding | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()  # instead of a traceback through our own code


class NotWritten(CheckFailed):
    """An answer that is still the exercise's own placeholder."""


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
    print(wrap(f"Right: {task.name} does what it should in {_tried_words(task)}."))
    _record_success(task, "values", tried)


def check_budget(answer: Callable) -> None:
    """Check values as check_values does, and traffic: it must stay within the exercise's budget."""
    task, key = task_of(answer), _key(answer)
    if key is not None and key in _wrong:
        raise CheckFailed(f"{task.name} isn't right yet, so its budget wasn't checked. See what check_values says.")
    tried = attempt_all(task, answer, budget=True)
    if isinstance(task, Puzzle):
        case, inputs, attempt = tried[-1]
        print(wrap(f"Right, in {_tried_words(task)}. {task.praise(case, inputs[0], attempt.results[0])}"))
    else:
        case, inputs, attempt = max(
            tried, key=lambda each: (each[0].world_size, not each[0].uneven, each[2].traffic.busiest)
        )  # with uneven sizes one rank's traffic means little
        budget = task.budget(case, inputs)
        best = "" if budget.least is None else f", and less than {size(round(budget.least))} is impossible"
        print(f"Right and within its budget, in {_tried_words(task)}.")
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
    print(wrap(f"Right, in {_tried_words(task)}{_calls(task, tried)}. {_of_the_chapter(task)}"))
    progress.practised(task.name)
    if isinstance(task, Task):
        _show_one(task, tried)


def mine_or(answer: Callable) -> Callable:
    """The learner's function of the same name if it has passed its check, and the course's answer if not; prints which."""
    name = task_of(answer).name
    _answers[name] = answer
    print(f"From here on, {name} is {'yours' if name in _passed else 'ours'}.")
    return _passed.get(name, answer)


def _calls(task: Task | Puzzle, tried: list[TriedCase]) -> str:
    """', with one all_reduce': a rank's calls in the case with the most ranks; "" where it makes none."""
    *_, attempt = max(tried, key=lambda each: each[0].world_size)
    made = Counter(e.within or e.op for e in max(attempt.events, key=len, default=()))
    words = [f"one {op}" if count == 1 else f"{count} calls of {op}" for op, count in made.items()]
    return f", with {' and '.join(words)}" if words and isinstance(task, Task) else ""


def _of_the_chapter(task: Task | Puzzle) -> str:
    """A sentence on how many of its chapter's short tasks are done with this one."""
    chapter, tasks = next((item for item in PRACTICE.items() if task in item[1]), ("", (task,)))
    done = {task.name, *progress.practice().get(chapter, ())} & {task.name for task in tasks}
    if len(tasks) == 1:
        return "That is this chapter's practice done."
    whole = f"chapter's {len(tasks)} short tasks" if chapter[:2].isdigit() else f"page's {len(tasks)}"
    return f"That's {len(done)} of this {whole}."


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
    fitting = [case for case in tried if 1 < case[0].world_size <= MOST_RANKS_SHOWN and case[0].size > 0]
    runs = [Run(case.world_size, [], attempt.events, name=task.name) for case, _, attempt in fitting]
    telling = [(run, n) for run in runs if 0 < (n := sum(map(len, run.events))) <= MOST_EVENTS_SHOWN]
    if telling and frontend.shell() is not None:
        shown, _ = max(telling, key=lambda each: (each[0].world_size, -each[1]))
        _display(shown if task.drawn is None else shown.draw(task.drawn))


def _tried_words(task: Task | Puzzle) -> str:
    if isinstance(task, Puzzle):
        return f"{len(task.cases)} case{'s' * (len(task.cases) != 1)}"
    sizes = sorted({case.world_size for case in task.cases})
    return f"{len(task.cases)} cases on {sizes[0]} to {sizes[-1]} ranks"


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
    tried: list[TriedCase] = []
    kept = _last_attempts.pop(_key(answer), {}) if budget else {}
    _last_attempts.clear()
    if isinstance(task, Task):
        preload(task.imports)
    for world_size in WORLD_SIZES:
        cases = [case for case in task.cases if case.world_size == world_size]
        if not cases:
            continue
        inputs, ended, attempts = [task.arguments(case) for case in cases], None, []
        try:
            attempts = kept.get(world_size) or attempts_of(_run(answer, cases, inputs), len(cases))
            fine = not any(judge(task, *each, budget) for each in zip(cases, inputs, attempts))
        except RunError as error:
            fine, ended = False, error
        if not fine:
            ran = [*tried, *zip(cases, inputs, attempts)]
            _run_single(task, answer, list(zip(cases, inputs)), budget, [case for case, *_ in tried], ran)
            late = isinstance(ended, Stuck) and ended.timed_out
            raise CheckFailed(too_slow(task, cases, TIMEOUT_SECONDS) if late else not_again(task, world_size))
        tried += zip(cases, inputs, attempts)
        kept[world_size] = attempts
    for case, arguments, attempt in tried:
        if verdict := unheard(task, case, arguments, attempt):
            raise CheckFailed(explain(task, case, arguments, verdict), verdict)
    if not budget:
        _last_attempts[_key(answer)] = kept
    return tried


_wrong: set[Any] = set()  # answers that check_values found wrong when it last ran, by _key

# The last runs of check_values, by world size: a check_budget that comes next judges the same runs.
_passed: dict[str, Callable] = {}  # a learner's functions that passed check_practice when it last ran
_answers: dict[str, Callable] = {}  # the course's, by mine_or
_last_attempts: dict[Any, dict[int, list[Attempt]]] = {}


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
        settings = Settings(cases[0].world_size, TIMEOUT_SECONDS, True, False, True, *launch.usual, COMPUTING_SECONDS)
        return launch.run_on(launch.where(), settings, perform, (answer, late, inputs), {})


def attempts_of(done: Run, count: int) -> list[Attempt]:
    """A run of `perform`, taken apart into its cases."""
    attempts, parts = [], zip(*(_split(events, count) for events in done.events))
    for came, events in zip(zip(*done.results), parts, strict=True):
        results, arguments = map(list, zip(*came))
        reads = [[got for a in own if isinstance(a, File) for got in a.reads] for own in arguments]
        attempts.append(Attempt(results, arguments, list(events), reads))
    return attempts


def _split(events: list[Event], count: int) -> list[list[Event]]:
    """A rank's events by case: our own barriers separate them."""
    parts: list[list[Event]] = [[]]
    for e in events:
        if e.op == "barrier" and e.line is None and len(parts) < count:  # no line of the learner's led to it
            parts.append([])
        else:
            parts[-1].append(e)
    return parts


def _run_single(
    task: Task | Puzzle,
    answer: Callable,
    given: list[tuple[Case, list[tuple]]],
    budget: bool,
    passed: list[Case],
    ran: list[TriedCase],
) -> None:
    """Try each case on its own ranks, show the one that fails and raise.  passed: the cases before these.

    ran: all cases that came to their end.
    """
    for case, arguments in given:
        try:
            done = _run(answer, [case], [arguments])
        except RunError as error:
            kind = NotWritten if unwritten(error) else CheckFailed
            if kind is CheckFailed:
                _show(error.run)
            raise kind(broken_words(task, case.world_size, error, case, arguments, passed)) from None
        (attempt,) = attempts_of(done, 1)
        if verdict := judge(task, case, arguments, attempt, budget):
            if verdict.aspect == "values" and verdict.thought and isinstance(task, Task):
                ran = [
                    each for each in (*ran, *_on_more(task, answer, case)) if each[0] in passed or _alike(each[0], case)
                ]
                others = [(inputs, attempt.results) for _, inputs, attempt in ran]
                verdict = judge(task, case, arguments, attempt, budget, others)
            words, shows = "", verdict.shows
            if verdict.aspect == "values" and isinstance(task, Task) and task.follow:
                words, shows = task.follow(answer, max(case.world_size, LEAST_RANKS_FOLLOWED)) or (words, shows)
            _show(done, shows)
            raise CheckFailed(explain(task, case, arguments, verdict, passed, words), verdict)
        passed = [*passed, case]


def _on_more(task: Task, answer: Callable, failed: Case) -> list[TriedCase]:
    """Cases like one that failed, on a different number of ranks: two ranks' maximum may be their sum."""
    alike = [case for case in task.cases if case.world_size not in (1, failed.world_size) and _alike(case, failed)]
    cases = [case for case in alike if case.world_size == alike[0].world_size]
    inputs = [task.arguments(case) for case in cases]
    try:
        return list(zip(cases, inputs, attempts_of(_run(answer, cases, inputs), len(cases)))) if cases else []
    except RunError:
        return []


def _alike(case: Case, failed: Case) -> bool:
    """Whether a mistake that explains the case that failed should explain this one."""
    return (case.kind, case.dtype) == (failed.kind, failed.dtype) and case.uneven <= failed.uneven


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
