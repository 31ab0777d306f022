"""Values and chunks in flight, on the arrows of their messages."""

from typing import NamedTuple, Sequence

import torch

from ..format import number
from ..log.event import Summary, Value
from .canvas import Canvas, text_width
from .grid import draw_chunk


class ChunkParts(NamedTuple):
    """The ranks whose parts a chunk in flight contains."""

    bits: int
    ranks: int  # of which a sum is made


class Chips:
    """Values in flight, on top of their messages' arrows, without overlaps."""

    def __init__(self, high: float, size: float, edge: float = 1.0) -> None:
        self.high, self.size, self.edge = high, size, edge  # pixels
        self._apart = high - 1 if high > 14 else high  # the least between the middles of two, one above the other
        self._placed: list[tuple[float, float, float, str | ChunkParts, str]] = []  # x, y, width, fill, words

    def put(self, x: float, y: float, wide: float, fill: str | ChunkParts, words: str) -> None:
        """fill: a color, or the chunk."""
        self._placed.append((x, y, wide, fill, words))

    def put_along(self, start, end, lanes: int, parts: Sequence[float], wide: float, fill, words: str) -> None:
        """Put one at the first free place along an arrow that crosses `lanes` lanes, preferably between two lanes."""
        places = [(k + part) / lanes for part in parts for k in range(lanes)] + [t / 20 for t in range(3, 18)]
        spots = [point_along(start, end, t) for t in places]
        x, y = next((spot for spot in spots if self._free(*spot, wide)), None) or max(spots, key=self._room_at)
        self.put(x, y, wide, fill, words)

    def _room_at(self, spot: tuple[float, float]) -> float:
        return min(abs(spot[0] - x) + 2 * abs(spot[1] - y) for x, y, *_ in self._placed)

    def _free(self, x: float, y: float, wide: float) -> bool:
        return all(abs(x - cx) >= (wide + cw) / 2 or abs(y - cy) >= self._apart for cx, cy, cw, *_ in self._placed)

    def draw(self, sketch: Canvas) -> None:
        for x, y, wide, fill, words in self._placed:
            left, top = x - wide / 2, y - self.high / 2
            if isinstance(fill, ChunkParts):
                sketch.box(left - 1, top - 1, wide + 2, self.high + 2, "#ffffff")
                draw_chunk(sketch, left, top, wide, self.high, words, *fill, owner=False)
            else:
                sketch.boxed(left, top, wide, self.high, words, self.size, fill, "#ffffff", lw=self.edge, radius=4)


def point_along(start, end, t: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * t, start[1] + (end[1] - start[1]) * t


def chip(value: Value, room: float) -> str:
    """A message's value in the few characters that there is room for (in pixels); '' for no value."""
    cut = isinstance(value, Summary)
    if not cut and not isinstance(value, torch.Tensor):
        return ""
    words = list(map(number, [*value.head[:1], *value.tail[-1:]] if cut else value.flatten().tolist()))
    if not words:
        return "…" if cut else ""
    ends = f"{words[0]} … {words[-1]}" if len(words) > 1 else f"{words[0][:3]}…"
    choices = [" ".join(words)] * (len(words) <= 4 and not cut) + [ends, f"{words[0]} …", "…"]
    return next((choice for choice in choices if text_width(choice, 11.5) + 10 <= room), "…")
