"""Makes the README's pictures from real runs:   python -m helpers.tools.readme"""

from __future__ import annotations

import io

import torch
import torch.distributed as dist
from PIL import Image

from ..course import NOTEBOOKS
from ..launch.run import run
from ..results.errors import Stuck
from ..schedule import ring_all_reduce

FRAME_MILLISECONDS = 1000


def log_loss():
    loss = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print("loss", loss.item() / 4)


def deadlock() -> bytes:
    """The PNG of who waits for whom."""
    try:
        run(log_loss, world_size=4)
    except Stuck as stuck:
        return stuck.draw().png()
    raise AssertionError("rank 0 waited for nobody")


def moving_ring() -> bytes:
    """The GIF of a ring's steps, played without end."""
    ring, film = ring_all_reduce(4), io.BytesIO()
    drawn = [Image.open(io.BytesIO(ring.draw(k + 1).png())).convert("RGB") for k in range(len(ring.steps) + 1)]
    frames = [Image.new("RGB", drawn[0].size, "white") for _ in drawn]
    for frame, picture in zip(frames, drawn):
        frame.paste(picture)
    frames[0].save(
        film, "gif", save_all=True, append_images=frames[1:], duration=FRAME_MILLISECONDS, loop=0, optimize=True
    )
    return film.getvalue()


if __name__ == "__main__":
    for name, image in (("deadlock.png", deadlock()), ("ring.gif", moving_ring())):
        (NOTEBOOKS / "images" / name).write_bytes(image)
