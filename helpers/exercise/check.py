"""What an exercise's check cell calls:

    from helpers.exercise import check_budget, check_values
    check_values(distributed_mean)  # is it right?
    check_budget(distributed_mean)  # ... and does it move no more than it must?

An answer runs on real ranks, at six world sizes, on inputs it has not seen.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any, Callable

from ..errors import RankFailed, RunError
from ..launch import run
from ..record import Event, Run
from ..traffic import count
from ..twin import size
from ..wire import pack
from .cases import WORLD_SIZES, Case, ranks
from .judge import Attempt, Task, Verdict, judge
from .perform import perform
from .puzzle import Puzzle
from .tasks import TASKS
from .words import spent

SECONDS = 10.0  # an answer may take for the cases of one world size


class CheckFailed(AssertionError):
    """An answer that is not right yet. `.verdict` says why as data, where a run came to its end."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict

    def _render_traceback_(self) -> list[str]:
        # Jupyter shows this in place of a traceback through our own code.
        return f"{type(self).__name__}: {self}".splitlines()


def check_values(answer: Callable) -> None:
    """Whether a function gives what its exercise asks for, by the calls it allows.

    answer: named as the exercise says.  Prints a line if all is well, raises CheckFailed
    with the reason otherwise, and TypeError or ValueError for what is no answer at all.
    """
    task = task_of(answer)
    attempt_all(task, answer, budget=False)
    print(f"Right: {task.name} does what it should in {_tried(task)}.")


def check_budget(answer: Callable) -> None:
    """As check_values, and the traffic must stay within the exercise's budget."""
    task = task_of(answer)
    case, given, attempt = attempt_all(task, answer, budget=True)
    if isinstance(task, Puzzle):
        print(f"Right, in {_tried(task)}. {task.praise(case, given[0], attempt.results[0])}")
        return
    traffic, budget = count(attempt.events), task.budget(case, given)
    best = "" if budget.least is None else f", and less than {size(round(budget.least))} is impossible"
    print(f"Right and within its budget, in {_tried(task)}.")
    print(f"With {ranks(case.world_size)}, {spent(traffic)}{best}. The budget: {budget.words}.")


def _tried(task: Task | Puzzle) -> str:
    if isinstance(task, Puzzle):
        return f"{len(task.cases)} cases"
    sizes = sorted({case.world_size for case in task.cases})
    return f"{len(task.cases)} cases on {sizes[0]} to {sizes[-1]} ranks"


def task_of(answer: Any) -> Task | Puzzle:
    """The task that a function answers, by its name."""
    if not callable(answer):
        raise TypeError(f"check the function itself, like check_values(my_function), not {answer!r}.")
    name = getattr(answer, "__name__", type(answer).__name__)
    if name not in TASKS:
        raise ValueError(f"no exercise asks for a function named {name}. Keep the name that the statement gives it.")
    return TASKS[name]


def attempt_all(
    task: Task | Puzzle, answer: Callable, budget: bool, seed: str = ""
) -> tuple[Case, list[tuple], Attempt]:
    """Tries every case; returns the most telling one of those that passed, raises CheckFailed for the first that fails."""
    tried = []
    kept = _kept.pop(_key(answer, seed), {}) if budget else {}
    _kept.clear()
    for world_size in WORLD_SIZES:
        cases = [case for case in task.cases if case.world_size == world_size]
        given = [task.arguments(case, seed) for case in cases]
        try:
            attempts = kept.get(world_size) or attempt(answer, cases, given)
            fine = not any(judge(task, *each, budget) for each in zip(cases, given, attempts))
        except RunError:
            fine = False
        if not fine:
            _alone(task, answer, cases, given, budget)
        tried += zip(cases, given, attempts)
        kept[world_size] = attempts
    if not budget:
        _kept[_key(answer, seed)] = kept
    if isinstance(task, Puzzle):
        return tried[-1]
    return max(tried, key=lambda each: (each[0].world_size, count(each[2].events).busiest))


# What check_values saw last, by world size: a check_budget that comes next judges the same runs.
_kept: dict[tuple | None, dict[int, list[Attempt]]] = {}


def _key(answer: Callable, seed: str) -> tuple | None:
    """Differs when the answer does, or anything in the notebook that it uses."""
    try:
        return pack(answer), seed
    except Exception:
        return None  # run says better what is wrong with it


def attempt(answer: Callable, cases: list[Case], given: list[list[tuple]]) -> list[Attempt]:
    """Runs cases of one world size one after the other, on the same ranks."""
    if not cases:
        return []
    return attempts_of(_run(answer, cases, given), len(cases))


def _run(answer: Callable, cases: list[Case], given: list[list[tuple]]) -> Run:
    with contextlib.redirect_stdout(io.StringIO()):  # what ranks print is shown for the case that fails only
        late = [case.late for case in cases]
        return run(perform, answer, late, given, world_size=cases[0].world_size, timeout=SECONDS)


def attempts_of(done: Run, count: int) -> list[Attempt]:
    """A run of `perform`, taken apart into its cases."""
    events = [_split(mine, count) for mine in done.events]
    return [
        Attempt([r[k][0] for r in done.results], [r[k][1] for r in done.results], [mine[k] for mine in events])
        for k in range(count)
    ]


def _split(events: list[Event], count: int) -> list[list[Event]]:
    """A rank's events by case: our own barriers lie between."""
    parts: list[list[Event]] = [[]]
    for e in events:
        if e.op == "barrier" and _is_ours(e) and len(parts) < count:
            parts.append([])
        else:
            parts[-1].append(e)
    return parts


def _is_ours(e: Event) -> bool:
    # No line of the learner's led to it: what is left is the one that started the process.
    return e.line is None or e.line.file == "<string>"


# --- when it fails ------------------------------------------------------------------------


def _alone(task: Task | Puzzle, answer: Callable, cases: list[Case], given: list[list[tuple]], budget: bool) -> None:
    """Finds the case that fails, by trying each on ranks of its own, shows it and raises."""
    for case, arguments in zip(cases, given):
        try:
            done = _run(answer, [case], [arguments])
        except RunError as error:
            raise _broke(task, case, error) from None
        (one,) = attempts_of(done, 1)
        if verdict := judge(task, case, arguments, one, budget):
            _show(done, verdict.shows)
            raise CheckFailed(str(verdict), verdict)
    many = "once" if isinstance(task, Puzzle) else f"once with {ranks(cases[0].world_size)}"
    raise CheckFailed(
        f"{task.name} works when it is called {many}, but not when it is called again and again.\n"
        "Think: what does a call leave behind for the next one? A message that nobody received, a global variable?"
    )


def _broke(task: Task | Puzzle, case: Case, error: RunError) -> CheckFailed:
    """The run itself came to no good end."""
    if not _unwritten(error):
        _show(error.run)
    situation = case.kind if isinstance(task, Puzzle) else f"{ranks(case.world_size)} ({case})"
    return CheckFailed(trouble(task, situation, error))


def trouble(task: Task | Puzzle, situation: str, error: RunError) -> str:
    """What to say about a run that came to no good end.  situation: the ranks and inputs, in words."""
    if _unwritten(error):
        return (
            f"{task.name} is still to be written. Put your code in place of `raise NotImplementedError()` in the cell "
            "above, run that cell, then this one. The hints below open one at a time."
        )
    thought = _forgotten(error.run) or task.thoughts.get(type(error).__name__, "")
    return f"{task.name} with {situation}: {type(error).__name__}\n{error}" + f"\nThink: {thought}" * bool(thought)


def _unwritten(error: RunError) -> bool:
    last = error.traceback.rstrip().rpartition("\n")[2] if isinstance(error, RankFailed) else ""
    return last.startswith("NotImplementedError")


def _forgotten(broken: Run) -> str:
    """An isend or irecv that nobody waits for: gloo may never carry it out."""
    for mine in broken.events:
        if any(e.waiting is not None for e in mine):  # it has not come so far
            continue
        for e in mine:
            if e.is_message and e.async_op and e.end is None and e.waiting is None:
                return f"rank {e.rank} never waits for its i{e.op}. Keep what i{e.op} returns, and call its wait()."
    return ""


def _show(done: Run, shows: Any = None) -> None:
    """What the learner's ranks printed, and, in a notebook, the picture of their run, or of what it made."""
    for rank, text in enumerate(done.stdout):
        for line in text.splitlines():
            print(f"[{rank}] {line}")
    if "IPython" in sys.modules and (shows or any(done.events)):
        from IPython import display, get_ipython

        if get_ipython() is not None:
            display.display((shows or done).draw())
