"""One chunk's journey: a row a rank, a column a moment, each cell what the rank holds of the chunk.

All other chunks make the same journey on other ranks: small pictures of them stand beside.
"""

from ..draw.canvas import REDUCED, SOFT, WIDTH, Canvas, colour, heading
from ..draw.grid import HeldChunk, Places, draw_chunks
from ..draw.labels import RankLabels
from ..format import aligned
from .model import Holdings, Schedule, chunk_name, title

SMALL = 6  # other chunks that are shown beside


def journey(s: Schedule, states: list[Holdings], chunk: int = 0) -> tuple[list[Canvas], str]:
    """The sheets, and the same in words."""
    n, name = s.world_size, chunk_name(s, chunk)
    top = Canvas()
    words = f"chunk {name}: a stripe for each rank in it, dark when it is complete"
    y = heading(top, title(s).partition(", ")[0], words) + 18
    labels = RankLabels(range(n), 12)
    left = labels.width + 12
    others = [c for c in range(s.chunks) if c != chunk][:SMALL]
    room = WIDTH - left - (150 if others else 0)
    wide, high = min(62.0, max(24.0, room / len(states) - 6)), 26 if n <= 8 else 18
    at = Places(left, y, wide, high, wide + 6, high + 6)
    for k in range(len(states)):
        top.text(at.x(k) + wide / 2, y - 12, "start" if not k else f"{k}", 11, SOFT)
    for rank in range(n):
        labels.draw(top, left - 8, at.middle(rank), rank)
    cells = [HeldChunk(rank, k, name, held[rank].get(chunk, 0)) for k, held in enumerate(states) for rank in range(n)]
    draw_chunks(top, at, cells, n, owner=n <= 8)
    for k, step in enumerate(s.steps[: len(states) - 1]):
        for m in step:
            if chunk in m.chunks:
                x = at.x(k + 1) - 6
                down = 1 if m.target > m.source else -1
                ys = at.middle(m.source), at.middle(m.target) - down * (high / 2 - 2)
                top.line([(x - 5, ys[0]), (x + 3, ys[0])], SOFT, 1.6)
                top.arrow((x + 3, ys[0]), (x + 3, ys[1] + down * (high / 2 - 2)), SOFT, 1.6, head=6)
    step_high = (n * (high + 6) - 6) / max(1, (len(others) + 1) // 2) - 10
    cell = max(2.0, min(60 / len(states), (step_high - 12) / n))
    for i, c in enumerate(others):
        x, head = at.x(len(states)) + 24 + (i % 2) * 72, y + (i // 2) * (step_high + 10)
        top.text(x, head - 2, f"chunk {chunk_name(s, c)}", 10, SOFT, align="left")
        for k, held in enumerate(states):
            for rank in range(n):
                parts = held[rank].get(c, 0)
                single = colour(parts.bit_length() - 1) if parts.bit_count() == 1 else "#d5dade"
                fill = REDUCED if parts.bit_count() == n > 1 else single if parts else None
                if fill:
                    top.box(x + k * cell, head + 8 + rank * cell, cell - 0.6, cell - 0.6, fill, radius=0)
    told = ((f"rank {rank}", *_said(s, states, chunk, rank)) for rank in range(n))
    return [top], aligned(told, least=(6, *[5] * len(states)))


def _said(s: Schedule, states: list[Holdings], chunk: int, rank: int) -> list[str]:
    """['a 1/4', 'a 2/4', 'Σa']: what the rank holds of the chunk at each moment."""
    name, n = chunk_name(s, chunk), s.world_size
    counts = [held[rank].get(chunk, 0).bit_count() for held in states]
    return ["-" if not c else f"Σ{name}" if c == n > 1 else f"{name} {c}/{n}" for c in counts]
