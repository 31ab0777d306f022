"""A comparison as a picture: the verdict, its reason, and a row per tensor with a mark where it differs."""

from textwrap import wrap

from ..draw.canvas import INK, SOFT, Canvas, Picture, text_width
from .comparison_text import headline, text, visible_rows
from .findings import Comparison

ROW, LINE, SIZE, COLUMNS = 22, 19, 12, 110  # pixels, and characters of a line of the reason


def draw(found: Comparison) -> Picture:
    """The picture of a comparison."""
    sketch = Canvas()
    verdict, _, reason = headline(found).partition(": ")
    sketch.text(0, 10, verdict, 15.5, align="left", bold=True, mono=True)
    y = 34.0
    for sentence in (reason, *(f"Note: {remark}." for remark in found.remarks)):
        for line in wrap(sentence.replace("`", ""), COLUMNS):
            sketch.text(0, y, line, SIZE, INK, align="left")
            y += LINE
    if rows := visible_rows(found):
        titles = ("tensor", f"on {found.world_size} ranks", "next to one process")
        wide = [max(text_width(words, SIZE, bold=True) for words in column) for column in zip(titles, *rows)]
        lefts = [22.0, 48 + wide[0], 74 + wide[0] + wide[1]]
        y += 8
        for x, title in zip(lefts, titles):
            sketch.text(x, y, title, SIZE - 1, SOFT, align="left")
        for row in rows:
            y += ROW
            differs = bool(row.found) and not row.found.endswith("equal")
            mark = "≠" if differs else "=" if row.found else ""
            sketch.text(8, y, mark, SIZE + 1, INK if differs else SOFT, bold=True)
            for x, words in zip(lefts, row):
                sketch.text(x, y, words, SIZE, INK, align="left", bold=row.tensor == found.first)
        if hidden := len(found.rows) - len(rows):
            sketch.text(lefts[0], y + ROW, f"and {hidden} more", SIZE - 1, SOFT, align="left")
    return Picture([sketch], text(found), f"Picture: {verdict}; {len(found.rows)} tensors next to one process's")
