"""The score of one submission: its answers on sandboxed ranks, judged here on inputs they cannot know.

This process never runs submitted code, and believes nothing it says about itself: what a
rank was given comes from here, what it got from others came through here (switch.py), and
what it returns is compared here.
"""

from __future__ import annotations

import base64
import sys
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

from ..exercise.cases import WORLD_SIZES, Case, ranks
from ..exercise.feedback import broken, explain, spent
from ..exercise.judge import judge
from ..exercise.notebook import CHECK, is_answer, is_check
from ..exercise.task import Attempt, Puzzle, Task
from ..exercise.tasks import TASKS
from ..results.errors import RunError
from ..results.run import Run
from . import shipped
from .calls import Refused
from .grading import CheckScore, Grading
from .inside.protocol import text
from .sandbox import SandboxPool
from .submission import Submission, pristine
from .switch import Switch

DRAWN_RANKS = 4  # in the picture of an answer that is right
MAX_PRINTED_LINES = 20  # of an answer that are shown


@dataclass(frozen=True)
class Check:
    """One check cell of an exercise."""

    name: str  # its cell id
    aspect: str  # "values", "budget"
    function: str
    points: float


@dataclass
class Outcome:
    """The outcome for one function."""

    values: str = ""  # why it is not right; "" if it is
    budget: str = ""  # why it is not right within its budget
    cost: str = ""
    run: Run | Any = None  # to be drawn


def checks_of(exercise: str) -> list[Check]:
    """The check cells of an exercise. Raises ValueError for one that is not a single call of a check."""
    found = []
    for cell in filter(is_check, pristine(exercise).cells):
        match = CHECK.match(cell.source.strip())
        if not match:
            raise ValueError(f"{exercise}: the check cell {cell.id} is not one call of check_values or check_budget")
        found.append(Check(cell.id, match[1], match[2], cell.metadata.nbgrader.points))
    return found


def score(submission: Submission, sandboxes: SandboxPool, seed: str, pictures: bool = True) -> Grading:
    """Points with their reasons.  seed: what the inputs are drawn from."""
    outcomes: dict[str, Outcome] = {}
    checks = []
    for check in checks_of(submission.exercise):
        if check.function not in outcomes:
            if submission.untouched:
                outcomes[check.function] = Outcome(*["The answer is still the empty one of the exercise."] * 2)
            else:
                outcomes[check.function] = _try(TASKS[check.function], submission, sandboxes, seed)
        outcome = outcomes[check.function]
        reason = getattr(outcome, check.aspect)
        what = f"{check.function}: {_WHAT[check.aspect]}"
        points, cost = (0, "") if reason else (check.points, outcome.cost)
        checks.append(CheckScore(check.name, what, points, check.points, reason, cost))
    runs = {name: outcome.run for name, outcome in outcomes.items() if outcome.run}
    drawn, undrawn = _draw(runs) if pictures else ({}, {})
    return Grading(submission.exercise, tuple(checks), pictures=drawn, undrawn=undrawn)


_WHAT = {"values": "is it right?", "budget": "is it right, and within its budget?"}


def _try(task: Task | Puzzle, submission: Submission, sandboxes: SandboxPool, seed: str) -> Outcome:
    outcome, passed = Outcome(), []
    for world_size in WORLD_SIZES:
        cases = [case for case in task.cases if case.world_size == world_size]
        given = [task.arguments(case, seed) for case in cases]
        try:
            attempts = _attempts(task, submission, sandboxes, cases, given)
        except (RunError, Refused) as error:
            outcome.values = outcome.budget = _broke(task, world_size, error)
            outcome.run = getattr(error, "run", None)
            return outcome
        for case, arguments, (attempt, printed) in zip(cases, given, attempts):
            if verdict := judge(task, case, arguments, attempt, budget=False):
                outcome.values = outcome.budget = explain(task, case, arguments, verdict, passed) + _said(printed)
                outcome.run = verdict.shows or _run(task, attempt)
                return outcome
            passed.append(case)
            if not outcome.budget and (verdict := judge(task, case, arguments, attempt)):
                outcome.budget = explain(task, case, arguments, verdict) + _said(printed)
                outcome.run = verdict.shows or _run(task, attempt)
            if isinstance(task, Puzzle):
                if case is task.cases[-1] and not outcome.budget:
                    outcome.cost = task.praise(case, arguments[0], attempt.results[0]).partition("\n")[0]
                continue
            if not outcome.budget and case.world_size == DRAWN_RANKS and case.size:
                outcome.run = outcome.run or _run(task, attempt)
            if not outcome.budget and case.world_size == max(WORLD_SIZES):
                outcome.cost = f"With {ranks(case.world_size)}, {spent(attempt.traffic)}."
    return outcome


def _attempts(
    task: Task | Puzzle,
    submission: Submission,
    sandboxes: SandboxPool,
    cases: list[Case],
    given: list[list[tuple]],
) -> list[tuple[Attempt, list[str]]]:
    """Per case what came out, and what each rank printed."""
    if not cases:
        return []
    sandbox, socks = sandboxes.ranks(cases[0].world_size)
    try:
        switch = Switch(socks, submission.answers, task.name, sandbox.end_ranks)
        return list(zip(switch.attempt(_cells(submission, task), cases, given), switch.printed))
    finally:
        for sock in socks:
            sock.close()
        try:
            sandbox.end_ranks()
        except (OSError, EOFError):
            sandbox.close()  # the next ranks get another


def _cells(submission: Submission, task: Task | Puzzle) -> list[tuple[str, str]]:
    """Name and source of what a rank runs: for a Puzzle what a schedule is made of, then the notebook's cells."""
    modules = shipped.modules() if isinstance(task, Puzzle) else []
    code = [cell for cell in pristine(submission.exercise).cells if cell.cell_type == "code" and not is_check(cell)]
    own = [cell for cell in code if "try" not in cell.metadata.get("tags", ())]
    return modules + [(cell.id, submission.answers[cell.id] if is_answer(cell) else cell.source) for cell in own]


def _broke(task: Task | Puzzle, world_size: int, error: RunError | Refused) -> str:
    situation = "one of its cases" if isinstance(task, Puzzle) else ranks(world_size)
    if isinstance(error, RunError):
        return broken(task, situation, error) + _said(error.run.stdout)
    return f"{task.name} with {situation}: {error}"


def _said(printed: list[str]) -> str:
    """The ranks' output as the learner's own checks show it, each line with its rank; not too many lines."""
    lines = [f"[{rank}] {line}" for rank, text in enumerate(printed) for line in text.splitlines()]
    more = [f"... and {len(lines) - MAX_PRINTED_LINES} more lines"] if len(lines) > MAX_PRINTED_LINES else []
    return "".join(f"\n{line}" for line in lines[:MAX_PRINTED_LINES] + more)


def _run(task: Task, attempt: Attempt) -> Run:
    return Run(len(attempt.events), [], attempt.events, name=task.name)


def _draw(runs: dict[str, Run | Any]) -> tuple[dict[str, str], dict[str, str]]:
    """By function, a PNG in base64, and where there is none because drawing it failed, how it did."""
    pictures, undrawn = {}, {}
    for name, run in runs.items():
        try:
            pictures[name] = _picture(run)
        except Exception as error:  # a record odd enough to defeat the artist is still graded
            undrawn[name] = text(f"{type(error).__name__}: {error}", 300)
            print(f"The picture of {name} could not be drawn:\n{text(traceback.format_exc())}", file=sys.stderr)
    return pictures, undrawn


def _picture(run: Run | Any) -> str:
    """A PNG in base64; "" where there is nothing to be drawn."""
    if isinstance(run, Run) and not any(run.events):
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return base64.b64encode(run.draw().png()).decode()
