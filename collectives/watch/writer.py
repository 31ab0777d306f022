"""Writes the record of a job: a folder, line by line while the job runs.

    about.json      {"format": 2, "version" (of this library), "script", "arguments", "world_size", "collector" (process),
                    "began" (Unix time of second 0), ...}
    ranks.jsonl     [rank, host, process] of each rank, when it came
    00000.jsonl     the first lines (see lines.py); a file that is full is followed by the next
    00007.jsonl ... the last lines: the first file and the last two remain
    verdict.txt     the report, as printed
    verdict.json    {"version", "kind", "ranks", "calls", "text"}: the last verdict, for a program

The first line of a file of lines sums up the earlier ones: {"before": {"made", "totals", "calls"}}; the next ones
repeat the signatures and clocks that its lines refer to.
A job that is killed leaves all but its last tenths of a second.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterable

import torch

from ..judge.verdict import Verdict
from ..log import messages
from ..version import __version__
from .pipe import say
from .totals import Account

FORMAT = 2
# A file may hold up to MOST times `last` calls of one rank: a collector that has fallen behind reads one rank's calls
# after another's, and calls that belong together should be in one file.
MAX_FACTOR = 32


def _while_it_can(method: Callable) -> Callable:
    """A method of Writer, until the disk refuses something: that is printed, and from there on it does nothing."""

    @functools.wraps(method)
    def written(self: Writer, *given: Any) -> None:
        if not self._refused:
            try:
                method(self, *given)
            except OSError as error:
                self._refused = True
                say(f"{error.strerror or error}: the record in {self.folder} ends here. Training goes on.")

    return written


class Writer:
    """Writes a record, as far as the disk takes it.

    last: calls of each rank that it keeps, at least: each file but the newest has that many, see also MOST.
    standing: returns the lines without which later ones cannot be read.
    began: second 0 of its times, by time.perf_counter().
    """

    def __init__(
        self,
        folder: str,
        world_size: int,
        script: list[str],
        last: int,
        standing: Callable[[], Iterable[bytes]],
        began: float,
    ) -> None:
        self.folder = Path(folder)
        self._last, self._standing = last, standing
        self._account = Account(world_size)
        self._number = 0  # of this file
        self._calls = [0] * world_size  # in it, by rank
        self._lacking = world_size  # ranks that it has too few calls of
        self._held: list[bytes] = []  # lines, until the next flush
        self._refused = False
        self._begin(dict(
            format=FORMAT, version=__version__, script=script[0], arguments=script[1:], world_size=world_size, collector=os.getpid(),
            began=time.time() - (time.perf_counter() - began), torch=torch.__version__, python=platform.python_version(),
        ))  # fmt: skip

    @_while_it_can
    def _begin(self, about: dict) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "about.json").write_text(json.dumps(about, indent=1))
        self._file = self._next()

    def _next(self) -> BinaryIO:
        file = open(self.folder / f"{self._number:05}.jsonl", "wb")
        self._calls, self._lacking = [0] * len(self._calls), len(self._calls)
        file.write(json.dumps({"before": self._account.so_far()}).encode() + b"\n")
        return file

    @_while_it_can
    def _append(self, name: str, text: str) -> None:
        with open(self.folder / name, "a") as file:
            file.write(text + "\n")

    @_while_it_can
    def _whole(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def arrived(self, rank: int, host: str, pid: int) -> None:
        self._append("ranks.jsonl", json.dumps([rank, host, pid]))

    @_while_it_can
    def standing(self, lines: Iterable[bytes]) -> None:
        """Write lines that later ones refer to."""
        self._held += lines

    def add(self, rank: int, line: bytes, message: messages.Message | None) -> None:
        """Write a line, with the message that it is, if it is one."""
        if type(message) is messages.Called:
            if not self._lacking or self._calls[rank] >= MAX_FACTOR * self._last:
                self._turn()
            self._calls[rank] += 1
            self._lacking -= self._calls[rank] == self._last
        if not self._refused:
            self._held.append(line)
        self._account.add(rank, message)

    @_while_it_can
    def _turn(self) -> None:
        """Begin the next file."""
        self._put()
        self._file.close()
        if self._number >= 2:  # the first file and the last two are kept
            (self.folder / f"{self._number - 1:05}.jsonl").unlink()
        self._number += 1
        self._file = self._next()
        self.standing(self._standing())

    def _put(self) -> None:
        self._file.writelines([line + b"\n" for line in self._held])
        self._held.clear()

    @_while_it_can
    def flush(self) -> None:
        self._put()
        self._file.flush()

    @_while_it_can
    def close(self) -> None:
        self._put()
        self._file.close()

    def verdict(self, text: str, verdict: Verdict | None = None) -> None:
        """Add to verdict.txt; verdict.json holds the last verdict for a program: its kind, ranks, calls and words."""
        self.flush()
        self._append("verdict.txt", text)
        if verdict:
            calls = [{"op": call.op, "index": call.events[0].index} for call in verdict.calls]
            about = {"kind": type(verdict).__name__, "ranks": verdict.ranks, "calls": calls, "text": text}
            self._whole("verdict.json", json.dumps({"version": __version__} | about))

    def summary(self, seconds: float) -> str:
        """The number of calls and the record's place, in words."""
        self.flush()
        calls, skipped = sum(self._account.calls), self._account.skipped
        lost = f" ({skipped:,} of them were lost)" if skipped else ""
        found = f'; in a notebook, collectives.jobs.load("{os.path.relpath(self.folder)}")'
        return f"{calls:,} calls{lost} in {seconds:.1f} s{'' if self._refused else found}"
