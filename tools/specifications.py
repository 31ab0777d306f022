"""Draws what each of the twelve puzzles asks for: what four ranks hold before the missing line, and after it.

    python -m tools.specifications
"""

from itertools import count
from typing import Any, NamedTuple

import torch

from collectives.draw.canvas import REDUCED, SOFT, Canvas, Picture, colour, text_width
from collectives.draw.cells import JOINT, Tray
from collectives.draw.labels import RankLabels
from helpers.course import NOTEBOOKS
from helpers.exercise.task import Task
from helpers.exercise.tasks import PRACTICE, module

from .frames import PAGE

FOLDER = NOTEBOOKS / "images" / "puzzles"
HIGH, PITCH, BETWEEN, SIZE = 30, 46, 92, 13  # pixels: a cell, from row to row, before to after, the letters


class Tile(NamedTuple):
    """A number or a list, as text, and the rank that it came from; None if it combines several ranks' numbers."""

    text: str
    origin: int | None


def texts(value: Any) -> list[str]:
    """A rank's value in cells: the numbers of a tensor, a list, or each of a list's lists."""
    if isinstance(value, torch.Tensor):
        return [f"{number:g}" for number in value.flatten().tolist()]
    is_nested = isinstance(value, list) and any(isinstance(part, list) for part in value)
    return [str(part) for part in (value if is_nested else [value])]


def marked(inputs: list[tuple]) -> list[tuple]:
    """The inputs with powers of three as numbers, none of which is a sum of others."""
    powers = (3**k for k in count())

    def mark(value: Any) -> Any:
        if isinstance(value, list):
            return [next(powers)]
        return torch.tensor([next(powers) for _ in value.flatten()], dtype=torch.float64).reshape(value.shape)

    return [(mark(value),) for (value,) in inputs]


def before_and_after(task: Task, inputs: list[tuple]) -> tuple[list[list[Tile]], list[list[Tile]]]:
    """The cells of each rank, before and after."""
    before = [[Tile(text, rank) for text in texts(value)] for rank, (value,) in enumerate(inputs)]
    marks = marked(inputs)
    origins = {text: rank for rank, (value,) in enumerate(marks) for text in texts(value)}
    sources = [[origins.get(text) for text in texts(value)] for value in task.reference(marks)]
    results = map(texts, task.reference(inputs))
    return before, [list(map(Tile, *row)) for row in zip(results, sources)]


def specification(task: Task, inputs: list[tuple]) -> Picture:
    """The picture of a puzzle: a row for each rank, a question mark between its numbers before and after."""
    before, after = before_and_after(task, inputs)
    wide = max(30.0, *(text_width(cell.text, SIZE) + 14 for row in before + after for cell in row))
    widths = [max(1, *map(len, rows)) * (wide + JOINT) - JOINT for rows in (before, after)]
    labels = RankLabels(range(len(before)))
    sketch = Canvas()
    left = labels.width + 18
    right = left + widths[0] + BETWEEN
    for x, width, word in ((left, widths[0], "before"), (right, widths[1], "after")):
        sketch.text(x + width / 2, 5, word, 11.5, SOFT)
    for rank, rows in enumerate(zip(before, after)):
        top = 22 + rank * PITCH
        labels.draw(sketch, labels.width, top + HIGH / 2, rank, stripe=HIGH)
        for x, width, row in zip((left, right), widths, rows):
            Tray().draw(sketch, x, top, width, HIGH)
            for k, (text, origin) in enumerate(row):
                fill = REDUCED if origin is None else colour(origin)
                sketch.boxed(x + k * (wide + JOINT), top, wide, HIGH, text, SIZE, fill)
    bottom = 22 + (len(before) - 1) * PITCH + HIGH
    at, middle = right - BETWEEN / 2, (22 + bottom) / 2
    sketch.arrow((right - BETWEEN + 14, middle), (right - 14, middle), SOFT)
    sketch.circle(at, middle, 17, "#ffffff", SOFT)
    sketch.text(at, middle, "?", 17, bold=True)
    sketch.reach(0, bottom + 4)
    words = [", ".join(" ".join(cell.text for cell in row) for row in rows) for rows in (before, after)]
    return Picture([sketch], " -> ".join(words), f"Four ranks hold {words[0]}, and after the missing line {words[1]}")


def specifications() -> dict[str, Picture]:
    """By the puzzle's name, in the order of the page."""
    puzzles = module(f"practice.{PAGE}")
    return {task.name: specification(task, puzzles.INPUTS.get(task.name, puzzles.NUMBERS)) for task in PRACTICE[PAGE]}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, picture in specifications().items():
        (FOLDER / f"{name}.svg").write_text(picture.svg() + "\n", encoding="utf-8")
        print(f"![{picture.alt}](images/puzzles/{name}.svg)")
