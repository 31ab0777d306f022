"""An answer tried in all cases of its task, up to the first fault, which it words.  On which ranks, its caller decides."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable

from collectives.log.event import Event
from collectives.outcome.errors import RunError, Stuck
from collectives.outcome.run import Run

from .cases import Case
from .feedback import broken_words, explain, not_again, too_slow, unwritten
from .judgment import judge, unheard
from .on_rank import File
from .task import Attempt, Finding, Puzzle, Task

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


@dataclass
class AnswerTrial:
    """An answer and the ranks to try it on.

    run: `perform` of the answer on cases of one world size and their inputs; raises RunError.  show: to the learner a run that
    failed, and what its verdict shows.  seconds: that a run may take.
    """

    task: Task | Puzzle
    answer: Callable
    budget: bool
    run: Callable[[Callable, list[Case], list[list[tuple]]], Run]
    show: Callable[[Run, Any], None]
    seconds: float

    def all_cases(self, world_sizes: tuple[int, ...], kept: dict[int, list[Attempt]]) -> list[TriedCase]:
        """Try every case and return the outcomes; raises CheckFailed for the first case that fails.

        kept: attempts by world size, which need no run; the others are added.
        """
        task, tried = self.task, []
        for world_size in world_sizes:
            cases = [case for case in task.cases if case.world_size == world_size]
            if not cases:
                continue
            inputs, ended, attempts = [task.arguments(case) for case in cases], None, []
            try:
                attempts = kept.get(world_size) or attempts_of(self.run(self.answer, cases, inputs), len(cases))
                fine = not any(judge(task, *case, self.budget) for case in zip(cases, inputs, attempts))
            except RunError as error:
                fine, ended = False, error
            if not fine:
                ran = [*tried, *zip(cases, inputs, attempts)]
                self._run_single(list(zip(cases, inputs)), [case for case, *_ in tried], ran)
                late = isinstance(ended, Stuck) and ended.timed_out
                raise CheckFailed(too_slow(task, cases, self.seconds) if late else not_again(task, world_size))
            tried += zip(cases, inputs, attempts)
            kept[world_size] = attempts
        for case, arguments, attempt in tried:
            if verdict := unheard(task, case, arguments, attempt):
                raise CheckFailed(explain(task, case, arguments, verdict), verdict)
        return tried

    def _run_single(self, cases: list[tuple[Case, list[tuple]]], passed: list[Case], ran: list[TriedCase]) -> None:
        """Try each case on its own ranks, show the one that fails and raise.  passed: the cases before these.

        ran: all cases that came to their end.
        """
        task = self.task
        for case, arguments in cases:
            try:
                done = self.run(self.answer, [case], [arguments])
            except RunError as error:
                kind = NotWritten if unwritten(error) else CheckFailed
                if kind is CheckFailed:
                    self.show(error.run, None)
                raise kind(broken_words(task, case.world_size, error, case, arguments, passed)) from None
            (attempt,) = attempts_of(done, 1)
            if verdict := judge(task, case, arguments, attempt, self.budget):
                if verdict.aspect == "values" and verdict.thought:
                    also = passed if isinstance(task, Task) else task.cases
                    ran = [trial for trial in (*ran, *self._on_more(case)) if trial[0] in also or _alike(trial[0], case)]
                    others = [(inputs, attempt.results) for _, inputs, attempt in ran]
                    verdict = judge(task, case, arguments, attempt, self.budget, others)
                words, shows = "", verdict.shows
                if verdict.aspect == "values" and isinstance(task, Task) and task.follow:
                    followed = task.follow(self.answer, max(case.world_size, LEAST_RANKS_FOLLOWED))
                    words, shows = followed or (words, shows)
                self.show(done, shows)
                raise CheckFailed(explain(task, case, arguments, verdict, passed, words), verdict)
            passed = [*passed, case]

    def _on_more(self, failed: Case) -> list[TriedCase]:
        """Cases like one that failed, on a different number of ranks: two ranks' maximum may be their sum."""
        task = self.task
        alike = [case for case in task.cases if case.world_size not in (1, failed.world_size) and _alike(case, failed)]
        cases = [case for case in alike if case.world_size == alike[0].world_size]
        inputs = [task.arguments(case) for case in cases]
        try:
            done = self.run(self.answer, cases, inputs) if cases else None
        except RunError:
            return []
        return list(zip(cases, inputs, attempts_of(done, len(cases)))) if done else []


def _alike(case: Case, failed: Case) -> bool:
    """Whether a mistake that explains the case that failed should explain this one."""
    return (case.kind, case.dtype) == (failed.kind, failed.dtype) and case.uneven <= failed.uneven


def attempts_of(done: Run, count: int) -> list[Attempt]:
    """A run of `perform`, taken apart into its cases."""
    attempts, parts = [], zip(*(_split(events, count) for events in done.events))
    for came, events in zip(zip(*done.results), parts, strict=True):
        results, arguments, left = map(list, zip(*came))
        reads = [[got for a in own if isinstance(a, File) for got in a.reads] for own in arguments]
        attempts.append(Attempt(results, arguments, list(events), reads, left))
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


# --- words on an answer that is right ---------------------------------------------------------


def calls_words(task: Task | Puzzle, tried: list[TriedCase]) -> str:
    """', with one all_reduce': a rank's calls in the case with the most ranks; "" where it makes none."""
    *_, attempt = max(tried, key=lambda each: each[0].world_size)
    made = Counter(e.within or e.op for e in max(attempt.events, key=len, default=()))
    many = {op: "operations" if op == "batch_isend_irecv" else "calls" for op in made}  # of one call or of several
    words = [f"one {op}" if count == 1 else f"{count} {many[op]} of {op}" for op, count in made.items()]
    return f", with {' and '.join(words)}" if words and isinstance(task, Task) else ""


def tried_words(task: Task | Puzzle) -> str:
    """'8 cases on 1 to 8 ranks'"""
    if isinstance(task, Puzzle):
        return f"{len(task.cases)} case{'s' * (len(task.cases) != 1)}"
    sizes = sorted({case.world_size for case in task.cases})
    return f"{len(task.cases)} cases on {sizes[0]} to {sizes[-1]} ranks"


def telling_run(task: Task, tried: list[TriedCase]) -> Any:
    """The largest run of a right answer that fits a picture, or its picture; None: no run fits."""
    fitting = [case for case in tried if 1 < case[0].world_size <= MOST_RANKS_SHOWN and case[0].size > 0]
    runs = [Run(case.world_size, [], attempt.events, name=task.name) for case, _, attempt in fitting]
    telling = [(run, n) for run in runs if 0 < (n := sum(map(len, run.events))) <= MOST_EVENTS_SHOWN]
    if not telling:
        return None
    shown, _ = max(telling, key=lambda run: (run[0].world_size, -run[1]))
    return shown if task.drawn is None else shown.draw(task.drawn)


def of_the_chapter(name: str, chapter: str, names: list[str], finished: set[str]) -> str:
    """A sentence on how many of a chapter's short tasks are done with this one.  names: of all.  finished: before it, too."""
    if len(names) == 1:
        return "That is this chapter's practice done."
    total = f"chapter's {len(names)} short tasks" if chapter[:2].isdigit() else f"page's {len(names)}"
    return f"That's {len({name, *finished} & set(names))} of this {total}."
