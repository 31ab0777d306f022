"""One chunk's journey: a row a rank, a column a moment, each cell what the rank holds of the chunk.

All other chunks make the same journey on other ranks: small pictures of them stand beside.
"""

from __future__ import annotations

from ..draw.canvas import REDUCED, SOFT, WIDTH, Canvas, colour, heading, text_width
from ..draw.chunks import draw_chunk
from .model import BaseSchedule, Holdings, chunk_name
from .text import title

SMALL = 6  # other chunks that are shown beside


def journey(s: BaseSchedule, states: list[Holdings], chunk: int = 0) -> tuple[list[Canvas], str]:
    """The sheets, and the same in words."""
    n, name = s.world_size, chunk_name(s, chunk)
    top = Canvas()
    words = f"chunk {name}: a stripe for each rank in it, dark when it is complete"
    y = heading(top, title(s).partition(", ")[0], words) + 18
    left = text_width(f"rank {n - 1}", 12) + 12
    others = [c for c in range(s.chunks) if c != chunk][:SMALL]
    room = WIDTH - left - (150 if others else 0)
    wide, high = min(62.0, max(24.0, room / len(states) - 6)), 26 if n <= 8 else 18
    for k, held in enumerate(states):
        x = left + k * (wide + 6)
        top.text(x + wide / 2, y - 12, "start" if not k else f"{k}", 11, SOFT)
        for rank in range(n):
            draw_chunk(top, x, y + rank * (high + 6), wide, high, name, held[rank].get(chunk, 0), n, n <= 8)
    for rank in range(n):
        top.text(left - 8, y + rank * (high + 6) + high / 2, f"rank {rank}", 12, align="right")
    for k, step in enumerate(s.steps[: len(states) - 1]):
        for m in step:
            if chunk in m.chunks:
                x = left + (k + 1) * (wide + 6) - 6
                down = 1 if m.target > m.source else -1
                ys = y + m.source * (high + 6) + high / 2, y + m.target * (high + 6) + high / 2 - down * (high / 2 - 2)
                top.line([(x - 5, ys[0]), (x + 3, ys[0])], SOFT, 1.6)
                top.arrow((x + 3, ys[0]), (x + 3, ys[1] + down * (high / 2 - 2)), SOFT, 1.6, head=6)
    step_high = (n * (high + 6) - 6) / max(1, (len(others) + 1) // 2) - 10
    cell = max(2.0, min(60 / len(states), (step_high - 12) / n))
    for i, c in enumerate(others):
        x, at = left + len(states) * (wide + 6) + 24 + (i % 2) * 72, y + (i // 2) * (step_high + 10)
        top.text(x, at - 2, f"chunk {chunk_name(s, c)}", 10, SOFT, align="left")
        for k, held in enumerate(states):
            for rank in range(n):
                parts = held[rank].get(c, 0)
                single = colour(parts.bit_length() - 1) if parts.bit_count() == 1 else "#d5dade"
                fill = REDUCED if parts.bit_count() == n > 1 else single if parts else None
                if fill:
                    top.box(x + k * cell, at + 8 + rank * cell, cell - 0.6, cell - 0.6, fill, radius=0)
    return [top], "\n".join(_said(s, states, chunk, rank) for rank in range(n))


def _said(s: BaseSchedule, states: list[Holdings], chunk: int, rank: int) -> str:
    """'rank 0   a 1/4   a 2/4   Σa'"""
    name, n = chunk_name(s, chunk), s.world_size
    counts = [held[rank].get(chunk, 0).bit_count() for held in states]
    words = ["-" if not c else f"Σ{name}" if c == n > 1 else f"{name} {c}/{n}" for c in counts]
    return f"rank {rank:<3}" + "  ".join(f"{word:<5}" for word in words).rstrip()
