"""The score of one submission: its answers on sandboxed ranks, judged here on inputs they cannot know.

This process never runs submitted code, and believes nothing it says about itself: what a
rank was given comes from here, what it got from others came through here (switch.py), and
what it returns is compared here.
"""

from __future__ import annotations

import base64
import io
import re
import socket
import warnings
from dataclasses import dataclass
from inspect import getsource
from typing import Any, Callable

from .. import twin
from ..errors import RunError
from ..exercise.cases import WORLD_SIZES, Case, ranks
from ..exercise.check import trouble
from ..exercise.judge import Attempt, Task, judge
from ..exercise.puzzle import Puzzle
from ..exercise.tasks import TASKS
from ..exercise.words import spent
from ..record import Run
from ..release import is_answer, is_check
from ..schedule import count as counting
from ..schedule import model, proof
from ..schedule import text as words
from ..traffic import count
from .sandbox import Sandbox
from .submission import Submission, pristine
from .switch import Refused, Switch

CHECK = re.compile(r"^check_(values|budget)\((\w+)\)$")
DRAWN = 4  # ranks in the picture of an answer that is right
PRINTED = 20  # lines that an answer printed and that are shown
# helpers.schedule as the sandbox has it
SCHEDULE = "__path__ = []\nfrom .model import Message, Schedule, add, copy\nfrom .proof import WrongSchedule"


@dataclass(frozen=True)
class Check:
    """One check cell of an exercise."""

    name: str  # its cell id
    aspect: str  # "values", "budget"
    function: str
    points: float


@dataclass
class Outcome:
    """What came out for one function."""

    values: str = ""  # why it is not right; "" if it is
    budget: str = ""  # why it is not right within its budget
    cost: str = ""
    run: Run | Any = None  # to be drawn


def checks_of(exercise: str) -> list[Check]:
    """Raises ValueError for a check cell that the scorer does not understand."""
    found = []
    for cell in filter(is_check, pristine(exercise).cells):
        match = CHECK.match(cell.source.strip())
        if not match:
            raise ValueError(f"{exercise}: the check cell {cell.id} is not one call of check_values or check_budget")
        found.append(Check(cell.id, match[1], match[2], cell.metadata.nbgrader.points))
    return found


def score(submission: Submission, sandbox: Callable[[], Sandbox], seed: str, pictures: bool = True) -> dict[str, Any]:
    """Points with their reasons, as plain data.

    sandbox: gives the sandbox to run in, called before each crew of ranks.
    seed: what the inputs are drawn from.
    """
    outcomes: dict[str, Outcome] = {}
    checks = []
    for check in checks_of(submission.exercise):
        if check.function not in outcomes:
            if submission.untouched:
                outcomes[check.function] = Outcome(*["The answer is still the empty one of the exercise."] * 2)
            else:
                outcomes[check.function] = _try(TASKS[check.function], submission, sandbox, seed)
        outcome = outcomes[check.function]
        reason = getattr(outcome, check.aspect)
        checks.append(
            {
                "name": check.name,
                "what": f"{check.function}: {_WHAT[check.aspect]}",
                "points": 0 if reason else check.points,
                "of": check.points,
                "reason": reason,
                "cost": "" if reason else outcome.cost,
            }
        )
    return {
        "points": sum(check["points"] for check in checks),
        "of": sum(check["of"] for check in checks),
        "checks": checks,
        "pictures": {name: _picture(o.run) for name, o in outcomes.items() if o.run} if pictures else {},
    }


_WHAT = {"values": "is it right?", "budget": "is it right, and within its budget?"}


def _try(task: Task | Puzzle, submission: Submission, sandbox: Callable[[], Sandbox], seed: str) -> Outcome:
    outcome = Outcome()
    for world_size in WORLD_SIZES:
        cases = [case for case in task.cases if case.world_size == world_size]
        given = [task.arguments(case, seed) for case in cases]
        try:
            attempts = _attempts(task, submission, sandbox, cases, given)
        except (RunError, Refused) as error:
            outcome.values = outcome.budget = _broke(task, world_size, error)
            outcome.run = getattr(error, "run", None)
            return outcome
        for case, arguments, (attempt, printed) in zip(cases, given, attempts):
            if verdict := judge(task, case, arguments, attempt, budget=False):
                outcome.values = outcome.budget = f"{verdict}{_said(printed)}"
                outcome.run = verdict.shows or _run(task, attempt)
                return outcome
            if not outcome.budget and (verdict := judge(task, case, arguments, attempt)):
                outcome.budget, outcome.run = f"{verdict}{_said(printed)}", verdict.shows or _run(task, attempt)
            if isinstance(task, Puzzle):
                if case is task.cases[-1] and not outcome.budget:
                    outcome.cost = task.praise(case, arguments[0], attempt.results[0]).partition("\n")[0]
                continue
            if not outcome.budget and case.world_size == DRAWN and case.size:
                outcome.run = outcome.run or _run(task, attempt)
            if not outcome.budget and case.world_size == max(WORLD_SIZES):
                outcome.cost = f"With {ranks(case.world_size)}, {spent(count(attempt.events))}."
    return outcome


def _attempts(
    task: Task | Puzzle,
    submission: Submission,
    sandbox: Callable[[], Sandbox],
    cases: list[Case],
    given: list[list[tuple]],
) -> list[tuple[Attempt, list[str]]]:
    """Per case what came out, and what each rank printed."""
    if not cases:
        return []
    room, socks = _crew(sandbox, cases[0].world_size)
    try:
        switch = Switch(socks, submission.answers, task.name, room.end_crew)
        return list(zip(switch.attempt(_cells(submission, task), cases, given), switch.printed))
    finally:
        for sock in socks:
            sock.close()
        try:
            room.end_crew()
        except (OSError, EOFError):
            room.close()  # the next crew gets another


def _crew(sandbox: Callable[[], Sandbox], world_size: int) -> tuple[Sandbox, list[socket.socket]]:
    room = sandbox()
    try:
        return room, room.crew(world_size)
    except (OSError, EOFError):  # ended by the system since it was last used
        room.close()
        room = sandbox()
        return room, room.crew(world_size)


def _cells(submission: Submission, task: Task | Puzzle) -> list[tuple[str, str]]:
    """Name and source of the cells a rank runs: what the notebook brings, and the answers.

    The sandbox has no part of the course. For a Puzzle it gets what a schedule is made of, and no algorithm.
    """
    modules = [(module.__name__, getsource(module)) for module in (twin, model, words, proof, counting)]
    modules = [*modules, ("helpers.schedule", SCHEDULE)] if isinstance(task, Puzzle) else []
    code = [cell for cell in pristine(submission.exercise).cells if cell.cell_type == "code" and not is_check(cell)]
    own = [cell for cell in code if "try" not in cell.metadata.get("tags", ())]
    return modules + [(cell.id, submission.answers[cell.id] if is_answer(cell) else cell.source) for cell in own]


def _broke(task: Task | Puzzle, world_size: int, error: RunError | Refused) -> str:
    situation = "one of its cases" if isinstance(task, Puzzle) else ranks(world_size)
    if isinstance(error, RunError):
        return trouble(task, situation, error) + _said(error.run.stdout)
    return f"{task.name} with {situation}: {error}"


def _said(printed: list[str]) -> str:
    """What the ranks printed, as the learner's own checks show it: a line each, and not too many."""
    lines = [f"[{rank}] {line}" for rank, text in enumerate(printed) for line in text.splitlines()]
    more = [f"... and {len(lines) - PRINTED} more lines"] if len(lines) > PRINTED else []
    return "".join(f"\n{line}" for line in lines[:PRINTED] + more)


def _run(task: Task, attempt: Attempt) -> Run:
    return Run(len(attempt.events), [], attempt.events, name=task.name)


def _picture(run: Any) -> str:
    """A PNG in base64; "" where there is nothing to be drawn."""
    if isinstance(run, Run) and not any(run.events):
        return ""
    import matplotlib

    matplotlib.use("agg")
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run.draw().savefig(file, format="png", dpi=70, bbox_inches="tight", metadata={"Software": None})
        except Exception:  # a record odd enough to defeat the artist is still graded
            return ""
    return base64.b64encode(file.getvalue()).decode()
