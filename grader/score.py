"""The score of one submission: its answers on sandboxed ranks, judged here on inputs they cannot know.

This process never runs submitted code, and trusts none of its reports: a rank's inputs come from here, its messages
from others came through here (switch.py), and its results are compared here.
"""

import base64
import importlib.util
import re
import sys
import time
import traceback
import warnings
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from collectives.judge.wording.waits import LONGER
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run
from helpers.exercise.cases import WORLD_SIZES, Case, ranks
from helpers.exercise.feedback import broken_words, explain, traffic_words
from helpers.exercise.judgment import budget_finding, judge, unheard
from helpers.exercise.notebook import checks_of, is_answer, is_check, pristine, without_solution
from helpers.exercise.task import Attempt, Puzzle, Task
from helpers.exercise.tasks import TASKS

from . import alike
from .described_calls import Ungradable
from .gradebook import CheckScore, Grading
from .inside.protocol import text
from .inside.seccomp import computing_seconds
from .sandbox import Crew, SandboxPool
from .submission import Submission, graft
from .switch import SECONDS, Switch
from .walls import Unavailable

QUESTIONS = {"values": "is it right?", "budget": "is it right, and within its budget?"}
MINUTES = 5.0  # for a submission
UNTOUCHED = "The answer is still the empty one of the exercise."
COURSE_SOLUTION = (
    "This is the solution that comes with the course, but for comments and layout, or it still has its marks."
)


def score(
    submission: Submission, sandboxes: SandboxPool, seed: str, pictures: bool = True, minutes: float = MINUTES
) -> Grading:
    """Points with their reasons.  seed: the inputs'. minutes: the limit for all its answers together."""
    trials, scores, until = {}, [], time.monotonic() + 60 * minutes
    for check in checks_of(submission.exercise):
        name = check.function
        if name not in trials:
            trials[name] = _trial(TASKS[name], submission, sandboxes, seed, until)
        reason = getattr(trials[name], check.aspect)
        points, cost = (0, "") if reason else (check.points, trials[name].cost)
        scores.append(CheckScore(check.name, f"{name}: {QUESTIONS[check.aspect]}", points, check.points, reason, cost))
    images, undrawn = draw_runs({name: trial.shows for name, trial in trials.items() if trial.shows and pictures})
    return Grading(submission.exercise, tuple(scores), "", images, undrawn, submission.untouched, _pieces(submission))


def _is_own(submission: Submission, function: str) -> bool:
    cells = filter(is_answer, pristine(submission.exercise).cells)
    wanted = next((cell for cell in cells if re.search(rf"^def {function}\b", cell.source, re.MULTILINE)), None)
    return bool(wanted) and alike.is_own(submission.answers[wanted.id], wanted.source)


def _pieces(submission: Submission) -> dict[str, list[int]]:
    given = {cell.id: cell.source for cell in without_solution(pristine(submission.exercise)).cells}
    return {name: alike.pieces(source, given[name]) for name, source in submission.answers.items()}


GRADED_SECONDS = (
    f"A graded answer has {SECONDS:g} s for its cases of one world size, and each of several ranks {computing_seconds(2):g} s "
    "of processor time. Look for a loop that does not end."
)
# Names that import torch._dynamo, which takes a second. Any other that does is noticed after the first world.
HIGH_LEVEL = r"\b_functional_collectives\b|\bdistributed(\.| import )_?tensor\b|\btorch(\.| import )(func|optim)\b"
DRAWN_RANKS = 4  # in the picture of an answer that is right
MAX_PRINTED_LINES = 20  # of an answer that are shown


@dataclass
class Trial:
    """The outcome for one function."""

    values: str = ""  # why it is not right; "" if it is
    budget: str = ""  # why it is not right within its budget
    cost: str = ""  # of a right answer
    shows: Run | Any = None  # to be drawn


def _trial(task: Task | Puzzle, submission: Submission, sandboxes: SandboxPool, seed: str, until: float) -> Trial:
    refused = UNTOUCHED if submission.untouched else COURSE_SOLUTION if _is_own(submission, task.name) else ""
    if refused:
        return Trial(refused, refused)
    try:
        return trial(task, submission, sandboxes, seed, until)
    except (OSError, EOFError, Unavailable):
        raise  # the machine's fault
    except Exception as error:  # a result odd enough to defeat the judge
        print(f"An answer to {task.name} could not be judged:\n{text(traceback.format_exc())}", file=sys.stderr)
        reason = f"{task.name} could not be judged, by a mistake of the course: {text(f'{type(error).__name__}: {error}', 300)}"
        return Trial(reason, reason)


def trial(task: Task | Puzzle, submission: Submission, sandboxes: SandboxPool, seed: str, until: float = inf) -> Trial:
    loads = any(re.search(HIGH_LEVEL, source) for source in submission.answers.values())
    with closing(Crew(sandboxes, loads, until)) as crew:
        return _run_trial(task, submission, crew, seed)


def _run_trial(task: Task | Puzzle, submission: Submission, crew: Crew, seed: str) -> Trial:
    trial, passed, cheat = Trial(), [], ""
    cells = _cells(task, submission)
    for world_size in WORLD_SIZES:
        cases = [case for case in task.cases if case.world_size == world_size]
        inputs = [task.arguments(case, seed) for case in cases]
        try:
            attempts = _attempts(task, submission, cells, crew, cases, inputs)
        except RunError as error:
            reason = broken_words(task, world_size, error).replace(LONGER, GRADED_SECONDS) + _strayed(submission, error)
            reason += _output(error.run.stdout)
            return Trial(reason, reason, shows=error.run)
        except Ungradable as error:
            situation = "one of its cases" if isinstance(task, Puzzle) else ranks(world_size)
            reason = f"{task.name} with {situation}: {error}"
            return Trial(reason, reason)
        for case, arguments, (attempt, printed) in zip(cases, inputs, attempts):
            done = Run(len(attempt.events), [], attempt.events, name=task.name)
            if verdict := judge(task, case, arguments, attempt, budget=False):
                reason = explain(task, case, arguments, verdict, passed) + _output(printed)
                return Trial(reason, reason, shows=verdict.shows or done)
            passed.append(case)
            if verdict := unheard(task, case, arguments, attempt):
                cheat = cheat or explain(task, case, arguments, verdict)
            if trial.budget:
                continue
            if verdict := budget_finding(task, case, arguments, attempt):
                trial.budget = explain(task, case, arguments, verdict) + _output(printed)
                trial.shows = verdict.shows or done
            elif isinstance(task, Puzzle):
                if case is task.cases[-1]:
                    trial.cost = task.praise(case, arguments[0], attempt.results[0]).partition("\n")[0]
            else:
                if world_size == DRAWN_RANKS and case.size:
                    trial.shows = trial.shows or done
                if world_size == max(WORLD_SIZES):
                    trial.cost = f"With {ranks(world_size)}, {traffic_words(attempt.traffic)}."
        if isinstance(task, Task) and task.large and task.large.world_size == world_size and not trial.budget + cheat:
            trial.budget = _only_small(task, submission, cells, crew, seed)
    return Trial(cheat, cheat, shows=trial.shows) if cheat else trial


def _only_small(task: Task, submission: Submission, cells: list[tuple[str, str]], crew: Crew, seed: str) -> str:
    """The reason why an answer that is right with few numbers is wrong with many; "" if it isn't.

    A few numbers can pass from rank to rank by delays, while calls carry nothing and so need no order.
    """
    case = task.large
    arguments = task.arguments(case, seed)
    try:
        ((attempt, printed),) = _attempts(task, submission, cells, crew, [case], [arguments])
        verdict = judge(task, case, arguments, attempt) or unheard(task, case, arguments, attempt)
        reason = verdict and explain(task, case, arguments, verdict) + _output(printed)
    except RunError as error:
        reason = broken_words(task, case.world_size, error).replace(LONGER, GRADED_SECONDS) + _output(error.run.stdout)
    except Ungradable as error:
        reason = f"{task.name} with {ranks(case.world_size)}: {error}"
    return (
        f"With a few numbers it is right and within its budget. With {case.size:,} it isn't:\n{reason}"
        if reason
        else ""
    )


def _strayed(submission: Submission, error: RunError) -> str:
    """A line about a name that is defined in a cell which is not run, or ""."""
    missing = re.search(r"NameError: (?:name '|the answer cell must define )(\w+)", str(error))
    if not missing or missing[1] not in submission.elsewhere:
        return ""
    return (
        f"\n{missing[1]} is defined in cell {submission.elsewhere[missing[1]]}, and code outside the answer cells is not run. "
        "Move it into the answer cell."
    )


def _cells(task: Task | Puzzle, submission: Submission) -> list[tuple[str, str]]:
    """Name and source of the code that ranks run before they call the answer."""
    shared = shipped() if isinstance(task, Puzzle) else []  # needed by schedules
    own = (cell for cell in graft(submission).cells if cell.cell_type == "code" and not is_check(cell))
    return [*shared, *((cell.id, cell.source) for cell in own)]


def _attempts(
    task: Task | Puzzle,
    submission: Submission,
    cells: list[tuple[str, str]],
    crew: Crew,
    cases: list[Case],
    inputs: list[list[tuple]],
) -> list[tuple[Attempt, list[str]]]:
    """Per case the outcome, and each rank's output."""
    if not cases:
        return []
    switch = Switch(
        crew.world(cases[0].world_size),
        submission.answers,
        task.name,
        crew.ended,
        crew.computed,
        crew.threads,
        crew.until,
    )
    attempts = switch.attempt(cells, cases, inputs)
    crew.loads |= switch.loads
    if switch.used_up:
        crew.close()  # lest the answer's leftovers meddle in the next world
    return list(zip(attempts, switch.printed))


def _output(printed: list[str]) -> str:
    """The ranks' output as the learner's own checks show it, each line with its rank; not too many lines."""
    lines = [f"[{rank}] {line}" for rank, text in enumerate(printed) for line in text.splitlines()]
    more = [f"... and {len(lines) - MAX_PRINTED_LINES} more lines"] if len(lines) > MAX_PRINTED_LINES else []
    return "".join(f"\n{line}" for line in lines[:MAX_PRINTED_LINES] + more)


def draw_runs(shown: dict[str, Run | Any]) -> tuple[dict[str, str], dict[str, str]]:
    """By function, an SVG in base64, "" if there is nothing to draw; and the errors where drawing failed."""
    pictures, undrawn = {}, {}
    for name, what in shown.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                empty = isinstance(what, Run) and not any(what.events)
                pictures[name] = "" if empty else base64.b64encode(what.draw().svg().encode()).decode()
        except Exception as error:  # a record odd enough to defeat the artist is still graded
            undrawn[name] = text(f"{type(error).__name__}: {error}", 300)
            print(f"The picture of {name} could not be drawn:\n{text(traceback.format_exc())}", file=sys.stderr)
    return pictures, undrawn


# The modules that schedules need, without the algorithms. Each is executed as it is (inside/sandboxed_rank.py), in this order, so
# it may import only the ones before it, torch and the standard library.
MODULES = ("format", "lazy", "log.collectives", "algorithms.schedule", "algorithms.proof", "algorithms.count")
# collectives.algorithms as the sandbox has it
SCHEDULE = "__path__ = []\nfrom .schedule import Message, Schedule, add, copy\nfrom .proof import WrongSchedule"


def shipped() -> list[tuple[str, str]]:
    """Name and source of each module of the library that an answer to a Puzzle gets in the sandbox."""
    specs = [importlib.util.find_spec(f"collectives.{name}") for name in MODULES]
    sources = [(spec.name, Path(spec.origin).read_text(encoding="utf-8")) for spec in specs]
    return [*sources, ("collectives.algorithms", SCHEDULE)]
