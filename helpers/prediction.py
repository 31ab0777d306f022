"""`predict()`: say what the ranks will hold, then see it.

    from helpers import predict

    predict(share, world_size=4)

The cell shows what each rank brings, and cells to fill in.  Run (or Enter) runs the ranks,
marks what was filled in, and says why a wrong number is wrong.  Nothing that would give the
answer away is in the page before.  Where there are no widgets, `predict(share, answers=[...])`
does the same.  Where nobody sits who could answer, because a program executes the notebook
(nbval, nbconvert, the website), it shows what the ranks did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

from . import progress
from .blank import blank
from .canvas import Picture
from .errors import RankFailed, RunError, Stuck, _ranks
from .page import Interactive
from .questions import VERDICTS, Choice, Grid, Mark, Open, Outcome, attempt, waiting, wants
from .record import Run

KNOWN = ("after", "returned", "chunks", "verdict", "waits")


def predict(
    fn: Callable[..., Any],
    *args: Any,
    ask: str | None = None,
    choices: Sequence[str] | Mapping[str, Any] | None = None,
    answer: Callable[[Run | RunError], Any] | None = None,
    rank: int | Iterable[int] | None = None,
    call: int = -1,
    answers: Any = None,
    **kwargs: Any,
) -> Prediction:
    """Asks for what `run(fn, *args, **kwargs)` will do, before it does it.

    fn, args, kwargs: as for `run`, with its world_size, timeout and check.
    ask: what is asked.
        "after": the numbers each rank holds after a call (the default where there is a call);
        "returned": what fn returns on each rank (the default where there is none, or messages);
        "chunks": as "after", in letters: b₂ is chunk b of rank 2, Σb the sum of all ranks' b;
        "verdict": how the run ends; "waits": which ranks wait for ever;
        any other words: a question of your own, with `choices` or `answer`.
    choices: sentences to choose from.  A mapping tells which is right: sentence -> Stuck,
        Mismatch, RankFailed or Run (it finishes), or a function that says whether it is
        right.  A sequence needs `answer`.
    answer: a function of the Run (of the RunError, if it ended with one) that returns the
        answer: one of the choices, a number, several, or a word.
    rank: the rank, or the ranks, to fill in; None: all.
    call: which of the run's calls "after" and "chunks" are about; -1: the last.
    answers: the prediction, without a widget: a row for each rank to fill in, as "0 1 2", a
        list or a tensor; or one value for a question with one answer.

    The last expression of a cell, it shows itself.  Raises what `run` raises for bad
    arguments, and ValueError for a question that cannot be asked.
    """
    question = _question(fn, args, kwargs, ask, choices, answer, rank, call)
    prediction = Prediction(question, lambda: attempt(fn, args, kwargs), getattr(fn, "__name__", "fn"))
    return prediction if answers is None else prediction.answer(answers)


def _question(fn, args, kwargs, ask, choices, answer, rank, call) -> Grid | Open | Choice:
    if not callable(fn):
        raise TypeError(f"predict() needs a function to run on every rank, not {fn!r}.")
    words = ask if ask not in KNOWN else None
    if choices is None and answer is None and (ask is None or ask in ("after", "returned", "chunks")):
        first = attempt(fn, args, kwargs)
        calls = first.run.calls
        talks = any(not c.is_message for c in calls)
        kind = ask or ("after" if talks or calls and all(r is None for r in first.run.results) else "returned")
        ranks = None if rank is None else (rank,) if isinstance(rank, int) else tuple(rank)
        return Grid(getattr(fn, "__name__", "fn"), kind, call, ranks, first)
    if ask == "verdict":
        choices = choices or VERDICTS
        words = "How does it end?"
    if ask == "waits":
        return Open("Which ranks wait for ever?  (their numbers, or none)", waiting)
    if choices is None and answer is None:
        known = ", ".join(map(repr, KNOWN))
        raise ValueError(
            f"predict: {ask!r} has no answer. Give answer=..., or choices={{...}}, or ask for one of {known}."
        )
    if choices is None:
        return Open(words or "What is the answer?", answer)
    if answer is None and not isinstance(choices, Mapping):
        raise ValueError("predict: choices=[...] need answer=..., a function of the run that returns the right one.")
    return Choice(words or "What happens?", tuple(choices), answer or _by_kind(choices))


def _by_kind(choices: Mapping[str, Any]) -> Callable[[Run | RunError], str | None]:
    def right(done):
        for words, test in choices.items():
            if isinstance(done, test) if isinstance(test, type) else test(done):
                return words
        return None

    return right


@dataclass
class Result:
    marks: list[list[Mark]]
    outcome: Outcome

    @property
    def of(self) -> int:
        return sum(map(len, self.marks))

    @property
    def right(self) -> int:
        return sum(mark.right is True for row in self.marks for mark in row)

    @property
    def tried(self) -> bool:
        return any(mark.right is not None for row in self.marks for mark in row)


class Prediction(Interactive):
    """A question about a run, the answer that was given, and the run that marked it.

    `.run` is that Run, or the RunError that it ended with; None before there is one.
    `.right` and `.of`: how many cells are right, of how many.
    """

    def __init__(self, question: Grid | Open | Choice, attempt: Callable[[], Outcome], name: str) -> None:
        self.question, self._attempt, self.name = question, attempt, name
        self.filled: list[list[str]] = [[""] * row.cells for row in question.rows]
        self.result: Result | None = None
        self._form = None

    @property
    def run(self) -> Run | RunError | None:
        return self.result.outcome.done if self.result else None

    @property
    def right(self) -> int:
        return self.result.right if self.result else 0

    @property
    def of(self) -> int:
        return self.result.of if self.result else sum(row.cells for row in self.question.rows if row.asked)

    def answer(self, answers: Any) -> Prediction:
        """Answers without the widget, runs the ranks and marks; see `answers` of predict()."""
        self.filled = self._read(answers)
        self.mark()
        if self._form:
            self._form.fill()
        return self

    def mark(self) -> Result:
        """Runs the ranks and marks what is filled in."""
        self.filled = [_spread(cells) for cells in self.filled]
        self.result = self._ran()
        if self.result.tried:
            progress.predicted(self.name, self.question.title, self.right, self.of)
        return self.result

    def _ran(self) -> Result:
        outcome = self._attempt()
        return Result(self.question.mark(self.filled, outcome), outcome)

    def _read(self, answers: Any) -> list[list[str]]:
        rows = self.question.rows
        if isinstance(self.question, Choice):
            return [[self.question.pick(answers)]]
        if isinstance(self.question, Open):
            return [[_words(answers)]]
        asked = [row for row in rows if row.asked]
        if isinstance(answers, Mapping):
            answers = [answers.get(row.rank, "") for row in asked]
        answers = [answers] if len(asked) == 1 and not _is_rows(answers) else list(answers)
        if len(answers) != len(asked):
            raise ValueError(f"answers has {len(answers)} rows, and {len(asked)} ranks are asked for: one row each.")
        filled = []
        for row in rows:
            value = answers[asked.index(row)] if row.asked else ""
            words = [value.strip()] if isinstance(value, str) and row.cells == 1 else _tokens(value)
            filled.append(words + [""] * (row.cells - len(words)))
        return filled

    # --- how it shows itself --------------------------------------------------------------

    def __repr__(self) -> str:
        """The question as text, with what was filled in, and marked once it ran."""
        question, result = self.question, self.result
        lines = [f"Predict. {question.title}"]
        if isinstance(question, Choice):
            lines += self._choices()
        elif isinstance(question, Open):
            lines.append(f"  answer: {self.filled[0][0] or '_'}")
            if result:
                lines[-1] = "  " + _marked(result.marks[0][0])
        else:
            lines += self._table(result and result.marks, _marked)
        if not result:
            example = "answers=" + ("[...]" if isinstance(question, Grid) else "...")
            return "\n".join([*lines, f"Without the widget: predict(..., {example})"])
        lines += [summary(result, question), *reasons(result, question)]
        return "\n".join([*lines, "", outcome_text(result.outcome)]).rstrip()

    def _choices(self) -> list[str]:
        lines = []
        mark = self.result.marks[0][0] if self.result else None
        for k, option in enumerate(self.question.options):
            sign = ""
            if mark:
                sign = "✓ " if option == mark.want.value else "✗ " if option == mark.given.value else "  "
            lines.append(f"  {sign}{k + 1}  {option}")
        return lines

    def _table(self, marked: list[list[Mark]] | None, say: Callable[[Mark], str]) -> list[str]:
        names = [f"{row.rank}{'*' * row.root}" for row in self.question.rows]
        head = self.question.before
        wide = max(len(head), *(len(row.before) for row in self.question.rows)) if head else 0
        lines = []
        for k, row in enumerate(self.question.rows):
            if marked:
                after = "  ".join(map(say, marked[k]))
            else:
                after = " ".join("_" * row.cells) if row.asked else ""
            lines.append((f"  {names[k]:<4}   " + (f"{row.before:<{wide}}   ->  " if head else "") + after).rstrip())
        what = "returned" if self.question.kind == "returned" else "after"
        return [f"  rank   {head:<{wide}}       {what}" if head else f"  rank   {what}", *lines]

    def unattended(self) -> tuple[Picture | None, str]:
        """What the ranks did, for those who are not asked. Mostly the run's own table says it."""
        if self.result:
            return outcome_picture(self.result.outcome), repr(self)
        question, result = self.question, self._ran()
        lines = []
        if not isinstance(question, Grid):
            lines = [question.title, f"  {result.marks[0][0].want.text}", ""]
        elif question.kind == "chunks":
            lines = [question.title, *self._table(result.marks, lambda mark: mark.want.text), ""]
        return outcome_picture(result.outcome), "\n".join([*lines, outcome_text(result.outcome)]).rstrip()

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = {"text/plain": repr(self)}, {}
        if self.result or isinstance(self.question, Grid):
            picture = outcome_picture(self.result.outcome) if self.result else blank(self.question)
            if picture:
                image, shown = picture._repr_mimebundle_()
                data["image/png"], metadata["image/png"] = image["image/png"], shown["image/png"]
        if self.form:
            kind = "application/vnd.jupyter.widget-view+json"
            data[kind] = self.form.box._repr_mimebundle_()[kind]
        return data, metadata

    @property
    def form(self):
        """The widget: `.cells[row][k]` to fill in, `.choice` to choose with, `.button`, `.box`; None without ipywidgets."""
        if self._form is None:
            try:
                from .form import Form
            except ImportError:
                return None
            self._form = Form(self)
        return self._form


# --- what was answered --------------------------------------------------------------------


def _words(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ", ".join(_tokens(value))


def _tokens(value: Any) -> list[str]:
    """One row of answers, a text for each cell."""
    if isinstance(value, str):
        return value.split() or [""]
    if isinstance(value, (list, tuple, set)):
        return [token for part in value for token in ([part] if isinstance(part, str) else _tokens(part))]
    return [str(want.value) if want.kind == "number" else want.text for want in wants(value)]


def _is_rows(answers: Any) -> bool:
    return (
        isinstance(answers, (list, tuple))
        and len(answers) == 1
        and isinstance(answers[0], (str, list, tuple, torch.Tensor))
    )


def _spread(cells: list[str]) -> list[str]:
    """A whole row typed into its first cell goes to all of its cells."""
    words = cells[0].split()
    return words if len(words) == len(cells) and not any(cell.strip() for cell in cells[1:]) else cells


# --- what is said about it ----------------------------------------------------------------


def _marked(mark: Mark) -> str:
    if mark.right:
        return f"✓ {mark.given.text or '-'}"
    return f"{'_' if mark.right is None else '✗ ' + mark.given.text} ({mark.want.text})"


def summary(result: Result, question: Any) -> str:
    if not result.tried:
        return "Nothing was predicted."
    if result.of == 1:
        return "Right." if result.right else "Not so."
    if result.right == result.of:
        return f"All {result.of} right."
    legend = " Beside each ✗, in brackets, is what it is." if isinstance(question, Grid) else ""
    return f"{result.right} of {result.of} right.{legend}"


def reasons(result: Result, question: Any) -> list[str]:
    """Why the wrong ones are wrong, a line for all ranks of which the same is said."""
    said: dict[str, list[int]] = {}
    for row, marks in zip(question.rows, result.marks):
        for mark in marks:
            if mark.why and row.rank not in said.setdefault(mark.why, []):
                said[mark.why].append(row.rank)
    return [f"{_ranks(ranks)}: {why}." for why, ranks in said.items()]


def outcome_text(outcome: Outcome) -> str:
    """What the ranks printed and did, or how it went wrong."""
    end = f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else repr(outcome.run)
    return f"{outcome.printed}{end}"


def outcome_picture(outcome: Outcome) -> Picture | None:
    if isinstance(outcome.error, Stuck) and outcome.error.waits:
        return outcome.error.draw()
    if isinstance(outcome.error, RankFailed):
        return None  # the call that raised was not made: a picture would say "never called"
    return outcome.run.draw() if any(outcome.run.events) else None
