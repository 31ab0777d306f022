"""One chunk's journey: a row per rank, a column per moment, each cell the rank's part of the chunk.

All other chunks make the same journey on other ranks: small pictures of them are next to it.
"""

from ..draw.canvas import SOFT, WIDTH, Canvas, heading
from ..draw.grid import HeldChunk, Places, draw_chunks
from ..draw.labels import RankLabels
from ..format import align
from .chunk_grid import parts_tint
from .schedule import Holdings, Schedule, chunk_name, title

SMALL = 6  # other chunks that are shown next to it


def journey(s: Schedule, states: list[Holdings]) -> tuple[list[Canvas], str]:
    """The sheet of the first chunk, and the same in words."""
    n, name = s.world_size, chunk_name(s, 0)
    moments = [[held[rank].get(0, 0) for rank in range(n)] for held in states]
    top = Canvas()
    words = f"chunk {name}: a stripe for each rank in it, dark when it is complete"
    y = heading(top, title(s).partition(", ")[0], words) + 18
    labels = RankLabels(range(n), 12)
    left = labels.width + 12
    others = range(1, s.chunks)[:SMALL]
    room = WIDTH - left - (150 if others else 0)
    wide, high = min(62.0, max(24.0, room / len(states) - 6)), 26 if n <= 8 else 18
    at = Places(left, y, wide, high, wide + 6, high + 6)
    for k in range(len(states)):
        top.text(at.x(k) + wide / 2, y - 12, "start" if not k else f"{k}", 11, SOFT)
    for rank in range(n):
        labels.draw(top, left - 8, at.middle(rank), rank)
    cells = [HeldChunk(rank, k, name, parts) for k, moment in enumerate(moments) for rank, parts in enumerate(moment)]
    draw_chunks(top, at, cells, n, owner=n <= 8)
    for k, step in enumerate(s.steps[: len(states) - 1]):
        for m in step:
            if 0 in m.chunks:
                x, start = at.x(k + 1) - 6, at.middle(m.source)
                top.line([(x - 5, start), (x + 3, start)], SOFT, 1.6)
                top.arrow((x + 3, start), (x + 3, at.middle(m.target)), SOFT, 1.6, head=6)
    step_high = (n * (high + 6) - 6) / max(1, (len(others) + 1) // 2) - 10
    cell = max(2.0, min(60 / len(states), (step_high - 12) / n))
    for i, c in enumerate(others):
        x, head = at.x(len(states)) + 24 + (i % 2) * 72, y + (i // 2) * (step_high + 10)
        top.text(x, head - 2, f"chunk {chunk_name(s, c)}", 10, SOFT, align="left")
        for k, held in enumerate(states):
            for rank in range(n):
                if parts := held[rank].get(c, 0):
                    fill = parts_tint(parts, n, "#d5dade")
                    top.box(x + k * cell, head + 8 + rank * cell, cell - 0.6, cell - 0.6, fill, radius=0)

    def said(count: int) -> str:
        """'a 2/4', 'Σa': a sum of `count` ranks' parts."""
        return "-" if not count else f"Σ{name}" if count == n > 1 else f"{name} {count}/{n}"

    told = [(f"rank {rank}", *(said(parts.bit_count()) for parts in row)) for rank, row in enumerate(zip(*moments))]
    return [top], align(told, least=(6, *[5] * len(states)))
