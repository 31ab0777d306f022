"""A prediction: the question about a run, the answer that was given, and the run that marked it."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch

from ... import progress
from ...launch.attempt import Outcome
from ...results.errors import RunError
from ...results.run import Run
from .answers import wants
from .marking import Mark, Result, mark, marked, outcome_text, reasons, summary
from .questions import Choice, Grid, Open


class Prediction:
    """A question about a run, the answer that was given, and the run that marked it.

    `.run` is that Run, or the RunError that it ended with; None before there is one.
    `.right` and `.of`: how many cells are right, of how many.
    """

    def __init__(self, question: Grid | Open | Choice, attempt: Callable[[], Outcome], name: str) -> None:
        self.question, self._attempt, self.name = question, attempt, name
        self.filled: list[list[str]] = [[""] * row.cells for row in question.rows]
        self.result: Result | None = None

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
        return self

    def mark(self) -> Result:
        """Runs the ranks and marks what is filled in."""
        self.filled = [_spread(cells) for cells in self.filled]
        self.result = self.ran()
        if self.result.tried:
            progress.predicted(self.name, self.question.title, self.right, self.of)
        return self.result

    def ran(self) -> Result:
        """Run the ranks, and mark what is filled in without keeping the marks."""
        return mark(self.question, self.filled, self._attempt())

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

    def __repr__(self) -> str:
        """The question as text, with what was filled in, and marked once it ran."""
        question, result = self.question, self.result
        lines = [f"Predict. {question.title}"]
        if isinstance(question, Choice):
            lines += self._choices()
        elif isinstance(question, Open):
            lines.append(f"  answer: {self.filled[0][0] or '_'}")
            if result:
                lines[-1] = "  " + marked(result.marks[0][0])
        else:
            lines += self.table(result and result.marks, marked)
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

    def table(self, marked: list[list[Mark]] | None, say: Callable[[Mark], str]) -> list[str]:
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
