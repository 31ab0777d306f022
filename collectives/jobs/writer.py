"""Writes the record of a job: a folder, line by line while the job runs.

    about.json      {"format": 1, "script", "arguments", "world_size", "collector" (process), "began" (Unix time), ...}
    ranks.jsonl     [rank, host, process] of each rank, when it came
    00000.jsonl     the first lines (see lines.py); a file that is full is followed by the next
    00007.jsonl ... the last lines: of those between, the first file and the last two remain
    verdict.txt     what was printed about it

The first line of a file of lines says what came before it: {"before": {"made", "totals", "calls"}}.
A job that is killed leaves all but its last tenths of a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ..rank import protocol
from .totals import Account

FORMAT = 1


class Writer:
    """Writes a record. last: calls of each rank that it keeps, at least; its files hold half as many each."""

    def __init__(self, folder: str | Path, world_size: int, script: list[str], last: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"format": FORMAT, "script": script[0], "arguments": script[1:], "world_size": world_size}
        about |= {
            "collector": os.getpid(),
            "began": time.time(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        }
        (self.folder / "about.json").write_text(json.dumps(about, indent=1))
        self._most = last * world_size  # lines of a file
        self._account = Account(world_size)
        self._number, self._lines = 0, 0
        self._file = self._next()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def _next(self):
        path = self.folder / f"{self._number:05}.jsonl"
        file, self._lines = open(path, "wb"), 0
        file.write(json.dumps({"before": self._account.so_far()}).encode() + b"\n")
        return file

    def arrived(self, rank: int, host: str, pid: int) -> None:
        with open(self.folder / "ranks.jsonl", "a") as file:
            file.write(json.dumps([rank, host, pid]) + "\n")

    def add(self, rank: int, line: bytes, messages: list[protocol.Message]) -> None:
        """Write a line, whose messages are these."""
        if self._lines >= self._most and type(messages[0]) is protocol.Called:
            self._file.close()
            if self._number >= 2:  # the first file and the last two are kept
                (self.folder / f"{self._number - 1:05}.jsonl").unlink()
            self._number += 1
            self._file = self._next()
        self._file.write(line + b"\n")
        self._lines += 1
        for message in messages:
            self._account.add(rank, message)

    def flush(self) -> None:
        self._file.flush()

    def verdict(self, text: str) -> None:
        self.flush()
        with open(self.folder / "verdict.txt", "a") as file:
            file.write(text + "\n")

    def summary(self, seconds: float) -> str:
        self.flush()
        folder = os.path.relpath(self.folder)
        return (
            f'{sum(self._account.calls):,} calls in {seconds:.1f} s; in a notebook, collectives.jobs.load("{folder}")'
        )
