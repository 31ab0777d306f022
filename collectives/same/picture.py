"""A comparison as a small table: one row per tensor, and a mark where it differs."""

from ..draw.canvas import INK, REDUCED, SOFT, Canvas, Picture, heading, text_width
from .findings import Comparison
from .words import shown, text

ROW, SIZE = 22, 12  # pixels


def draw(found: Comparison) -> Picture | None:
    """The table; None where nothing was compared."""
    rows = shown(found)
    if not rows:
        return None
    sketch = Canvas()
    y = heading(sketch, found.verdict.capitalize(), f"{found.world_size} ranks next to one process") + 12
    wide = [max(text_width(words, SIZE) for words in column) for column in zip(*rows)]
    lefts = [22.0, 22 + wide[0] + 26, 22 + wide[0] + wide[1] + 52]
    for x, title in zip(lefts, ("tensor", f"on {found.world_size} ranks", "next to one process")):
        sketch.text(x, y, title, SIZE - 1, SOFT, align="left")
    for row in rows:
        y += ROW
        differs = row.found and not row.found.endswith("equal")
        sketch.text(
            8, y, "≠" if differs else "=" if row.found else "", SIZE + 1, REDUCED if differs else SOFT, bold=True
        )
        for x, words in zip(lefts, row):
            sketch.text(x, y, words, SIZE, INK, align="left", bold=row.tensor == found.first)
    if hidden := len(found.rows) - len(rows):
        sketch.text(lefts[0], y + ROW, f"and {hidden} more", SIZE - 1, SOFT, align="left")
    return Picture(
        [sketch], text(found), f"Picture: {found.verdict}; {len(found.rows)} tensors, of which {len(rows)} are shown"
    )
