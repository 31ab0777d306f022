"""A prediction for the web module: the question alone where a kernel marks, with an encoded key where none does."""

import base64
import json
from typing import Any, Iterator

from collectives.launch.attempt import Outcome

from .answers import NO_VALUE, Want, numbers_of, parse_answer, wants
from .marking import Result, outcome_text, reasons, summary
from .questions import Choice, FillIn, Open
from .reasons import Story, stories

MAX_CANDIDATES = 40  # wrong numbers per cell that have their own reason


def question_data(question: FillIn | Open | Choice) -> dict:
    """The question, and nothing of its answer."""
    fields = ("rank", "root", "shown", "cells", "asked")
    rows = [{field: getattr(row, field) for field in fields} for row in question.rows]
    return {
        "kind": "predict",
        "ask": question.ask,
        "title": question.title,
        "before": question.before,
        "rows": rows,
        "options": list(getattr(question, "options", ())),
    }


def reply(result: Result, question: FillIn | Open | Choice, show: bool) -> dict:
    """The reply to a marked answer: first the wrong cells and why; the right values if `show`, or if all are right."""
    done = result.right == result.of
    said = {
        "marks": [[mark.right for mark in row] for row in result.marks],
        "summary": summary(result, None),
        "reasons": reasons(result, question),
        "right": done,
    }
    if done or show:
        said["wants"] = [[mark.want.text for mark in row] for row in result.marks]
        said["after"] = after(result.outcome, question.one)
    return said


def after(outcome: Outcome, one: int | None) -> dict:
    """The words on the ranks' calls, or their error.  one: the call to show, None: all."""
    return {"text": outcome_text(outcome, one), "prose": outcome.error is not None}


def record_prediction(question: FillIn | Open | Choice, result: Result) -> dict:
    """The question with the key that marks it, encoded: no search finds an answer in it, and no reader by chance."""
    cells = [[mark.want for mark in row] for row in result.marks]
    key = {
        "wants": [list(map(_cell, row)) for row in cells],
        "reasons": {},
        "why": [],
        "kinds": [],
        "after": after(result.outcome, question.one),
    }
    if isinstance(question, FillIn):
        key |= _reasons(question, result.outcome, cells)
    elif isinstance(question, Open):
        key["parts"] = [_cell(want) for want in wants(result.outcome.answer(question.answer))]
    else:
        key["reasons"] = {option: question.why(option, result.outcome) for option in question.options}
    return question_data(question) | {"key": base64.b64encode(json.dumps(key, ensure_ascii=False).encode()).decode()}


def _cell(want: Want) -> dict:
    value = want.value
    if isinstance(value, complex) or value is not None and value != value or value in (float("inf"), -float("inf")):
        value = str(value)  # no JSON number
    return {"kind": want.kind, "text": want.text} | ({} if value is None else {"value": value})


def _reasons(question: FillIn, outcome: Outcome, cells: list[list[Want]]) -> dict:
    """Why each likely wrong answer to each cell is wrong: the places of its stories in "why"; under "", of any other.

    "kinds" has the kind of each.
    """
    places: dict[Story, int] = {}
    found = {}
    for i, (row, mine) in enumerate(zip(question.rows, cells)):
        for k, want in enumerate(mine if row.asked else ()):
            said = {}
            for words in ("", *_candidates(question, outcome, k)):
                answer = parse_answer(words or "-987654321.5")
                told = stories(question, outcome, row.rank, k, answer, want or NO_VALUE)
                at = [places.setdefault(story, len(places)) for story in told]
                if at and (not words or at != said.get("")):
                    said[words and (_number(answer.value) if answer.kind == "number" else answer.kind)] = at
            found[f"{i} {k}"] = said
    return {"reasons": found, "why": [story.words for story in places], "kinds": [story.kind for story in places]}


def _candidates(question: FillIn, outcome: Outcome, k: int) -> Iterator[str]:
    """Likely wrong answers: any rank's values before and after, and all that can be made of a column."""
    if question.kind == "returned":
        numbers = [want.value for row in question.wants(outcome).values() for want in row if want.kind == "number"]
        calls = outcome.run.calls[-1:]
    else:
        numbers, calls = [], [question.call(outcome.run)]
    for call in calls:
        held = [numbers_of(e.before) for e in call]
        column = [row[k] for row in held if k < len(row)]
        if column:
            total = sum(column)
            numbers += [total, total / len(column), max(column), min(column), *(total - mine for mine in column)]
        numbers += [v for row in held for v in row] + [v for e in call for v in numbers_of(e.after)]
    yield from ("?", "none", "never")
    yield from list(dict.fromkeys(map(_number, numbers)))[:MAX_CANDIDATES]


def _number(value: Any) -> str:
    """As JavaScript writes it."""
    whole = not isinstance(value, complex) and abs(value) < 1e15 and value == int(value)
    return str(int(value)) if whole else str(value)
