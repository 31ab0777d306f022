"""Reads a finished picture back: what its cells, arrows and lanes show, from the artists of the figure alone.

Nothing here knows what a run held.  A test puts what was read beside what was captured.
All places are pixels of the picture from its top left corner.
"""

from __future__ import annotations

import functools
import re
from itertools import groupby
from typing import NamedTuple

from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from collectives.draw.canvas import FAINT, INK, REDUCED, SHARPNESS, SOFT, TRAY, Picture, Words

INCH = 100  # pixels


class Word(NamedTuple):
    x: float  # where it is anchored: its middle, or the end it is aligned with
    y: float  # the middle of a capital letter
    text: str
    size: float
    ink: str
    bold: bool


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float
    fill: str | None
    edge: str | None
    dashed: bool

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom


class Stroke(NamedTuple):
    points: list[tuple[float, float]]  # the first and the last lie on it
    tint: str
    width: float
    dashed: bool


class Arrow(NamedTuple):
    start: tuple[float, float]
    tip: tuple[float, float]
    tint: str
    dashed: bool


class Drawn(NamedTuple):
    """The shapes of a picture, each kind in the order in which it was drawn."""

    words: list[Word]
    boxes: list[Box]
    strokes: list[Stroke]  # without a head
    arrows: list[Arrow]


@functools.lru_cache(maxsize=4)  # a test asks several things of one picture
def drawn(picture: Picture) -> Drawn:
    found = Drawn([], [], [], [])
    high = picture.pixels[1]

    def place(artist, points):
        return [
            (float(x) / SHARPNESS, high - float(y) / SHARPNESS) for x, y in artist.get_transform().transform(points)
        ]

    last = None  # the stroke that a polygon drawn next is the head of
    for artist in picture.artists:  # one sheet after another, each as it was drawn
        stroke, last = last, None
        if isinstance(artist, Words):
            ((x, y),) = place(artist, [artist.position])
            size = artist.pixels
            found.words.append(Word(x, y - 0.36 * size, artist.words, size, to_hex(artist.tint), artist.bold))
            continue
        assert isinstance(artist, PathPatch), f"a picture is made of text and paths, not of {artist}"
        path = artist.get_path()
        points = place(artist, path.vertices)
        fill, edge = _tint(artist.get_facecolor()), _tint(artist.get_edgecolor())
        dashed = artist.get_linestyle() not in ("solid", "-")
        xs, ys = zip(*points)
        if path.codes[-1] != Path.CLOSEPOLY:
            last = Stroke(points, edge, round(artist.get_linewidth() * INCH / 72, 3), dashed)
            found.strokes.append(last)
        elif Path.CURVE4 in path.codes:
            found.boxes.append(Box(min(xs), min(ys), max(xs), max(ys), fill, edge, dashed))
        else:
            assert stroke is not None and stroke.tint == fill, "a head without a shaft of its colour"
            found.strokes.remove(stroke)
            found.arrows.append(Arrow(stroke.points[0], points[0], fill, stroke.dashed))
    return found


def _tint(rgba) -> str | None:
    return to_hex(rgba) if rgba[3] else None


def title(picture: Picture) -> str:
    return max(drawn(picture).words, key=lambda word: word.size).text


def ranks(shapes: Drawn) -> list[tuple[float, int, bool]]:
    """(y, rank, whether it has the star of a root) of every row."""
    labels = [word for word in shapes.words if word.text.removeprefix("★ ").startswith("rank ")]
    assert all(word.bold == word.text.startswith("★") for word in labels)
    return [(word.y, int(word.text.split()[-1]), word.bold) for word in labels]


# --- before and after ---------------------------------------------------------------------


class Cell(NamedTuple):
    side: str  # "before" or "after", as is written above it
    rank: int
    column: int  # of those that have anything in them on either side, from the left
    text: str  # rows of a matrix are separated by " / "; "∅" for a tensor without elements
    note: str  # in small letters below
    source: tuple[int, ...] | str  # the ranks whose colour it has, as beside their rows; or one of KINDS
    ink: str  # of the text; "" without
    left: float  # from the first column's edge
    width: float


KINDS = (
    ("combined", REDUCED, None, False),
    ("hollow", None, FAINT, True),
    ("unknown", "#ffffff", SOFT, False),
)  # name, fill, edge, dashed


def cells(picture: Picture) -> list[Cell]:
    """The cells of one collective, before those after, from the first rank to the last, from left to right."""
    return sorted(
        _in_columns(_in_trays(drawn(picture))), key=lambda cell: (cell.side == "after", cell.rank, cell.column)
    )


def said(picture: Picture) -> dict[int, str]:
    """What a rank's row says beside its cells: "never called", "still waiting"."""
    shapes = drawn(picture)
    inside = {word for word, _ in _written(shapes)} | {word for word in shapes.words if word.text == "∅"}
    rows = ranks(shapes)
    named = {(y, rank): y for y, rank, _ in rows}
    found = {}
    for word in shapes.words:
        for (y, rank), middle in named.items():
            beside = abs(word.y - middle) < 2 and "rank " not in word.text and word not in inside
            if beside and not any(box.fill and box.edge and box.holds(word.x, word.y) for box in shapes.boxes):
                found[rank] = word.text
    return found


def _trays(shapes: Drawn) -> list[tuple[str, int, Box]]:
    """(side, rank, tray), by the words above the trays and to their left."""
    sides = [word for word in shapes.words if word.text in ("before", "after")]
    found = []
    for box in shapes.boxes:
        if box.fill == TRAY:
            (side,) = (word.text for word in sides if box.left < word.x < box.right)
            (rank,) = (rank for y, rank, _ in ranks(shapes) if box.top < y < box.bottom)
            found.append((side, rank, box))
    return found


def _written(shapes: Drawn) -> list[tuple[Word, Box]]:
    """Words with the cell they stand in."""
    trays = [tray for *_, tray in _trays(shapes)]
    boxes = [b for b in shapes.boxes if b not in trays and any(t.holds(b.left, b.top) for t in trays)]
    return [(word, box) for box in boxes for word in shapes.words if box.holds(word.x, word.y)]


def _in_trays(shapes: Drawn) -> list[Cell]:
    """Cells whose column is not known yet."""
    made = []
    written, colours = _written(shapes), stripes(shapes)
    for side, rank, tray in _trays(shapes):
        for box in shapes.boxes:
            if box is tray or not (tray.holds(box.left, box.top) and tray.holds(box.right, box.bottom)):
                continue
            words = [word for word, inside in written if inside is box]
            full = max((word.size for word in words), default=0)
            lines: dict[float, list[Word]] = {}
            for word in sorted(words, key=lambda word: word.x):
                lines.setdefault(round(word.y, 1), []).append(word)
            rows, notes = [], []
            for y in sorted(lines):
                small = lines[y][0].size == 9.5 < full
                (notes if small else rows).append(" ".join(word.text for word in lines[y]))
            inks = {word.ink for word in words}
            assert len(inks) <= 1 or box.dashed, "a cell in two inks, and not a buffer that is full in part"
            made.append(
                Cell(
                    side, rank, -1, " / ".join(rows), " ".join(notes), _source(box, colours),
                    inks.pop() if inks else "", box.left - tray.left - 4, box.right - box.left,
                )
            )  # fmt: skip
        for word in shapes.words:
            if word.text == "∅" and tray.holds(word.x, word.y):
                made.append(Cell(side, rank, -1, "∅", "", "empty", word.ink, word.x - tray.left - 4, 0.0))
    return made


def stripes(shapes: Drawn) -> dict[int, str]:
    """rank -> the colour of the stripe beside its row, which says whose colour is which."""
    first = min(tray.left for *_, tray in _trays(shapes))
    beside = [box for box in shapes.boxes if box.right < first and box.fill]
    return {rank: box.fill for y, rank, _ in ranks(shapes) for box in beside if box.top < y < box.bottom}


def _source(box: Box, colours: dict[int, str]) -> tuple[int, ...] | str:
    owners = tuple(rank for rank, tint in colours.items() if tint == box.fill)
    if owners:
        assert box.edge is None and not box.dashed
        return owners
    (kind,) = (name for name, *looks in KINDS if looks == [box.fill, box.edge, box.dashed])
    return kind


def flow(picture: Picture) -> tuple[set[tuple[int, int]], str, set[int], set[int]]:
    """Between before and after: (from, to) of each arrow; the sign in the middle, and the ranks into and out of it.

    Every line has the colour of the rank it leaves, every arrow out of the sign that of a combined cell.
    """
    shapes = drawn(picture)
    colours, rows = stripes(shapes), ranks(shapes)

    def row(point) -> int:
        y, rank, _ = min(rows, key=lambda row: abs(row[0] - point[1]))
        return rank

    pills = [box for box in shapes.boxes if box.edge == REDUCED]
    arrows, out = set(), set()
    for arrow in shapes.arrows:
        if pills:
            assert any(abs(arrow.start[0] - pill.right) < 1 for pill in pills)
            if arrow.tint == REDUCED:
                out.add(row(arrow.tip))
        elif not arrow.dashed and arrow.tint != INK:
            assert arrow.tint == colours[row(arrow.start)]
            arrows.add((row(arrow.start), row(arrow.tip)))
    into = {row(s.points[0]) for s in shapes.strokes if pills and s.tint == colours[row(s.points[0])]}
    signs = [word.text for pill in pills for word in shapes.words if pill.holds(word.x, word.y)]
    for pill in pills:  # of reduce_scatter there is one for each rank
        came = [a for a in shapes.arrows if abs(a.start[0] - pill.right) < 1 and pill.top < a.start[1] < pill.bottom]
        assert (len(pills) == 1 or len(came) <= 1) and (pill.fill == REDUCED) == bool(came), (
            "full where something comes"
        )
    return arrows, "".join(signs), into, out


def chunks_sent(picture: Picture) -> set[tuple[int, int, int]]:
    """(from, column of the chunk, to) of each line that starts at a cell; to a sum means to the rank in its row."""
    shapes = drawn(picture)
    rows = ranks(shapes)

    def row(y: float) -> int:
        return min(rows, key=lambda row: abs(row[0] - y))[1]

    lines = [(arrow.start, arrow.tip) for arrow in shapes.arrows]
    lines += [(s.points[0], s.points[-1]) for s in shapes.strokes if s.tint in stripes(shapes).values()]
    first = min(tray.left for side, _, tray in _trays(shapes) if side == "before") + 4
    found = set()
    for start, end in lines:
        for cell in cells(picture):
            left, rank = first + cell.left, row(start[1])
            if cell.side == "before" and cell.rank == rank and left - 1 < start[0] < left + cell.width + 2:
                found.add((rank, cell.column, row(end[1])))
    return found


def _in_columns(made: list[Cell]) -> list[Cell]:
    columns: list[float] = []  # left edges
    for cell in sorted(made, key=lambda cell: (cell.width == 0, cell.left)):
        reach = max((c.left + c.width for c in made if columns and abs(c.left - columns[-1]) < 0.5), default=0)
        wide = [c for c in made if c.width and c.left <= cell.left < c.left + c.width]
        if cell.width == 0 and wide:
            continue  # an empty tensor in a column of others
        if not any(abs(left - cell.left) < 0.5 for left in columns):
            assert cell.left > reach - 0.6 or cell.width == 0, "columns overlap"
            columns.append(cell.left)
    columns.sort()

    def column(cell: Cell) -> int:
        if cell.width:
            return next(k for k, left in enumerate(columns) if abs(left - cell.left) < 0.5)
        return max(k for k, left in enumerate(columns) if left <= cell.left)

    return [cell._replace(column=column(cell)) for cell in made]


# --- messages in time ---------------------------------------------------------------------


class Message(NamedTuple):
    step: int  # from 1, as is written below it
    source: int | None  # None: an arrow that comes from no lane
    target: int
    how: str  # "arrives", "around" (out at one end of the ranks, in at the other), "lost", "expected" (never sent)
    values: list[str]  # what is written on its way
    tint: str


class Lane(NamedTuple):
    start: float  # in steps: 0 is where the first begins, 1 where it ends
    stop: float
    tint: str


class _Band(NamedTuple):
    """One row of steps, of a picture that may have several below each other."""

    lanes: dict[int, float]  # rank -> y
    steps: dict[int, float]  # number -> x of its middle
    left: float
    column: float  # width of a step
    foot: float

    def rank(self, y: float, reach: float = 4) -> int | None:
        return next((rank for rank, at in self.lanes.items() if abs(at - y) < reach), None)

    def step(self, x: float) -> int:
        return min(self.steps, key=lambda step: abs(self.steps[step] - x))


def _bands(shapes: Drawn) -> list[_Band]:
    numbers = [word for word in shapes.words if word.ink == SOFT and re.fullmatch(r"(step )?\d+", word.text)]
    names = ranks(shapes)
    found, above = [], 0.0
    for foot in sorted({round(word.y, 1) for word in numbers}):
        steps = {int(word.text.split()[-1]): word.x for word in numbers if abs(word.y - foot) < 1}
        lanes = {rank: y for y, rank, _ in names if above < y < foot}
        edges = {x for s in shapes.strokes for x, y in s.points if s.width == 1 and above < y < foot}
        found.append(_Band(lanes, steps, min(edges), (max(edges) - min(edges)) / len(steps), foot))
        above = foot
    return found


def messages(picture: Picture) -> list[Message]:
    """By step, then by the ranks they come from and go to, then as they were drawn."""
    shapes, found = drawn(picture), []
    bands = _bands(shapes)
    chips = [box for box in shapes.boxes if box.edge == "#ffffff" and box.fill]
    told = {box: [w.text for w in shapes.words if box.holds(w.x, w.y)] for box in chips}
    top = 0.0
    for band in bands:
        strokes = [s for s in shapes.strokes if top < s.points[0][1] < band.foot and s.width == 2]
        crosses = [s for s in strokes if s.tint == INK]
        outward = [s for s in strokes if s.dashed]
        for arrow in (a for a in shapes.arrows if top < a.tip[1] < band.foot):
            step = band.step((arrow.start[0] + arrow.tip[0]) / 2)
            target, source = band.rank(arrow.tip[1]), band.rank(arrow.start[1])
            ways = [(arrow.start, arrow.tip)]
            how = "arrives"
            if arrow.dashed and arrow.tint == SOFT:
                how, source = "expected", _from(band, arrow, step)
            elif arrow.dashed:
                (half,) = (s for s in outward if s.tint == arrow.tint and band.step(s.points[0][0]) == step)
                how, source = "around", band.rank(half.points[0][1])
                ways = [(half.points[0], half.points[-1]), (arrow.start, arrow.tip)]
            on_it = [b for b in chips if b.fill == arrow.tint and any(_lies_on(b, *way) for way in ways)]
            assert target is not None, "an arrow that ends on no lane"
            found.append(Message(step, source, target, how, [" ".join(told[b]) for b in on_it], arrow.tint))
        for stroke in strokes:
            if stroke in crosses or stroke.dashed:
                continue
            (x0, y0), (x1, y1) = stroke.points
            assert (
                sum(_lies_on(Box(x1 - 1, y1 - 1, x1 + 1, y1 + 1, None, None, False), *c.points) for c in crosses) == 2
            )
            assert not any(min(y0, y1) + 4 < y < max(y0, y1) for y in band.lanes.values()), "lost beyond the next lane"
            step = band.step(x0)
            end = 2 * band.steps[step] - x0  # where it would have arrived: as far from the middle as it began
            target = band.rank(y0 + (y1 - y0) * (end - x0) / (x1 - x0))
            found.append(Message(step, band.rank(y0), target, "lost", [], stroke.tint))
        top = band.foot
    return sorted(found, key=lambda m: (m.step, -1 if m.source is None else m.source, m.target))


def _from(band: _Band, arrow: Arrow, step: int) -> int | None:
    """The lane from which an arrow would have come that is drawn at its end only."""
    (x0, y0), (x1, y1) = arrow.start, arrow.tip
    begin = 2 * band.steps[step] - x1
    return band.rank(y1 + (y0 - y1) * (begin - x1) / (x0 - x1))


def _lies_on(box: Box, start, end) -> bool:
    """Whether the middle of a box is on the line."""
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    (x0, y0), (x1, y1) = start, end
    length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
    aside = abs((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)) / length
    along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length
    return aside < 1 and -1 <= along <= length + 1


def changes(picture: Picture) -> dict[int, list[str]]:
    """The colours that each rank's lane comes to have, one after another."""
    return {rank: [tint for tint, _ in groupby(lane.tint for lane in found)] for rank, found in lanes(picture).items()}


def lanes(picture: Picture) -> dict[int, list[Lane]]:
    """What each rank's lane is coloured in, from left to right; what is dashed (a rank that waits) is left out."""
    shapes = drawn(picture)
    found: dict[int, list[Lane]] = {}
    top, first = 0.0, 0
    for band in _bands(shapes):
        for stroke in shapes.strokes:
            (x0, y), (x1, _) = stroke.points[0], stroke.points[-1]
            if stroke.width == 6 and top < y < band.foot and x1 - x0 > 0.01:
                part = [round(first + (x - band.left) / band.column, 6) for x in (x0, x1)]
                found.setdefault(band.rank(y, 1), []).append(Lane(*part, stroke.tint))
        top, first = band.foot, first + len(band.steps)
    return found


# --- who waits for whom -------------------------------------------------------------------


def waits(picture: Picture) -> tuple[dict[int, tuple[str, str | None]], set[tuple[int, int]]]:
    """rank -> what it is said to do and the fill behind it; and (who waits, for whom) of each arrow."""
    shapes = drawn(picture)
    rows = ranks(shapes)
    standing = {}
    for y, rank, _ in rows:
        (box,) = (box for box in shapes.boxes if box.top < y < box.bottom)
        (word,) = (word for word in shapes.words if box.holds(word.x, word.y))
        standing[rank] = word.text, box.fill

    def row(point) -> int:
        return min(rows, key=lambda row: abs(row[0] - point[1]))[1]

    return standing, {(row(arrow.start), row(arrow.tip)) for arrow in shapes.arrows}


# --- predictions --------------------------------------------------------------------------


def asked(picture: Picture) -> dict[int, tuple[list[tuple[str, tuple[int, ...] | str]], int]]:
    """rank -> (text and source of each cell that it brings, how many cells are to be filled in)."""
    shapes = drawn(picture)
    found: dict[int, tuple[list, int]] = {rank: ([], 0) for _, rank, _ in ranks(shapes)}
    for cell in sorted(_in_trays(shapes), key=lambda cell: cell.left):
        found[cell.rank][0].append((cell.text, cell.source))
    for box in shapes.boxes:
        if (box.fill, box.edge) == ("#ffffff", SOFT):
            (word,) = (word for word in shapes.words if box.holds(word.x, word.y))
            (rank,) = (rank for y, rank, _ in ranks(shapes) if box.top < y < box.bottom)
            assert word.text == "?"
            found[rank] = found[rank][0], found[rank][1] + 1
    return found
