"""A class's submissions, scored in parallel into a report folder, which remembers each as soon as it is done.

    report/grading.json       the seed, and how it was graded
    report/graded/*.json      a record per submission, whole or not at all

A grader that was stopped or killed goes on where it was: what has a record is not graded
again, unless the submission or the course's own files have changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import re
import secrets
import stat
import subprocess
import sys
import threading
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Iterator

from ..exercise import tasks
from ..notebooks import ROOT
from ..release import SOLUTIONS
from .submission import exercises

MOST_BYTES = 10_000_000  # of a notebook
TRIES = 2  # for a submission over which a worker came to its end


class Unfit(Exception):
    """The report folder cannot be used. The message says why, and what to do."""


@dataclass(frozen=True)
class Entry:
    """One file that was handed in."""

    student: str
    file: str  # as it was found, below the folder of submissions
    path: Path

    @cached_property
    def problem(self) -> str:
        """Why it is not even read; '' if it is."""
        try:
            status = self.path.lstat()
        except OSError as error:
            return f"{self.file} cannot be read: {error.strerror}."
        if stat.S_ISLNK(status.st_mode):
            return f"{self.file} is a symbolic link, and is not followed. Hand in the notebook itself."
        if not stat.S_ISREG(status.st_mode):
            return f"{self.file} is no file."
        if status.st_size > MOST_BYTES:
            return f"{self.file} has {status.st_size / 1e6:.0f} MB; a notebook has at most {MOST_BYTES / 1e6:.0f}."
        return ""


def find(paths: list[Path]) -> list[Entry]:
    """Notebooks in files, in folders, and in folders of students; no links, nothing hidden."""
    found = []
    for path in paths:
        if path.is_dir():
            found += [_entry(path, file) for file in _below(path)]
        else:
            found.append(_entry(path.parent, path))
    return sorted(found, key=lambda entry: (entry.student, entry.file))


def _below(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not (Path(here) / name).is_symlink()
        )
        yield from (Path(here) / name for name in sorted(files) if name.endswith(".ipynb") and not name.startswith("."))


def _entry(root: Path, path: Path) -> Entry:
    """submissions/ann/06.ipynb and submissions/ann.ipynb are Ann's; a file named like an exercise is its folder's."""
    parts = path.relative_to(root).parts
    own = path.stem not in exercises()
    student = parts[0] if len(parts) > 1 else path.stem if own else root.resolve().name
    return Entry(student, str(Path(*parts)), path)


class Report:
    """A report folder; no other grader may use it until it is closed. Raises Unfit."""

    def __init__(self, folder: Path, seed: str | None, walls: bool, pictures: bool = True) -> None:
        self.folder = folder
        (folder / "graded").mkdir(parents=True, exist_ok=True)
        self._lock = open(folder / ".lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            settings = self._settings()
        except OSError:
            self.close()
            raise Unfit(f"Another grader is at work on {folder}.") from None
        if settings and seed is not None and settings["seed"] != seed:
            self.close()
            raise Unfit(
                f"{folder} holds gradings with another seed. Name another folder with --out, or leave --seed out."
            )
        self.seed: str = settings["seed"] if settings else seed if seed is not None else secrets.token_hex(16)
        self.walls, self.pictures = walls, pictures
        self.settings = {"seed": self.seed, "sandbox": walls, "pictures": pictures}
        write(folder / "grading.json", json.dumps(self.settings, indent=1) + "\n")
        self._course = _course()

    def close(self) -> None:
        self._lock.close()

    def _settings(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "grading.json").read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise Unfit(f"{self.folder / 'grading.json'} is damaged. Name another folder with --out.") from None

    def _place(self, entry: Entry) -> Path:
        """Where the record of this very file, graded this very way, lies."""
        content = b"" if entry.problem else entry.path.read_bytes()
        of = [entry.student, entry.file, entry.problem, self._course, json.dumps(self.settings), content.hex()]
        return self.folder / "graded" / f"{slug(entry.student)}-{digest(*of)}.json"

    def record(self, entry: Entry) -> dict[str, Any] | None:
        try:
            return json.loads(self._place(entry).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def remember(self, entry: Entry, record: dict[str, Any]) -> None:
        problem = record["problem"].replace(str(entry.path.absolute()), entry.file)
        record = {"student": entry.student, "file": entry.file, **record, "problem": problem}
        write(self._place(entry), json.dumps(record, indent=1, sort_keys=True) + "\n")

    def grade(self, entries: list[Entry], jobs: int, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
        """All records, in the order of entries.  progress: done, of how many, the last one's student."""
        for entry in entries:
            if entry.problem:
                self.remember(entry, unusable(entry.problem))
        left = [entry for entry in entries if self.record(entry) is None]
        done = len(entries) - len(left)
        progress(done, len(entries), "")
        with closing(_scored(left, min(jobs, len(left)), self)) as scored:
            for done, (entry, record) in enumerate(scored, done + 1):
                self.remember(entry, record)
                progress(done, len(entries), entry.student)
        return [self.record(entry) for entry in entries]


def unusable(problem: str) -> dict[str, Any]:
    return {"exercise": "", "points": 0, "of": 0, "checks": [], "pictures": {}, "problem": problem}


def _scored(entries: list[Entry], jobs: int, report: Report) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Records as they come, from so many workers."""
    left, scored = deque(entries), queue.SimpleQueue()
    workers = [_Worker(left, scored.put, report) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        for _ in entries:
            yield scored.get()
    finally:
        left.clear()
        for worker in workers:
            worker.end()


class _Worker(threading.Thread):
    """Hands one worker process a submission after the other."""

    def __init__(
        self, left: deque[Entry], done: Callable[[tuple[Entry, dict[str, Any]]], None], report: Report
    ) -> None:
        super().__init__(daemon=True)
        self._left, self._done, self._report = left, done, report
        self._process: subprocess.Popen | None = None
        self._ended = False

    def run(self) -> None:
        while not self._ended:
            try:
                entry = self._left.popleft()
            except IndexError:
                break
            lines = (self._ask(entry) for _ in range(TRIES))
            line = next(filter(None, lines), None)
            if not self._ended:
                problem = f"{entry.file} could not be graded: the grader itself failed over it, {TRIES} times."
                self._done((entry, json.loads(line) if line else unusable(problem)))
        self.end()

    def _ask(self, entry: Entry) -> str:
        """The answer; "" if the worker came to its end over it."""
        if self._ended:
            return ""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "helpers.grade.worker", "sandbox" if self._report.walls else "open"],
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        job = {"path": str(entry.path.absolute()), "seed": self._report.seed, "pictures": self._report.pictures}
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):  # it is gone, or was ended this very moment
            line = ""
        if not line.endswith("\n"):
            self._process.kill()
            self._process.wait()
            return ""
        return line

    def end(self) -> None:
        """Ends the process, and with it its sandbox."""
        self._ended = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _course() -> str:
    """Changes when the exercises do."""
    files = sorted(
        [
            *SOLUTIONS.glob("*.ipynb"),
            *Path(tasks.__file__).parent.glob("*.py"),
            *Path(tasks.__file__).parents[1].glob("*.py"),
            *(path for kind in ("schedule", "network") for path in (SOLUTIONS.parent / "helpers" / kind).glob("*.py")),
        ]
    )
    return digest(*(file.read_bytes().hex() for file in files))


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def slug(name: str) -> str:
    """A student's name as a part of a file name; different for different names."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60].strip("-")
    return plain if plain == name else f"{plain}-{digest(name)[:8]}"


def write(path: Path, content: str) -> None:
    """Whole or not at all, also if the machine stops."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "w", encoding="utf-8", errors="replace") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
