"""Runs every line that a reader of the website may choose in notebooks/twelve_puzzles.ipynb, and records the outcome:

    python -m tools.puzzles

Each line is put into its function, which four ranks call, and the task of the page judges it.  The record in
helpers/views/web/puzzles.json then plays on the website without a kernel.
"""

import contextlib
import io
import json
from typing import Any

from collectives.launch.attempt import Outcome
from collectives.launch.run import run
from collectives.outcome.errors import RunError
from collectives.outcome.run import Run
from helpers.exercise.cases import Case
from helpers.exercise.feedback import broken_words, explain
from helpers.exercise.judgment import judge
from helpers.exercise.on_rank import perform
from helpers.exercise.task import Task
from helpers.exercise.tasks import PRACTICE, module
from helpers.exercise.trial import attempts_of
from helpers.views.predict.marking import outcome_picture
from helpers.views.web import PUZZLES

from .frames import PAGE, with_line

MODULE = module(f"practice.{PAGE}")
RANKS = 4


def try_line(task: Task, line: str) -> tuple[str, dict]:
    """The thought, "" for a right line; and the outcome of its run, in words and as a picture."""
    case, arguments = Case(RANKS), MODULE.INPUTS.get(task.name, MODULE.NUMBERS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            done = run(perform, with_line(task.name, line), [None], [arguments], world_size=RANKS)
    except RunError as error:
        said = broken_words(task, RANKS, error, case, arguments)
        return _thought(said), _came_of(Outcome(error.run, error, ""), said)
    (attempt,) = attempts_of(done, 1)
    outcome = Outcome(Run(RANKS, [], attempt.events, name=task.name), None, "")
    verdict = judge(task, case, arguments, attempt)
    if verdict is None:
        return "", _came_of(outcome, "")
    said = explain(task, case, arguments, verdict)
    return _thought(said), _came_of(outcome, said)


def _thought(said: str) -> str:
    """The line of a message that asks."""
    (thought,) = (line for line in said.splitlines() if line.startswith("Think: "))
    return thought


def _came_of(outcome: Outcome, said: str) -> dict:
    """The outcome for a reader, below the thought.  said: the whole message, "" if the line is right."""
    picture = outcome_picture(outcome)
    shown = {"text": said.partition("\nThink: ")[0] or repr(outcome.run), "prose": bool(said)}
    if picture:
        shown["picture"] = {
            "svg": picture.svg(),
            "alt": picture.alt,
            "width": picture.pixels[0],
            "height": picture.pixels[1],
        }
    return shown


def recording(task: Task) -> dict[str, Any]:
    """The choice of a line, as predict.js takes it; its key is not encoded yet."""
    lines = MODULE.LINES[task.name]
    came = {line: try_line(task, line) for line in lines}
    (right,) = (line for line, (thought, _) in came.items() if not thought)
    key = {
        "wants": [[{"kind": "word", "text": right, "value": right}]],
        "reasons": {line: thought for line, (thought, _) in came.items() if thought},
        "outcomes": {line: shown for line, (_, shown) in came.items()},
    }
    row = {"rank": None, "root": False, "shown": [], "cells": 1, "asked": True}
    return {
        "kind": "puzzle",
        "ask": "choice",
        "title": "Which line is missing?",
        "before": "",
        "rows": [row],
        "options": list(lines),
        "key": key,
    }


if __name__ == "__main__":
    recorded = {task.name: recording(task) for task in PRACTICE[PAGE]}
    PUZZLES.write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
