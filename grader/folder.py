"""A report folder: how it was graded, in grading.json, and a record of each submission as soon as that is graded.

A record is for one student, one file and its content, graded in one way by one grader: it is void once the
submission, the grader, the exercises, torch or Python have changed.
"""

import fcntl
import hashlib
import json
import os
import secrets
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from helpers.course import ROOT, SOLUTIONS, TASKS, own_exercises

from .entries import Entry
from .gradebook import Grading
from .safe_text import digest, slug

GRADED_BY = (".py", ".csv", ".ipynb")  # kinds of files that a grade depends on
PART = ".part"  # ends the name of a file that is being written


class Unfit(Exception):
    """The report folder cannot be used. The message has the reason and the remedy."""


class ReportFolder:
    """A report folder; no other grader may use it until it is closed. Raises Unfit."""

    def __init__(self, folder: Path, seed: str | None, walls: bool, pictures: bool, minutes=5.0, options=None) -> None:
        self.folder = folder
        try:
            (folder / "graded").mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / ".lock", "w")
        except OSError as error:
            raise Unfit(f"{folder} cannot be used as a report folder: {error.strerror}.") from None
        try:
            before = self._own_seed()
            if None not in (before, seed) and before != seed:
                another = "Name another folder with --out, or leave --seed out."
                raise Unfit(f"{folder} holds gradings with another seed. {another}")
            seed = next((given for given in (before, seed) if given is not None), secrets.token_hex(16))
            self.settings = {"seed": seed, "sandbox": walls, "pictures": pictures, "minutes": minutes}
            write(folder / "grading.json", json.dumps({**self.settings, "options": options}, indent=1) + "\n")
        except Unfit:
            self.close()
            raise
        rooms = (ROOT / name for name in ("collectives", "helpers", "grader"))
        self._grader = fingerprint(*rooms, TASKS, SOLUTIONS, *own_exercises())
        self._places: dict[tuple[str, str], Path] = {}  # of student and file: its record

    def close(self) -> None:
        self._lock.close()

    def _own_seed(self) -> str | None:
        """The earlier grader's seed, or None; locks the folder for this one alone."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unfit(f"Another grader is at work on {self.folder}.") from None
        for part in self.folder.rglob(f".*{PART}"):  # of a grader that was killed while it wrote
            with suppress(OSError):
                part.unlink()
        file = self.folder / "grading.json"
        try:
            match json.loads(file.read_text(encoding="utf-8")):
                case {"seed": str(seed)}:
                    return seed
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            pass
        raise Unfit(f"{file} is damaged. Name another folder with --out.")

    def _place(self, entry: Entry, content: bytes) -> Path:
        read = hashlib.sha256(content).hexdigest()
        of = [entry.student, entry.file, self._grader, json.dumps(self.settings), read]
        place = self.folder / "graded" / f"{slug(entry.student)}-{digest(*of)}.json"
        self._places[entry.student, entry.file] = place
        return place

    def recall(self, entry: Entry, content: bytes) -> Grading | None:
        """The record of this content, graded in this way by this grader; None if it is missing or incomplete."""
        return _record(self._place(entry, content))

    def remember(self, entry: Entry, content: bytes, grading: Grading) -> None:
        """Write the record of this content. Raises Unfit."""
        write(self._place(entry, content), json.dumps(grading.data(), indent=1, sort_keys=True) + "\n")

    def pictures(self, grading: Grading) -> dict[str, str]:
        """The pictures of a grading, from its record: a whole class's would take a gigabyte of memory."""
        place = self._places.get((grading.student, grading.file))
        record = place and _record(place)
        return record.pictures if record else {}


def lasting(folder: Path) -> dict[str, Any]:
    """The options of the earlier grading in a report folder; {} before the first, or if it is damaged."""
    with suppress(OSError, ValueError, AttributeError):
        return json.loads((folder / "grading.json").read_text(encoding="utf-8")).get("options") or {}
    return {}


def _record(place: Path) -> Grading | None:
    try:
        return Grading.from_data(json.loads(place.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def fingerprint(*folders: Path) -> str:
    """Differs where anything differs that a grade depends on: the grader, the exercises, torch, Python."""
    named = []
    for folder, file in ((folder, file) for folder in folders for file in sorted(folder.rglob("*"))):
        name = str(file.relative_to(folder))
        if file.suffix in GRADED_BY and "/." not in f"/{name}":  # nothing hidden, as Jupyter's checkpoints are
            named += [name, file.read_bytes().hex()]
    return digest(version("torch"), sys.version, *named)


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically, even if the machine stops or the disk is full. Raises Unfit."""
    part = path.with_name(f".{path.name}{PART}")
    try:
        with open(part, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise Unfit(f"{path} cannot be written: {error.strerror}.") from None
