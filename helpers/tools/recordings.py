"""Records what the website plays besides its chapters, on real ranks:   python -m helpers.tools.recordings

Written to helpers/views/web/recorded.json, since a website is built where there is no torch.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist

from .. import predict, step
from ..schedule import recorded as recorded_schedule
from ..schedule import ring_all_reduce
from ..views.costs import costs
from ..views.explore.recording import recorded as recorded_explore
from ..views.web import RECORDED


def ring() -> dict:
    """A ring of send and recv as four ranks ran it, read off their messages; it plays as soon as it is seen."""
    program = ring_all_reduce(4).program()

    def ring(x):
        return program(x)

    return step(recorded_schedule(ring, "all_reduce")).recording() | {"plays": True}


def question() -> dict:
    """The first prediction of a visitor."""

    def everybody_calls():
        x = torch.tensor([10.0 * dist.get_rank() + 1])
        dist.all_reduce(x)

    return _asked(predict(everybody_calls, world_size=4))


def deadlock() -> dict:
    """A program that hangs, and what the course says about it."""

    def everybody_receives_first():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        x = torch.ones(4)
        dist.recv(x, (rank - 1) % world_size)
        dist.send(x, (rank + 1) % world_size)

    return _asked(predict(everybody_receives_first, ask="verdict", world_size=4))


def _asked(prediction) -> dict:
    prediction.unattended()
    return prediction.recording()


def recordings() -> dict:
    explored = recorded_explore(dict(op="all_reduce", world_size=4, root=0, reduce_op="SUM", dtype="float32", size=3))
    return {
        "ring": ring(),
        "question": question(),
        "deadlock": deadlock(),
        "costs": costs().recording(),
        "explore": explored,
    }


def main() -> None:
    Path(RECORDED).write_text(
        json.dumps(recordings(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
