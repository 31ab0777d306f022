"""The picture of a barrier."""

from ..log.calls import Call
from ..log.text import call_title, status
from .canvas import REDUCED, SOFT, Canvas, colour, heading
from .cells import NEVER_CALLED
from .labels import RankLabels
from .spacetime import LANE

WAIT = 0.05  # seconds: the shortest wait that is drawn


def barrier(call: Call, which: str = "") -> Canvas:
    """Lanes that stop where their rank arrives, and continue together."""
    sketch, ranks = Canvas(), call.group
    title, _, rest = call_title(call).partition(", ")
    y = heading(sketch, title, rest, which) + 8
    labels = RankLabels(ranks)
    left = labels.width + 14
    bar, pitch = left + 250, 34 if len(ranks) <= 8 else 22
    made = {e.rank: e for e in call}
    latest = max(e.start for e in call)
    unit = max(WAIT * 4, latest - min(e.start for e in call)) / 180
    for i, rank in enumerate(ranks):
        at, e = y + i * pitch, made.get(rank)
        labels.draw(sketch, left - 14, at, rank)
        if e is None:
            sketch.text(left, at, NEVER_CALLED, 12, SOFT, align="left")
            continue
        wait = latest - e.start if latest - e.start >= WAIT else 0.0
        x = bar - 24 - round(wait / unit)
        sketch.line([(left, at), (x, at)], colour(rank), LANE)
        sketch.line([(x, at), (bar, at)], SOFT, 1.4, dashed=True)
        sketch.circle(x, at, 5, colour(rank), "#ffffff", 1.5)
        if wait:
            sketch.text((x + bar) / 2, at - 9, f"waits {wait:.1g} s", 10.5, SOFT)
        if e.end is not None:
            sketch.line([(bar, at), (bar + 60, at)], colour(rank), LANE)
        else:
            sketch.text(bar + 14, at, "issued" if e.issued is not None else status(e), 12, SOFT, align="left")
    fill = REDUCED if len(made) == len(ranks) and all(e.end is not None for e in call) else "#ffffff"
    sketch.box(bar - 4, y - 14, 8, pitch * (len(ranks) - 1) + 28, fill, REDUCED, radius=4)
    return sketch
