"""A learner's progress, what was run, predicted and solved so far, stored in `.progress.json` next to README.md.

    from helpers.progress import progress
    progress()

The file maps the name of each exercise that was graded to a record, "cells" to the ids of a chapter's cells that were
run, "practice" to the short tasks solved, by chapter and function, and "predictions" to those made, by chapter,
function and question:

    {"02_distributed_mean": {"points": 2, "best": 3, "of": 3, "tries": 4},
     "cells": {"03_one_to_many": ["3c8f2a61", "90d1e4b7"]},
     "practice": {"03_one_to_many": ["hand_out"]},
     "predictions": {"03_one_to_many, share: How does it end?":
                     {"first": 0, "best": 1, "of": 1, "tries": 2}}}

points: of the last grading.  best: of all.  of: to be had.  tries: gradings since points were last gained; of a
prediction, how often it was made.  first: right on the first try.  `forget()` begins again.  A file that cannot be read
is kept next to the new one.
"""

import json
import os
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Iterator

from collectives import frontend

from . import course

FILE = Path(os.environ.get("COLLECTIVES_PROGRESS") or course.ROOT / ".progress.json")
_KEYS, _PREDICTED = ("points", "best", "of", "tries"), ("first", "best", "of", "tries")


def recall(file: Path | None = None) -> dict[str, dict[str, float]]:
    """The exercises' records; {} if there is no file, or it cannot be read."""
    return _of_keys(_read(file), _KEYS)


def predictions(file: Path | None = None) -> dict[str, dict[str, float]]:
    """The records of the predictions made, by function and question."""
    return _of_keys(_read(file).get("predictions"), _PREDICTED)


def remember(exercise: str, points: float, of: float, file: Path | None = None) -> dict[str, float]:
    """Notes one grading, and returns the exercise's record."""
    with _changing(file) as everything:
        old = _of_keys(everything, _KEYS).get(exercise, {"best": 0, "tries": 0})
        tries = 0 if points > old["best"] else old["tries"] + 1
        everything[exercise] = {"points": points, "best": max(points, old["best"]), "of": of, "tries": tries}
    return everything[exercise]


def predicted(name: str, question: str, right: int, of: int, file: Path | None = None) -> None:
    """Record that a prediction was made, if the course can be written to."""
    with suppress(OSError), _changing(file) as everything:
        made = everything["predictions"] = _dict(everything.get("predictions"))
        key = ", ".join(filter(None, [frontend.notebook(), f"{name}: {question}"]))
        old = _of_keys(made, _PREDICTED).get(key, {"first": right, "best": 0, "tries": 0})
        made[key] = {"first": old["first"], "best": max(right, old["best"]), "of": of, "tries": old["tries"] + 1}


def cells_run(file: Path | None = None) -> dict[str, list[str]]:
    """The ids of the cells that were run, by chapter."""
    return _lists(_read(file).get("cells"))


def ran(chapter: str, cell: str, file: Path | None = None) -> None:
    """Notes that a cell of a chapter was run."""
    _add("cells", chapter, cell, file)


def practice(file: Path | None = None) -> dict[str, list[str]]:
    """The short tasks solved, by chapter."""
    return _lists(_read(file).get("practice"))


def practised(name: str, file: Path | None = None) -> None:
    """Notes that a short task of the notebook at hand was solved."""
    if chapter := frontend.notebook():
        _add("practice", chapter, name, file)


def _add(kind: str, chapter: str, entry: str, file: Path | None) -> None:
    """Record an entry once, if the course can be written to."""
    if entry in _lists(_read(file).get(kind)).get(chapter, ()):
        return
    with suppress(OSError), _changing(file) as everything:
        noted = _lists(everything.get(kind))
        everything[kind] = {**noted, chapter: sorted({*noted.get(chapter, ()), entry})}


def follow() -> None:
    """Record the cells that are run from now on, in a chapter that a learner works in."""

    def note(result: Any) -> None:
        if (cell := getattr(result.info, "cell_id", None)) and (chapter := frontend.notebook()):
            ran(chapter, cell)

    if frontend.notebook() in [path.stem for path in course.chapters()]:
        frontend.shell().events.register("post_run_cell", note)


def forget(file: Path | None = None) -> None:
    """Begin again; the old file is kept as `.progress.json.old`."""
    file = file or FILE
    with suppress(FileNotFoundError):
        os.replace(file, file.with_name(f"{file.name}.old"))


def _of_keys(records: Any, keys: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Those records that have a number for each of these keys, and nothing else."""
    return {
        str(name): {key: record[key] for key in keys}
        for name, record in _dict(records).items()
        if isinstance(record, dict) and all(isinstance(record.get(key), (int, float)) for key in keys)
    }


def _lists(value: Any) -> dict[str, list[str]]:
    return {name: list(map(str, entries)) for name, entries in _dict(value).items() if isinstance(entries, list)}


def _dict(value: Any) -> dict:
    """The value where it is a dict, an empty one where the file was edited into something else."""
    return value if isinstance(value, dict) else {}


def _read(file: Path | None) -> dict:
    try:
        return _dict(json.loads((file or FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


@contextmanager
def _changing(file: Path | None) -> Iterator[dict]:
    """All there is, to be changed; two notebooks and the grader may do so at once."""
    file = file or FILE
    with open(file.with_name(f"{file.name}.lock"), "w") as lock:
        with suppress(ImportError):  # Windows
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        everything = _read(file)
        if not everything and file.exists() and file.read_text(errors="replace").strip() not in ("", "{}"):
            os.replace(file, file.with_name(f"{file.name}.unreadable"))
        yield everything
        beside = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            os.replace(beside, file)  # whole or not at all
        finally:
            beside.unlink(missing_ok=True)  # cut short: the disk is full


class Progress(dict):
    """The records of the exercises, `.cells` run, `.practice` done and `.predictions` made, which show themselves as a table."""

    def __init__(
        self, records: dict, cells: dict | None = None, made: dict | None = None, practice: dict | None = None
    ) -> None:
        super().__init__(records)
        self.cells, self.predictions, self.practice = cells or {}, made or {}, practice or {}

    def __repr__(self) -> str:
        parts = self._parts()
        width = max((len(name) for part in parts.values() for name in part), default=0)
        tables = [[title, *(f"  {name:<{width}}   {part[name]}" for name in part), ""] for title, part in parts.items()]
        return "\n".join([*chain(*tables), *self._predicted()]).rstrip()

    def page(self) -> str:
        """The same in Markdown, whose links open the notebooks."""
        lines = ["# How far you are", "`progress()` in a cell says it at any time; this page, when it is opened."]
        parts = self._parts()
        if name := _following(parts["Chapters"]):
            lines += ["", f"**Next: [{name.replace('_', ' ')}]({course.NOTEBOOKS.name}/{name}.ipynb)**"]
        for title, part in parts.items():
            folder = (course.NOTEBOOKS if title == "Chapters" else course.EXERCISES).name
            rows = (f"| [{name.replace('_', ' ')}]({folder}/{name}.ipynb) | {state} |" for name, state in part.items())
            lines += ["", f"| {title} | |", "|---|---|", *rows]
        return "\n".join([*lines, "", *self._predicted(), ""])

    def _parts(self) -> dict[str, dict[str, str]]:
        """The progress of each chapter and each exercise, by its name."""
        return {
            "Chapters": {path.stem: self._chapter(path) for path in course.chapters()},
            "Exercises": {path.stem: self._exercise(path.stem) for path in sorted(course.EXERCISES.glob("*.ipynb"))},
        }

    def _predicted(self) -> list[str]:
        right = sum(record["first"] == record["of"] for record in self.predictions.values())
        made = len(self.predictions)
        return [f"{made} predictions made, {right} right on the first try"] if made else []

    def _chapter(self, path: Path) -> str:
        """The shares of a chapter that were run, predicted and practiced, in words."""
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = {cell["id"] for cell in cells if cell["cell_type"] == "code"}
            short = sum("".join(cell["source"]).startswith("check_practice(") for cell in cells)
        except (OSError, ValueError, RecursionError, LookupError, TypeError):  # merge marks, cut short, no notebook
            return f"cannot be read: is it damaged? git diff notebooks/{path.name} shows what was changed"
        run = code & set(self.cells.get(path.stem, ()))
        made = sum(key.startswith(f"{path.stem}, ") for key in self.predictions)
        practised = len(self.practice.get(path.stem, ()))
        if not run and not made and not practised:
            return "not begun"
        state = "all cells run" if run == code else f"{len(run)} of {len(code)} cells run"
        done = "practice done" if practised == short else f"{practised} of {short} short tasks done"
        return state + f", {made} prediction{'s' * (made > 1)} made" * bool(made) + f", {done}" * bool(practised)

    def _exercise(self, name: str) -> str:
        if name not in self:
            return "not begun"
        best, of = self[name]["best"], self[name]["of"]
        return "solved" if best == of else f"{best:g} of {of:g} points"

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        printer.text(repr(self))


def _following(chapters: dict[str, str]) -> str | None:
    """The last chapter that was begun, by its name, or the one after it if all of its cells were run; None after the last."""
    begun = [k for k, state in enumerate(chapters.values()) if state != "not begun"]
    run = bool(begun) and [*chapters.values()][begun[-1]].startswith("all cells run")
    return next(islice(chapters, begun[-1] + run if begun else 0, None), None)


def progress() -> Progress:
    """Your progress: a table of the chapters and the exercises, and the predictions made."""
    return Progress(recall(), cells_run(), predictions(), practice())
