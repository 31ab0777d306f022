"""Pictures of a run: what every rank held before and after each call.

Rows are ranks, columns are slots, and both keep their place from before to after.  The
colour of a cell is the rank its data came from; a dark cell combines every rank.
"""

from __future__ import annotations

from ..record import provenance
from ..record.calls import Call
from ..record.text import call_title
from .canvas import (
    SOFT,
    TRAY,
    WIDTH,
    Canvas,
    colour,
    heading,
    rank_label,
    text_width,
)
from .cells import NEVER, STYLES, Grid
from .flow import chunked, flow, flow_width, says
from .spacetime import status


def collective(call: Call) -> Canvas:
    """Before and after, side by side, and between them where the data went."""
    made = {e.rank: i for i, e in enumerate(call)}
    ranks = call.group
    between = flow_width(call)
    roots = {e.root for e in call}
    label = max(text_width(rank_label(rank, rank in roots), 13, bold=rank in roots) for rank in ranks)
    before, after = provenance.read(call)
    for style in STYLES:
        grid = Grid(call, before, after, style)
        if label + 2 * grid.width + between + 40 <= WIDTH:
            break
    sketch = Canvas()
    title, _, rest = call_title(call).partition(", ")
    y = heading(sketch, title if provenance.agree(call) else "ranks disagree", rest)
    left = label + 18  # of the cells before
    right = left + grid.width + between
    for x, word in ((left, "before"), (right, "after")):
        sketch.text(x + grid.width / 2, y + 5, word, 11.5, SOFT)
    y += 22
    pitch = grid.high + (8 if grid.high < 20 else 16) + chunked(call, grid) * 2 * min(len(ranks), 8)
    tops = [y + i * pitch for i in range(len(ranks))]
    for rank, top in zip(ranks, tops):
        middle = top + grid.high / 2
        sketch.text(label, middle, rank_label(rank, rank in roots), 13, align="right", bold=rank in roots)
        sketch.box(label + 6, top, 4, grid.high, colour(rank), radius=2)
        for x in (left, right):
            sketch.box(x - 4, top - 4, grid.width + 8, grid.high + 8, TRAY, radius=5)
        if rank not in made:
            sketch.text(left + grid.width / 2, middle, NEVER, 12, SOFT)
            continue
        given, got = grid.before[made[rank]], grid.after[made[rank]]
        grid.draw(sketch, left, top, given)
        grid.draw(sketch, right, top, got)
        words = status(call.events[made[rank]])
        if words and got:
            sketch.text(right + grid.width + 14, middle, words, 12, SOFT, align="left")
        elif words:
            sketch.text(right + grid.width / 2, middle, words, 12, SOFT)
    flow(sketch, call, grid, left, left + grid.width + 8, right - 8, [top + grid.high / 2 for top in tops])
    sketch.reach(0, tops[-1] + grid.high + 4)
    if words := says(call, grid):
        sketch.text(left - 4, sketch.height + 14, words, 10.5, SOFT, align="left")
    return sketch
