"""The picture of a run that hangs: a row per rank, an arrow from each waiting rank to the ranks that it waits for."""

from .canvas import INK, SOFT, TRAY, Canvas, Picture, colour, heading, ink_on, text_width
from .labels import RankLabels

MAX_RANKS = 16  # in one picture
PITCH, HIGH = 40, 26  # pixels
REACH = 26  # pixels: how much further out an arrow goes for each row that it passes


def wait_for_graph(standing: list[str], waits: dict[int, set[int]]) -> Picture:
    """standing: every rank's state, in a few words.  waits: rank -> the ranks it waits for."""
    shown = range(min(len(standing), MAX_RANKS))
    sketch = Canvas()
    top = heading(sketch, "who waits for whom") + HIGH / 2 + 4
    labels = RankLabels(shown)
    left = labels.width
    wide = max(text_width(standing[rank], 12.5) for rank in shown) + 24
    edge = left + 16 + wide
    y = [top + PITCH * rank for rank in shown]
    for rank in shown:
        fill, rim, ink = (colour(rank), None, ink_on(colour(rank))) if rank in waits else (TRAY, SOFT, INK)
        labels.draw(sketch, left, y[rank], rank)
        sketch.box(left + 16, y[rank] - HIGH / 2, wide, HIGH, fill, rim, dashed=rank not in waits)
        sketch.text(left + 16 + wide / 2, y[rank], standing[rank], 12.5, ink)
    for rank in shown:
        for other in sorted(waits.get(rank, set()) & set(shown)):
            # Arrows down are drawn below arrows up, and leave further out than they arrive: so two ranks
            # that wait for each other look different from a chain of ranks.
            way = 1 if other > rank else -1
            sketch.bow(edge + 3, y[rank] + 9 * way, y[other] + 3 * way, REACH * abs(other - rank) + 10, colour(rank))
    if len(standing) > MAX_RANKS:
        sketch.text(left + 16, y[-1] + PITCH, f"and {len(standing) - MAX_RANKS} more ranks", 11.5, SOFT, align="left")
    said = "; ".join(f"{rank} waits for {', '.join(map(str, sorted(on)))}" for rank, on in sorted(waits.items()) if on)
    what = f"who waits for whom: {said}" if said else "no rank waits for another"
    return Picture([sketch], said, f"Picture: {what}")
