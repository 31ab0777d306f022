"""A prediction marked: the right cells, the reasons against the wrong ones, and the ranks' calls."""

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from collectives.draw.canvas import Picture
from collectives.format import name_ranks
from collectives.launch.attempt import Outcome
from collectives.outcome.errors import RankFailed, Stuck

from .answers import NO_VALUE, LearnersAnswer, Want, fits, is_unread, parse_answer, wants
from .questions import Choice, FillIn, Open
from .reasons import Story, stories, story_lines


class MarkedCell(NamedTuple):
    given: LearnersAnswer
    want: Want
    right: bool | None  # None: not answered, or not in numbers
    why: str = ""


@dataclass
class Result:
    marks: list[list[MarkedCell]]
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


def mark(question: FillIn | Open | Choice, filled: list[list[str]], outcome: Outcome) -> Result:
    """Mark an answer by the ranks' real values.  filled: the text of every cell, a list for each row."""
    by_kind = {FillIn: _mark_grid, Open: _mark_open, Choice: _mark_choice}
    return Result(by_kind[type(question)](question, filled, outcome), outcome)


def _mark_grid(question: FillIn, filled: list[list[str]], outcome: Outcome) -> list[list[MarkedCell]]:
    answers = question.wants(outcome)
    known: list[list[Story]] = []  # of each wrong cell
    tried = any(cell.strip() for row in filled for cell in row)
    marked: list[list[MarkedCell]] = [[] for _ in filled]
    for row, texts, marks in zip(question.rows, filled, marked):
        if not row.asked:
            continue
        right = answers.get(row.rank) or [NO_VALUE]
        if len(right) == 1 and right[0].kind in ("undefined", "never"):
            right = right * row.cells
        for k, (text_, want) in enumerate(zip_longest(texts, right, fillvalue=None)):
            answer, want = parse_answer(text_), want or NO_VALUE
            if k and answer.kind == "blank" and want.kind == "nothing":
                continue  # nothing was expected there, and nothing is: no merit in that
            answered = answer.kind != "blank" and not is_unread(answer, want) or tried and want.kind == "nothing"
            good = fits(answer, want) if answered else None
            marks.append(MarkedCell(answer, want, good))
            if good is False:
                known.append(stories(question, outcome, row.rank, k, answer, want))
    reasons = iter(story_lines(known))
    return [[mark._replace(why=next(reasons)) if mark.right is False else mark for mark in marks] for marks in marked]


def _mark_open(question: Open, filled: list[list[str]], outcome: Outcome) -> list[list[MarkedCell]]:
    words = filled[0][0]
    right = wants(outcome.answer(question.answer))
    said = [parse_answer(word) for word in re.split(r"[,;\s]+|\band\b|\branks?\b", words) if word]
    want = Want("answer", ", ".join(cell.text for cell in right) or "none")
    if not said:
        return [[MarkedCell(parse_answer(""), want, None)]]
    if right and all(is_unread(cell, real) for cell in said for real in right):
        return [[MarkedCell(parse_answer(words), want, None)]]
    if any(cell.kind == "word" for cell in right):
        good = any(fits(parse_answer(words), cell) for cell in right)
    else:
        said, right = ([cell for cell in cells if cell.kind != "nothing"] for cells in (said, right))
        good = len(said) == len(right) and all(map(fits, said, right))
    return [[MarkedCell(parse_answer(words), want, good)]]


def _mark_choice(question: Choice, filled: list[list[str]], outcome: Outcome) -> list[list[MarkedCell]]:
    picked, right = filled[0][0], outcome.answer(question.right)
    if right not in question.options:
        raise ValueError(f"predict: the answer is {right!r}, which is not one of the choices {question.options}")
    answer = LearnersAnswer("word" if picked else "blank", picked, picked)
    why = question.why(picked, outcome) if picked and picked != right else ""
    return [[MarkedCell(answer, Want("word", right, right), picked == right if picked else None, why)]]


# --- the words about it -------------------------------------------------------------------


def mark_words(mark: MarkedCell) -> str:
    if mark.right:
        return f"✓ {mark.given.text or '-'}"
    return f"{'_' if mark.right is None else '✗ ' + mark.given.text} ({mark.want.text})"


def summary(result: Result, question: Any) -> str:
    unread = unread_words(
        [mark.given.text for row in result.marks for mark in row if mark.given.kind == "word" and mark.right is None]
    )
    if not result.tried:
        return f"Nothing was predicted.{unread}"
    if result.of == 1:
        return "Right." if result.right else "Not so."
    if result.right == result.of:
        return f"All {result.of} right."
    legend = " Next to each ✗, in parentheses, is the right answer." if isinstance(question, FillIn) else ""
    return f"{result.right} of {result.of} right.{unread}{legend}"


def unread_words(texts: list[str]) -> str:
    """A sentence about answers that aren't numbers, where numbers are wanted."""
    if not texts:
        return ""
    point = " Fractions have a point: 2.5." if any("," in text for text in texts) else ""
    return f" '{texts[0]}' isn't a number.{point}"


def reasons(result: Result, question: Any) -> list[str]:
    """The reasons why answers are wrong, a line for all ranks with the same reason."""
    if not isinstance(question, FillIn):
        return [mark.why for marks in result.marks for mark in marks if mark.why]
    said: dict[str, list[int]] = {}
    for row, marks in zip(question.rows, result.marks):
        for mark in marks:
            if mark.why and row.rank not in said.setdefault(mark.why, []):
                said[mark.why].append(row.rank)
    return [f"{name_ranks(ranks)}: {why}." for why, ranks in said.items()]


def outcome_text(outcome: Outcome, one: int | None = None) -> str:
    """The ranks' output and calls, or the error.  one: the index of the call to show; None: all."""
    done = repr(outcome.run) if one is None else outcome.run.table(one)
    end = f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else done
    return f"{outcome.printed}{end}"


def outcome_picture(outcome: Outcome, one: int | None = None) -> Picture | None:
    """The picture of the ranks' calls, or of their waits; None where a picture would mislead.  one: as above."""
    if isinstance(outcome.error, Stuck) and outcome.error.waits:
        return outcome.error.draw()
    if isinstance(outcome.error, RankFailed):
        return None  # the call that raised was not made: a picture would say "never called"
    return outcome.run.draw(one) if any(outcome.run.events) else None
