"""What a learner has solved so far, remembered in `.progress.json` beside README.md.

    from helpers.progress import progress
    progress()

The file maps the name of each exercise that was graded to a record:

    {"01_distributed_mean": {"points": 2, "best": 3, "of": 3, "tries": 4}}

points: of the last grading.  best: of all.  of: to be had.  tries: gradings since points
were last gained.  Delete it to begin anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from .notebooks import ROOT

FILE = ROOT / ".progress.json"


def recall(file: Path = FILE) -> dict[str, dict[str, float]]:
    """The records; none if there is no file, or none that can be read."""
    try:
        records = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(name): {key: record[key] for key in ("points", "best", "of", "tries")}
            for name, record in records.items()
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def remember(exercise: str, points: float, of: float, file: Path = FILE) -> dict[str, float]:
    """Notes one grading, and returns the exercise's record."""
    records = recall(file)
    best = records.get(exercise, {}).get("best", 0)
    tries = 0 if points > best else records.get(exercise, {}).get("tries", 0) + 1
    records[exercise] = {"points": points, "best": max(points, best), "of": of, "tries": tries}
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(beside, file)  # whole or not at all
    return records[exercise]


class Progress(dict):
    """The records, which show themselves as a table."""

    def __repr__(self) -> str:
        names = sorted(path.stem for path in (ROOT / "exercises").glob("*.ipynb"))
        width = max(map(len, names), default=0)
        return "\n".join(f"{name:<{width}}   {_state(self.get(name))}" for name in names) or "There are no exercises."

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        printer.text(repr(self))


def _state(record: dict[str, float] | None) -> str:
    if record is None:
        return "not begun"
    return "solved" if record["best"] == record["of"] else f"{record['best']:g} of {record['of']:g} points"


def progress() -> Progress:
    """How far you are: a table of the exercises."""
    return Progress(recall())
