"""Worker processes (worker.py), as many as the machine lets start, and the work handed to them.

A thread waits for each busy worker. One that ends over an item is replaced, and the item tried again. One that does not
even come up proves nothing about its item: the others continue without it, and the last one is retried when it has the
machine to itself. Idle workers stay up.
"""

import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    settings: dict[str, Any]  # seed, pictures and minutes, as score.score takes them


class _Worker:
    """A worker process. Raises OSError if the machine has no room for it."""

    def __init__(self, kind: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "grader.worker", *kind],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def answer(self, question: str, seconds: float) -> str:
        """The line that it answers; "" once it has ended, as one does that takes longer than these seconds."""
        limit = threading.Timer(seconds, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            return line if line.endswith("\n") else ""
        except OSError:  # it has ended
            return ""
        finally:
            limit.cancel()

    def end(self, seconds: float = 0.0) -> int:
        """End the process, and with it its sandbox, unless it ends by itself in these seconds; return the exit status."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._process.kill()
        with suppress(OSError), self._process:  # which closes its pipes, with what it has not read
            pass
        return self._process.returncode


class WorkerPool:
    """Worker processes of this machine, to be closed.  most: at a time; None: one per core.  private: as for walls.bwrap."""

    def __init__(self, most: int | None, walls: bool, private: Iterable[Path] = ()) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most, self._kind = cores if most is None else max(1, most), ["sandbox" if walls else "open"]
        self._kind += map(str, private)
        self._threads = ThreadPoolExecutor(self._most)
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._closed = False

    def scored(self, items: Iterator[WorkItem]) -> Iterator[tuple[WorkItem, Grading | None]]:
        """Each item with its grading as it is done; with None where a worker ended over it TRIES times.

        items: taken one at a time, each when a worker is free for it.  Raises NoWorker.
        """
        again, failures = deque[WorkItem](), 0  # of workers that did not come up while there was no other
        busy: dict[Future[Grading | None], WorkItem] = {}
        while True:
            while len(busy) < self._most and (item := again.popleft() if again else next(items, None)):
                busy[self._threads.submit(self._score, item)] = item
            if not busy:
                return
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                item = busy.pop(future)
                try:
                    grading = future.result()
                except NoWorker:
                    again.append(item)
                    self._most = max(1, len(self._workers))
                    failures = 0 if self._workers else failures + 1
                    if failures == TRIES:
                        raise
                else:
                    failures = 0
                    yield item, grading

    def _score(self, item: WorkItem) -> Grading | None:
        """The grading of an item, by an idle worker or a new one; None if each ends over it. Raises NoWorker."""
        question = {"file": item.file, "content": b64encode(item.content).decode(), "settings": item.settings}
        for _ in range(TRIES):
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = self._started()
            if line := worker.answer(json.dumps(question) + "\n", JOB_SECONDS + 60 * item.settings["minutes"]):
                self._idle.append(worker)
                return Grading.from_data(json.loads(line))
            self._end(worker)

    def _started(self) -> _Worker:
        began = time.monotonic()
        try:
            worker = _Worker(self._kind)
        except OSError as error:
            raise NoWorker(f"A worker process cannot be started: {error}.") from None
        self._workers.add(worker)
        if self._closed or worker.answer("", START_SECONDS) != "up\n":
            how = f"it ended with exit status {self._end(worker)} after {time.monotonic() - began:.0f} s, see above"
            raise NoWorker(f"A worker process cannot be started: {how}.")
        return worker

    def _end(self, worker: _Worker) -> int:
        self._workers.discard(worker)
        return worker.end(0.0 if self._closed else EXIT_SECONDS)

    def close(self) -> None:
        self._closed = True
        for worker in list(self._workers):
            self._end(worker)
        self._threads.shutdown()
