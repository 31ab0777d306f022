"""Worker processes (worker.py), as many as the machine lets start, and the work handed to them.

One thread serves them all: it waits for output from any, or for one that takes too long. A worker that ends over an
item is replaced, and the item tried again. One that does not even come up proves nothing about its item: the others
continue without it, and the last one is retried when it has the machine to itself. Idle workers stay up.
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Iterable, Iterator

from helpers.course import ROOT

from .gradebook import Grading

TRIES = 2  # for an item over which a worker ends, and for the last worker to come up
EXIT_SECONDS = 1.0  # between a process's last word and its exit status
START_SECONDS = 300.0  # for a worker to come up, on a busy machine
JOB_SECONDS = 600.0  # beyond a submission's minutes, to judge and to draw


class NoWorker(Exception):
    """Not one worker can be started. The message has the reason."""


@dataclass
class WorkItem:
    """One submission to be scored."""

    number: int  # by which its owner knows it
    file: str  # its name, for messages
    content: bytes
    seed: str
    pictures: bool
    minutes: float  # that it may take
    tries: int = 0  # over which a worker ended

    def message(self) -> bytes:
        head = {"file": self.file, "seed": self.seed, "pictures": self.pictures, "minutes": self.minutes}
        head["bytes"] = len(self.content)
        return json.dumps(head).encode() + b"\n" + self.content


class _Worker:
    """A worker process, its item, and the data in flight between it and the grader."""

    def __init__(self, item: WorkItem, kind: list[str]) -> None:
        self.item: WorkItem | None = item  # None: it waits for one
        self.up = False
        self._said, self._unsent, self._ended = bytearray(), b"", False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.worker", *kind],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        self.input, self.output = self._process.stdin, self._process.stdout
        os.set_blocking(self.input.fileno(), False)  # one that has stopped reading must not stop the others
        self.deadline = time.monotonic() + START_SECONDS

    def give(self, item: WorkItem) -> None:
        self.item, self._unsent, self.deadline = (
            item,
            item.message(),
            time.monotonic() + JOB_SECONDS + 60 * item.minutes,
        )

    def send(self) -> bool:
        """Write as much as the pipe has room for; return whether all of the item is sent."""
        try:
            self._unsent = self._unsent[self.input.write(self._unsent) or 0 :]
        except OSError:  # it has ended, as its output will show
            self._unsent = b""
        return not self._unsent

    def read(self) -> str | None:
        """The worker's next line; None while only a part of it has come, "" once the process has ended."""
        data = self.output.read(1 << 16)
        if not data:
            self._ended = True
            return ""
        self._said += data
        if not data.endswith(b"\n"):
            return None
        line, self._said = self._said.decode(), bytearray()
        return line

    def end(self) -> int:
        """End the process, and with it its sandbox; return the exit status."""
        with self._process as process:
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS if self._ended else 0)
            process.kill()
        return process.returncode


class WorkerPool:
    """Worker processes of this machine, to be closed.  most: at a time.  private: as for walls.around."""

    def __init__(self, most: int, walls: bool, private: Iterable[Path] = ()) -> None:
        self._most, self._kind = most, ["sandbox" if walls else "open", *map(str, private)]
        self._items: Iterator[WorkItem] = iter(())
        self._again = deque[WorkItem]()
        self._workers: list[_Worker] = []
        self._failed = 0  # workers that did not come up, one after the other, while there was no other
        self._select = selectors.DefaultSelector()

    def scored(self, items: Iterator[WorkItem]) -> Iterator[tuple[WorkItem, Grading | None]]:
        """Each item with its grading as it is done; with None where a worker ended over it TRIES times.

        items: taken one at a time, each when a worker is free for it.  Raises NoWorker.
        """
        self._items = items
        while True:
            for worker in [worker for worker in self._workers if not worker.item]:
                if item := self._next():
                    self._give(worker, item)
            while len(self._workers) < self._most and (item := self._next()):
                self._start(item)
            if not any(worker.item for worker in self._workers):
                return
            for worker, line in self._heard():
                item = worker.item
                if line == "up\n":
                    worker.up, self._failed = True, 0
                    self._give(worker, item)
                elif line and item:
                    worker.item, worker.deadline = None, inf
                    if another := self._next():
                        self._give(worker, another)
                    yield item, Grading.from_data(json.loads(line))
                else:
                    status = self._end(worker)
                    if not item:
                        continue
                    if not worker.up:
                        late = f"it was not up after {START_SECONDS:g} s"
                        self._not_up(item, late if line is None else f"it ended with exit status {status}, see above")
                        continue
                    item.tries += 1
                    if item.tries < TRIES:
                        self._again.append(item)
                    else:
                        yield item, None

    def _next(self) -> WorkItem | None:
        return self._again.popleft() if self._again else next(self._items, None)

    def _start(self, item: WorkItem) -> None:
        try:
            worker = _Worker(item, self._kind)
        except OSError as error:
            self._not_up(item, str(error))
            return
        self._workers.append(worker)
        self._select.register(worker.output, selectors.EVENT_READ, worker)

    def _not_up(self, item: WorkItem, why: str) -> None:
        self._again.append(item)
        self._most = max(1, len(self._workers))
        if not self._workers:
            self._failed += 1
            if self._failed == TRIES:
                raise NoWorker(f"A worker process cannot be started: {why}.")

    def _give(self, worker: _Worker, item: WorkItem) -> None:
        worker.give(item)
        self._select.register(worker.input, selectors.EVENT_WRITE, worker)

    def _heard(self) -> Iterator[tuple[_Worker, str | None]]:
        """Wait, and yield workers with their line; with "" for one that has ended, None for one past its deadline."""
        left = min(worker.deadline for worker in self._workers) - time.monotonic()
        for key, _ in self._select.select(None if left == inf else max(0.0, left)):
            worker = key.data
            if worker not in self._workers:
                continue  # ended since, over another of these events
            if key.fileobj is worker.input:
                if worker.send():
                    self._select.unregister(worker.input)
            elif (line := worker.read()) is not None:
                yield worker, line
        for worker in [worker for worker in self._workers if worker.deadline < time.monotonic()]:
            yield worker, None

    def _end(self, worker: _Worker) -> int:
        self._workers.remove(worker)
        for file in (worker.input, worker.output):
            with suppress(KeyError):
                self._select.unregister(file)
        return worker.end()

    def close(self) -> None:
        for worker in list(self._workers):
            self._end(worker)
        self._select.close()
