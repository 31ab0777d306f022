"""`causal_work()`: which rank computes which part of a causal attention, hop by hop of a ring.

from collectives.train import causal_work
causal_work({"in a row": [[0, 1], [2, 3]], "striped": [[0, 2], [1, 3]]})    # per rank, its positions
"""

from collections import defaultdict
from itertools import chain, groupby
from typing import Iterable, Mapping, Sequence

from ..draw.canvas import SOFT, TRAY, WIDTH, Canvas, Picture, colour, heading, pale, text_width
from ..draw.labels import RankLabels
from ..format import align
from .view import View, exact

MAX_SIDE, GAP, HIGH = 264, 34, 12  # pixels: of a square, between two, of a bar
PALEST = 0.35  # of a rank's color, at the last hop


class CausalWork(View):
    """Layouts of one sequence, each as a square of queries and keys in the colors of the ranks that compute them.

    layouts: name -> per rank, its positions.  Raises ValueError unless each layout gives each position to one rank.
    """

    def __init__(self, layouts: Mapping[str, Sequence[Iterable[int]]]) -> None:
        if not layouts:
            raise ValueError('causal_work() needs a layout or more, as {"in a row": [[0, 1], [2, 3]]}')
        self.layouts = {name: [sorted(map(int, positions)) for positions in places] for name, places in layouts.items()}
        for name, places in self.layouts.items():
            every = sorted(chain(*places))
            if every != list(range(len(every))) or not every:
                raise ValueError(f"layout {name!r} must give each position, 0 to the last, to one rank")

    def pairs(self, name: str) -> list[list[int]]:
        """[rank][hop]: queries and keys that meet; at hop h, rank r has the keys of rank r - h."""
        places = self.layouts[name]
        n = len(places)
        return [[sum(k <= q for q in places[r] for k in places[(r - h) % n]) for h in range(n)] for r in range(n)]

    def __repr__(self) -> str:
        hops = max(map(len, self.layouts.values()))
        rows = [("pairs of", "rank", *(f"hop {h}" for h in range(hops)), "total")]
        for name in self.layouts:
            for rank, counts in enumerate(self.pairs(name)):
                cells = (*map(exact, counts), *[""] * (hops - len(counts)))
                rows.append(("" if rank else name, str(rank), *cells, exact(sum(counts))))
        return align(rows, right=range(1, hops + 3))

    def draw(self) -> Picture:
        sketch = Canvas()
        words = "a row is a query, a column is a key; the color is the rank with the query, paler with each hop"
        top = heading(sketch, "who computes which pairs", words)
        side = min(MAX_SIDE, (WIDTH - GAP * (len(self.layouts) - 1)) / len(self.layouts))
        work = {name: [sum(counts) for counts in self.pairs(name)] for name in self.layouts}
        most = max(map(max, work.values()))
        for k, (name, places) in enumerate(self.layouts.items()):
            left = k * (side + GAP)
            sketch.text(left, top + 8, name, 12.5, align="left")
            _square(sketch, places, left, top + 20, side)
            _bars(sketch, work[name], most, left, top + 20 + side + 14, side)
        return Picture([sketch], repr(self), f"Picture: which rank computes which pairs, {', '.join(self.layouts)}")


causal_work = CausalWork


def _square(sketch: Canvas, places: list[list[int]], left: float, top: float, side: float) -> None:
    owner = {p: rank for rank, positions in enumerate(places) for p in positions}
    n, cell = len(places), side / len(owner)
    tiles = defaultdict(list)  # by rank of the query and hop
    for q in range(len(owner)):
        for rank, run in groupby(range(q + 1), key=owner.__getitem__):
            keys = list(run)
            box = (left + keys[0] * cell, top + q * cell, len(keys) * cell, cell)
            tiles[owner[q], (owner[q] - rank) % n].append(box)
    sketch.box(left, top, side, side, TRAY, radius=0)
    for (rank, hop), boxes in tiles.items():
        sketch.tiles(boxes, pale(colour(rank), 1 - (1 - PALEST) * hop / max(1, n - 1)))


def _bars(sketch: Canvas, work: list[int], most: int, left: float, top: float, side: float) -> None:
    labels = RankLabels(range(len(work)), 10.5, tint=SOFT)
    label = labels.width + 8
    room = side - label - text_width(exact(most), 10.5) - 6
    for rank, count in enumerate(work):
        y, long = top + rank * (HIGH + 4), room * count / most
        labels.draw(sketch, left + label - 8, y + HIGH / 2, rank)
        sketch.box(left + label, y, long, HIGH, colour(rank), radius=0)
        sketch.text(left + label + long + 5, y + HIGH / 2, exact(count), 10.5, SOFT, align="left")
