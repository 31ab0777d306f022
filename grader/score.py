"""The score of one submission: its answers on sandboxed ranks, judged here on inputs they cannot know.

This process never runs submitted code, and trusts none of its reports: a rank's inputs come from here, its messages
from others came through here (switch.py), and its results are compared here.
"""

import base64
import re
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

from collectives.judge.wording.waits import LONGER
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run
from helpers.exercise.cases import WORLD_SIZES, Case, ranks
from helpers.exercise.feedback import broken_words, explain, traffic_words
from helpers.exercise.judgment import budget_finding, judge, unheard
from helpers.exercise.notebook import checks_of, is_answer, is_check, pristine
from helpers.exercise.task import Attempt, Puzzle, Task
from helpers.exercise.tasks import TASKS

from . import alike
from .described_calls import Ungradable
from .gradebook import CheckScore, Grading
from .inside.protocol import text
from .inside.seccomp import computing_seconds
from .sandbox import Sandbox
from .submission import Submission, graft, stubs
from .switch import SECONDS, Switch
from .walls import Unavailable

QUESTIONS = {"values": "is it right?", "budget": "is it right, and within its budget?"}
UNTOUCHED = "The answer is still the empty one of the exercise."
COURSE_SOLUTION = "This is the course's own solution, but for comments and layout, or it still has its marks."


def score(submission: Submission, sandbox: Sandbox, seed: str, pictures: bool = True, minutes: float = 5) -> Grading:
    """Points with their reasons.  seed: the inputs'. minutes: the limit for all its answers together."""
    trials, scores, until = {}, [], time.monotonic() + 60 * minutes
    for check in checks_of(submission.exercise):
        name = check.function
        if name not in trials:
            trials[name] = _trial(TASKS[name], submission, sandbox, seed, until)
        reason = getattr(trials[name], check.aspect)
        points, cost = (0, "") if reason else (check.points, trials[name].cost)
        scores.append(CheckScore(check.name, f"{name}: {QUESTIONS[check.aspect]}", points, check.points, reason, cost))
    images, undrawn = draw_runs({name: trial.shows for name, trial in trials.items() if trial.shows and pictures})
    given = stubs(submission.exercise)
    pieces = {name: alike.pieces(source, given[name]) for name, source in submission.answers.items()}
    return Grading(submission.exercise, tuple(scores), "", images, undrawn, submission.untouched, pieces)


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


@dataclass(eq=False)
class Fault(Exception):
    """An answer that is wrong."""

    reason: str
    shows: Run | Any = None  # to be drawn


def _trial(task: Task | Puzzle, submission: Submission, sandbox: Sandbox, seed: str, until: float) -> Trial:
    try:
        if submission.untouched:
            raise Fault(UNTOUCHED)
        for cell in filter(is_answer, pristine(submission.exercise).cells):
            own = re.search(rf"^def {task.name}\b", cell.source, re.MULTILINE)
            if own and alike.is_own(submission.answers[cell.id], cell.source):
                raise Fault(COURSE_SOLUTION)
        return AnswerRuns(task, submission, sandbox, seed, until).trial()
    except Fault as fault:
        return Trial(fault.reason, fault.reason, shows=fault.shows)
    except (OSError, EOFError, Unavailable):
        raise  # the machine's fault
    except Exception as error:  # a result odd enough to defeat the judge
        print(f"An answer to {task.name} could not be judged:\n{text(traceback.format_exc())}", file=sys.stderr)
        reason = f"{task.name} could not be judged, by a mistake of the course: {text(f'{type(error).__name__}: {error}', 300)}"
        return Trial(reason, reason)
    finally:
        sandbox.dismiss()


@dataclass
class AnswerRuns:
    """One answer's runs, on as many ranks as its cases want.  until: the time at which the submission's time is over."""

    task: Task | Puzzle
    submission: Submission
    sandbox: Sandbox
    seed: str
    until: float

    def trial(self) -> Trial:
        """The outcome of all cases. Raises Fault for the first that is wrong."""
        task, trial, passed, cheat = self.task, Trial(), [], ""
        if any(re.search(HIGH_LEVEL, source) for source in self.submission.answers.values()):
            self.sandbox.load()
        for world_size in WORLD_SIZES:
            cases = [case for case in task.cases if case.world_size == world_size]
            for case, arguments, attempt, output in self._outcomes(cases) if cases else ():
                done = Run(len(attempt.events), [], attempt.events, name=task.name)
                if verdict := judge(task, case, arguments, attempt, budget=False):
                    raise Fault(explain(task, case, arguments, verdict, passed) + output, verdict.shows or done)
                passed.append(case)
                if not cheat and (verdict := unheard(task, case, arguments, attempt)):
                    cheat = explain(task, case, arguments, verdict)
                if trial.budget:
                    continue
                if verdict := budget_finding(task, case, arguments, attempt):
                    trial.budget = explain(task, case, arguments, verdict) + output
                    trial.shows = verdict.shows or done
                elif isinstance(task, Puzzle):
                    if case is task.cases[-1]:
                        trial.cost = task.praise(case, arguments[0], attempt.results[0]).partition("\n")[0]
                else:
                    if world_size == DRAWN_RANKS and case.size:
                        trial.shows = trial.shows or done
                    if world_size == max(WORLD_SIZES):
                        trial.cost = f"With {ranks(world_size)}, {traffic_words(attempt.traffic)}."
            large = task.large if isinstance(task, Task) and not trial.budget and not cheat else None
            if large and large.world_size == world_size:
                trial.budget = self._only_small(large)
        if cheat:
            raise Fault(cheat, trial.shows)
        return trial

    def _only_small(self, case: Case) -> str:
        """The reason why an answer that is right with few numbers is wrong with many; "" if it isn't.

        A few numbers can pass from rank to rank by delays, while calls carry nothing and so need no order.
        """
        try:
            ((case, arguments, attempt, output),) = self._outcomes([case])
            verdict = judge(self.task, case, arguments, attempt) or unheard(self.task, case, arguments, attempt)
            if not verdict:
                return ""
            reason = explain(self.task, case, arguments, verdict) + output
        except Fault as fault:
            reason = fault.reason
        return f"With a few numbers it is right and within its budget. With {case.size:,} it isn't:\n{reason}"

    def _outcomes(self, cases: list[Case]) -> list[tuple[Case, list[tuple], Attempt, str]]:
        """Of each case of one world size its arguments, its attempt and the ranks' output. Raises Fault."""
        task, inputs = self.task, [self.task.arguments(case, self.seed) for case in cases]
        sandbox = self.sandbox
        world = sandbox.world(cases[0].world_size)
        switch = Switch(world, self.submission.answers, task.name, sandbox.end_ranks, sandbox.usage, self.until)
        code = [cell for cell in graft(self.submission).cells if cell.cell_type == "code" and not is_check(cell)]
        try:
            attempts = switch.attempt([(cell.id, cell.source) for cell in code], cases, inputs)
        except RunError as error:
            reason = broken_words(task, len(world), error).replace(LONGER, GRADED_SECONDS)
            reason += _strayed(self.submission, error) + _output(error.run.stdout)
            raise Fault(reason, error.run) from None
        except Ungradable as error:
            situation = "one of its cases" if isinstance(task, Puzzle) else ranks(len(world))
            raise Fault(f"{task.name} with {situation}: {error}") from None
        if switch.used_up:
            sandbox.dismiss()  # lest the answer's leftovers meddle in the next world
        if switch.loads:
            sandbox.load()
        return list(zip(cases, inputs, attempts, map(_output, switch.printed)))


def _strayed(submission: Submission, error: RunError) -> str:
    """A line about a name that is defined in a cell which is not run, or ""."""
    missing = re.search(r"NameError: (?:name '|the answer cell must define )(\w+)", str(error))
    if not missing or missing[1] not in submission.elsewhere:
        return ""
    return (
        f"\n{missing[1]} is defined in cell {submission.elsewhere[missing[1]]}, and code outside the answer cells is not run. "
        "Move it into the answer cell."
    )


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
