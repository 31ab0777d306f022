"""The picture of a prediction: what each rank brings, and cells with a question mark."""

from __future__ import annotations

from ...draw.canvas import FAINT, SOFT, TRAY, Canvas, Picture, colour, heading, ink_on, rank_label, text_width
from .questions import Grid, Shown

HIGH, PITCH = 28, 40  # pixels
SIZE = 13
LEAST, GAP = 30, 4


def blank(question: Grid) -> Picture:
    sketch = Canvas()
    words, _, call = question.title.partition("  ")
    y = heading(sketch, words, call)
    label = max(text_width(rank_label(row.rank, row.root), SIZE, bold=row.root) for row in question.rows)
    left = label + 18
    given = max(sum(wide(cell) + GAP for cell in row.shown) for row in question.rows)
    right = left + given + 72 if given else left
    asked = max(row.cells for row in question.rows) * (LEAST + GAP)
    if given:
        sketch.text(left + given / 2, y + 5, question.before, 11.5, SOFT)
    sketch.text(right + asked / 2, y + 5, "returned" if question.kind == "returned" else "after", 11.5, SOFT)
    y += 22
    for row in question.rows:
        middle, x = y + HIGH / 2, left
        sketch.text(label, middle, rank_label(row.rank, row.root), SIZE, align="right", bold=row.root)
        sketch.box(label + 6, y, 4, HIGH, colour(row.rank), radius=2)
        if given:
            sketch.box(left - 4, y - 4, given + 4, HIGH + 8, TRAY, radius=5)
        for cell in row.shown:
            fill = None if cell.rank is None else colour(cell.rank)
            sketch.box(x, y, wide(cell), HIGH, fill, None if fill else FAINT, dashed=not fill)
            sketch.text(x + wide(cell) / 2, middle, cell.text, SIZE, ink_on(fill) if fill else FAINT)
            x += wide(cell) + GAP
        for k in range(row.cells if row.asked else 0):
            x = right + k * (LEAST + GAP)
            sketch.box(x, y, LEAST, HIGH, "#ffffff", SOFT)
            sketch.text(x + LEAST / 2, middle, "?", SIZE, SOFT)
        y += PITCH
    if given:
        middle = y - PITCH * len(question.rows) / 2 - (PITCH - HIGH) / 2
        sketch.arrow((right - 54, middle), (right - 18, middle), SOFT, 2.2)
    return Picture([sketch], "", f"Picture: {question.title.replace('  ', ' ')}")


def wide(cell: Shown) -> float:
    return max(LEAST, text_width(cell.text, SIZE) + 14)
