"""A class's submissions, scored in parallel into a report folder, which remembers each as soon as it is done.

    report/grading.json       the seed, and how it was graded
    report/graded/*.json      a record per submission, whole or not at all

A grader that was stopped or killed goes on where it was: what has a record is not graded
again, unless the submission, the grader, the exercises, torch or Python have changed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import sys
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator

import torch

from ..course import SOLUTIONS
from .grading import Grading
from .submission import exercises
from .workers import TRIES, Job, scored

MAX_NOTEBOOK_BYTES = 10_000_000
PART = ".part"  # ends the name of a file that is being written


class Unfit(Exception):
    """The report folder cannot be used. The message says why, and what to do."""


@dataclass(frozen=True)
class Entry:
    """One file that was handed in."""

    student: str
    file: str  # as it was found, below the folder of submissions
    path: Path
    problem: str = ""  # why it cannot be looked into; "" if it can

    def read(self) -> tuple[bytes, str]:
        """The file's content, and the reason why it cannot be had; "" if it can.

        The file is read once, so that the bytes graded are the bytes that name the record.
        """
        if self.problem:
            return b"", self.problem
        try:
            # A pipe must not make the grader wait, nor a link lead it elsewhere.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return b"", f"{self.file} is a symbolic link, and is not followed. Hand in the notebook itself."
            return b"", f"{self.file} cannot be read: {error.strerror}."
        try:
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    return b"", f"{self.file} is no file."
                content = file.read(MAX_NOTEBOOK_BYTES + 1)
        except OSError as error:
            return b"", f"{self.file} cannot be read: {error.strerror}."
        if len(content) > MAX_NOTEBOOK_BYTES:
            large = max(status.st_size, len(content)) / 1e6
            return b"", f"{self.file} has {large:.0f} MB; a notebook has at most {MAX_NOTEBOOK_BYTES / 1e6:.0f}."
        return content, ""


def find(paths: list[Path]) -> list[Entry]:
    """Notebooks in files, in folders, and in folders of students; no links, nothing hidden."""
    found = []
    for path in paths:
        if os.path.isdir(path):  # Path.is_dir raises where it may not look
            found += _below(path)
        else:
            found.append(_entry(path.parent, path))
    return sorted(found, key=lambda entry: (entry.student, entry.file))


def _below(root: Path) -> Iterator[Entry]:
    closed: list[OSError] = []
    for here, folders, files in os.walk(root, onerror=closed.append):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not (Path(here) / name).is_symlink()
        )
        names = (name for name in sorted(files) if name.endswith(".ipynb") and not name.startswith("."))
        yield from (_entry(root, Path(here) / name) for name in names)
    for error in closed:  # who handed in this folder is not to be missing from the report
        entry = _entry(root, Path(error.filename))
        yield replace(entry, problem=f"{entry.file} cannot be read: {error.strerror}.")


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
        try:
            (folder / "graded").mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / ".lock", "w")
        except OSError as error:
            raise Unfit(f"{folder} cannot be used as a report folder: {error.strerror}.") from None
        try:
            settings = self._own()
            if settings and seed is not None and settings["seed"] != seed:
                raise Unfit(
                    f"{folder} holds gradings with another seed. Name another folder with --out, or leave --seed out."
                )
            self.seed: str = settings["seed"] if settings else seed if seed is not None else secrets.token_hex(16)
            self.walls, self.pictures = walls, pictures
            self.settings = {"seed": self.seed, "sandbox": walls, "pictures": pictures}
            write(folder / "grading.json", json.dumps(self.settings, indent=1) + "\n")
        except Unfit:
            self.close()
            raise
        self._grader = fingerprint(Path(__file__).parents[1], SOLUTIONS)

    def close(self) -> None:
        self._lock.close()

    def _own(self) -> dict[str, Any]:
        """Takes the folder for this grader alone; the settings of the one before, {} if there was none."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unfit(f"Another grader is at work on {self.folder}.") from None
        for left in self.folder.rglob(f".*{PART}"):  # of a grader that was killed while it wrote
            with suppress(OSError):
                left.unlink()
        file = self.folder / "grading.json"
        try:
            settings = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            settings = None
        if not isinstance(settings, dict) or not isinstance(settings.get("seed"), str):
            raise Unfit(f"{file} is damaged. Name another folder with --out.")
        return settings

    def _place(self, entry: Entry, content: bytes) -> Path:
        """The path of the record of this content, graded in this way by this grader."""
        of = [entry.student, entry.file, self._grader, json.dumps(self.settings), content.hex()]
        return self.folder / "graded" / f"{slug(entry.student)}-{digest(*of)}.json"

    def grade(self, entries: list[Entry], jobs: int, progress: Callable[[int, int, str], None]) -> list[Grading]:
        """All gradings, in the order of entries.

        progress: done, of how many, the last one's student.  Raises workers.NoWorker, and Unfit
        where a record cannot be written; what was graded before is kept.
        """
        gradings: dict[int, Grading] = {}
        places: dict[int, Path] = {}  # of the records to come

        def note(k: int, grading: Grading) -> None:
            gradings[k] = replace(grading, student=entries[k].student, file=entries[k].file)

        def left() -> Iterator[Job]:
            for k, entry in enumerate(entries):
                content, problem = entry.read()
                place = self._place(entry, content)
                if problem:
                    note(k, Grading(problem=problem))
                elif kept := _recall(place):
                    gradings[k] = kept
                else:
                    places[k] = place
                    yield Job(k, entry.file, content, self.seed, self.pictures)

        progress(0, len(entries), "")
        with closing(scored(left(), jobs, self.walls)) as done:
            for job, grading in done:
                k = job.number
                if grading is None:  # not kept: it may have been the machine's fault, and not be so again
                    problem = f"{job.file} could not be graded: the grader itself failed over it, {TRIES} times."
                    note(k, Grading(problem=problem))
                else:
                    note(k, grading)
                    write(places[k], json.dumps(gradings[k].data(), indent=1, sort_keys=True) + "\n")
                progress(len(gradings), len(entries), entries[k].student)
        return [gradings[k] for k in range(len(entries))]


def _recall(place: Path) -> Grading | None:
    try:
        return Grading.from_data(json.loads(place.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def fingerprint(helpers: Path, solutions: Path) -> str:
    """Differs where anything differs that a grade depends on: the grader, the exercises, torch, Python."""
    files = [(helpers, file) for file in sorted(helpers.rglob("*.py"))]
    files += [(solutions, file) for file in sorted(solutions.glob("*.ipynb"))]
    named = [part for root, file in files for part in (str(file.relative_to(root)), file.read_bytes().hex())]
    return digest(torch.__version__, sys.version, *named)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def slug(name: str) -> str:
    """A student's name as a part of a file name; different for different names."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60].strip("-")
    return plain if plain == name else f"{plain}-{digest(name)[:8]}"


def write(path: Path, content: str) -> None:
    """Write a file whole or not at all, also if the machine stops or the disk is full. Raises Unfit."""
    part = path.with_name(f".{path.name}{PART}")
    try:
        with open(part, "w", encoding="utf-8", errors="replace") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise Unfit(f"{path} cannot be written: {error.strerror}.") from None
