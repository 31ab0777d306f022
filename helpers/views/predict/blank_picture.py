"""The picture of a prediction: each rank's input, and cells with a question mark."""

from collectives.draw.canvas import FAINT, SOFT, Canvas, Picture, colour, heading, ink_on, text_width
from collectives.draw.cells import Tray
from collectives.draw.labels import RankLabels

from .questions import FillIn, ShownCell

HIGH, PITCH, MIN_WIDTH, GAP, SIZE = 28, 40, 30, 4, 13  # pixels: a cell's height, row to row, least width, gap, letters


def blank(question: FillIn) -> Picture:
    sketch = Canvas()
    words, _, call = question.title.partition("  ")
    y = heading(sketch, words, call)
    labels = RankLabels([row.rank for row in question.rows], SIZE, [row.rank for row in question.rows if row.root])
    left = labels.width + 18
    given = max(sum(wide(cell) + GAP for cell in row.shown) for row in question.rows)
    right = left + given + 72 if given else left
    asked = max(row.cells for row in question.rows) * (MIN_WIDTH + GAP)
    if given:
        sketch.text(left + given / 2, y + 5, question.before, 11.5, SOFT)
    sketch.text(right + asked / 2, y + 5, "returned" if question.kind == "returned" else "after", 11.5, SOFT)
    y += 22
    for row in question.rows:
        middle, x = y + HIGH / 2, left
        labels.draw(sketch, labels.width, middle, row.rank, stripe=HIGH)
        if given:
            Tray().draw(sketch, left, y, given - GAP, HIGH)
        for cell in row.shown:
            fill = None if cell.rank is None else colour(cell.rank)
            sketch.box(x, y, wide(cell), HIGH, fill, None if fill else FAINT, dashed=not fill)
            sketch.text(x + wide(cell) / 2, middle, cell.text, SIZE, ink_on(fill) if fill else FAINT)
            x += wide(cell) + GAP
        for k in range(row.cells if row.asked else 0):
            x = right + k * (MIN_WIDTH + GAP)
            sketch.box(x, y, MIN_WIDTH, HIGH, "#ffffff", SOFT)
            sketch.text(x + MIN_WIDTH / 2, middle, "?", SIZE, SOFT)
        y += PITCH
    if given:
        middle = y - PITCH * len(question.rows) / 2 - (PITCH - HIGH) / 2
        sketch.arrow((right - 54, middle), (right - 18, middle), SOFT, 2.2)
    return Picture([sketch], "", f"Picture: {question.title.replace('  ', ' ')}")


def wide(cell: ShownCell) -> float:
    return max(MIN_WIDTH, text_width(cell.text, SIZE) + 14)
