"""Scores submissions one after the other, as a process of its own:   python -m helpers.grade.worker sandbox|open

Each line of standard input is a job, {"path": ..., "seed": ..., "pictures": ...}; each is
answered by one line, the submission's record. It ends with its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from . import submission
from .sandbox import Sandbox
from .score import score
from .submission import Unusable


class Rooms:
    """The sandbox to run in: one after the other, as long as each lasts."""

    def __init__(self, walls: bool) -> None:
        self._walls, self._room = walls, Sandbox(walls)

    def __call__(self) -> Sandbox:
        if not self._room.alive:
            self._room = Sandbox(self._walls)
        return self._room


def main(kind: str) -> None:
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides when to stop
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    rooms = Rooms(walls=kind == "sandbox")
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(_record(Path(job["path"]), job["seed"], job["pictures"], rooms)), file=answers, flush=True)


def _record(path: Path, seed: str, pictures: bool, rooms: Rooms) -> dict[str, Any]:
    try:
        submitted = submission.read(path)
    except Unusable as problem:
        return {"exercise": "", "points": 0, "of": 0, "checks": [], "pictures": {}, "problem": str(problem)}
    return {"exercise": submitted.exercise, "problem": "", **score(submitted, rooms, seed, pictures)}


def _end_with_parent() -> None:
    """Also when the grader is killed, which leaves it no time to end anybody."""
    parent = os.getppid()
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
