"""The family of the collectives on one map: the result of each, and the pairs that are each other's dual.

A dual takes the same routes backward.  Data that was copied to many is then added up from many, and data that was
distributed is collected, so the backward pass of a collective is its dual.
"""

from itertools import chain

from collectives.algorithms.schedule import Holdings, Schedule, chunk_name
from collectives.draw.canvas import FAINT, INK, REDUCED, SOFT, WIDTH, Area, Canvas, Picture, colour, heading, text_width
from collectives.draw.cells import Tray
from collectives.draw.grid import HeldChunk, Places, draw_chunks
from collectives.draw.labels import RankLabels
from collectives.format import align
from collectives.frontend import Shown
from collectives.log.collectives import COLLECTIVES

# Duals side by side, each pair once; below them the collectives that are their own dual.
PAIRS = [(op, row.dual) for k, (op, row) in enumerate(COLLECTIVES.items()) if row.dual in list(COLLECTIVES)[k + 1 :]]
OWN_DUAL = sorted((op for op, row in COLLECTIVES.items() if row.dual == op), key=lambda op: COLLECTIVES[op].reduces)
PANEL, ROW = 372, 150  # pixels: width of a panel, height of a row
CELL_HIGH, LINE = 17, 21  # pixels: of a cell, from one rank to the next


def family(world_size: int = 4) -> Shown:
    """The map of all collectives: pairs of duals side by side, and all_reduce as the two that it is made of.

    world_size: 2 to 6.  Raises ValueError for others: there is no room.
    """
    if world_size not in range(2, 7):
        raise ValueError(f"the map is for 2 to 6 ranks, not {world_size}")
    page = Canvas()
    y = heading(page, "The family of the collectives", "what every rank holds before and after; ★ is the root") + 6
    row = ROW - (4 - world_size) * LINE
    page.narrow = [[Area(0, 0, page.width, y - 6)]]
    for left, right in PAIRS:
        _panel(page, left, 0, y, world_size)
        _panel(page, right, WIDTH - PANEL, y, world_size)
        _link(page, y + row / 2 - 8, "duals: arrows", "reversed")
        y += row
    for x, op in zip((0, WIDTH - PANEL), OWN_DUAL):
        _panel(page, op, x, y, world_size)
    _link(page, y + row / 2 - 8, "each its", "own dual", arrow=False)
    y += row
    _equation(page, y, world_size)
    y += row
    _barrier(page, y, world_size)
    page.narrow += [[Area(0, at - 6, WIDTH, row)] for at in (y - row, y)]
    page.reach(WIDTH - 1, 0)
    rows = [("collective", "leaves", "dual (its backward pass)")]
    for op in dict.fromkeys([*chain(*PAIRS), *OWN_DUAL, *COLLECTIVES]):
        rows.append((op, COLLECTIVES[op].says, COLLECTIVES[op].dual or "-"))
    words = align(rows, gap=" ", least=(16, 38)) + "\nall_reduce = reduce_scatter, then all_gather"
    return Shown(Picture([page], words, f"Picture: the family of the collectives on {world_size} ranks"), words)


def _link(page: Canvas, y: float, *words: str, arrow: bool = True) -> None:
    """Write and draw the relation between two panels side by side."""
    middle = WIDTH / 2
    for k, line in enumerate(words):
        page.text(middle, y + 15 * k - 22, line, 11.5, SOFT)
    for reach in (40, -40) if arrow else ():
        page.arrow((middle, y + 16), (middle + reach, y + 16), INK, 1.6)


def _holds(op: str, n: int) -> tuple[Holdings, Holdings]:
    """The ranks' chunks before and after."""
    if COLLECTIVES[op].personal:  # a rank's row shows the chunks it has, in the order of their ranks
        row = [{c: 1 << r for c in range(n)} for r in range(n)]
        return row, [{c: 1 << c for c in range(n)} for _ in range(n)]
    schedule = Schedule(op, n, [], n)
    return schedule.initial(), schedule.promised()


def _panel(page: Canvas, op: str, x: float, y: float, n: int) -> None:
    page.narrow.append([Area(x, y - 6, PANEL, 40 + n * LINE)])
    _title(page, op, x, y)
    before, after = _holds(op, n)
    wide, left, middle = (PANEL - 62 - 60) / 2, x + 62, y + 34 + n * LINE / 2
    _grid(page, op, before, left, y + 34, wide, 0 if COLLECTIVES[op].root else None, labels=True)
    page.arrow((left + wide + 14, middle), (left + wide + 46, middle), INK, 2)
    _grid(page, op, after, left + wide + 60, y + 34, wide, after=True)


def _title(page: Canvas, op: str, x: float, y: float) -> None:
    page.text(x, y + 6, op, 14, align="left", bold=True, mono=True)
    page.text(x + text_width(op, 14, bold=True, mono=True) + 12, y + 7, COLLECTIVES[op].says, 11.5, SOFT, align="left")


def _grid(page, op, held: Holdings, x, y, wide, root=None, labels=False, after=False) -> None:
    n = len(held)
    at, names = Places(x, y, wide / n - 2, CELL_HIGH, wide / n, LINE), RankLabels(range(n), 11, [root])
    for rank in range(n):
        Tray(3, 2, 3).draw(page, x, at.y(rank), at.width(n), CELL_HIGH)
        if labels:
            names.draw(page, x - 9, at.middle(rank), rank)
    whole = Schedule("broadcast", n, [], n)
    # After an all_to_all column c is from rank c, and each of its chunks was the rank's own in that row.
    turned = after and COLLECTIVES[op].personal
    cells = [
        HeldChunk(rank, c, chunk_name(whole, rank if turned else c), parts)
        for rank, chunks in enumerate(held)
        for c, parts in chunks.items()
        if parts
    ]
    draw_chunks(page, at, cells, n)


def _equation(page: Canvas, y: float, n: int) -> None:
    _title(page, "all_reduce", 0, y)
    shown = text_width("all_reduce", 14, bold=True, mono=True) + text_width(COLLECTIVES["all_reduce"].says, 11.5) + 24
    page.text(shown, y + 7, "= reduce_scatter, then all_gather", 12.5, align="left", bold=True)
    wide, middle, x = (WIDTH - 62 - 2 * 118) / 3, y + 38 + n * LINE / 2, 62.0
    stages = (*_holds("reduce_scatter", n), _holds("all_reduce", n)[1])
    for op, held in zip(("", "reduce_scatter", "all_gather"), stages):
        if op:
            page.text(x + 59, middle - 14, op, 11, mono=True)
            page.arrow((x + 14, middle), (x + 102, middle), INK, 2)
            x += 118
        _grid(page, "all_reduce", held, x, y + 38, wide, labels=not op)
        x += wide


def _barrier(page: Canvas, y: float, n: int) -> None:
    _title(page, "barrier", 0, y)
    bar, x0, x1 = 330.0, 62.0, 430.0
    labels = RankLabels(range(n), 11)
    for rank in range(n):
        at = y + 40 + rank * LINE
        arrives = x0 + (bar - 40 - x0) * ((rank * 2) % n + 1.0 + (rank * 2 >= n)) / (n + 1)
        labels.draw(page, x0 - 9, at, rank)
        page.line([(x0, at), (arrives, at)], colour(rank), 6, butt=True)
        page.line([(arrives, at), (bar, at)], FAINT, 1.5, dashed=True)
        page.line([(bar + 4, at), (x1, at)], colour(rank), 6, butt=True)
    page.box(bar - 4, y + 28, 8, (n - 1) * LINE + 24, REDUCED, radius=4)
    page.text(x1 + 24, y + 40 + (n - 1) * LINE / 2, "moves no data: dashed lines wait", 11.5, SOFT, align="left")
