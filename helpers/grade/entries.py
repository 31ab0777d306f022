"""The files that a class handed in: which there are, whose each is, and what it holds."""

import errno
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterator

from ..exercise.notebook import exercises

MAX_NOTEBOOK_BYTES = 10_000_000


@dataclass(frozen=True)
class Entry:
    """One file that was handed in."""

    student: str
    file: str  # as it was found, below the folder of submissions
    path: Path
    problem: str = ""  # why it cannot be looked into; "" if it can

    def read(self) -> tuple[bytes, str]:
        """The file's content, and the reason why it cannot be had; "" if it can. Its bytes also name the record."""
        if self.problem:
            return b"", self.problem
        try:
            # A pipe must not make the grader wait, nor a link lead it elsewhere.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    return b"", f"{self.file} is no file."
                content = file.read(MAX_NOTEBOOK_BYTES + 1)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return b"", f"{self.file} is a symbolic link, and is not followed. Hand in the notebook itself."
            return b"", f"{self.file} cannot be read: {error.strerror}."
        if len(content) > MAX_NOTEBOOK_BYTES:
            large = max(status.st_size, len(content)) / 1e6
            return b"", f"{self.file} has {large:.0f} MB; a notebook has at most {MAX_NOTEBOOK_BYTES / 1e6:.0f}."
        return content, ""


def find(paths: list[Path]) -> list[Entry]:
    """Notebooks in files, in folders, and in folders of students; no links, nothing hidden."""
    entries = []
    for path in paths:
        # Path.is_dir raises where it may not look
        entries += _below(path) if os.path.isdir(path) else [_entry(path.parent, path)]
    return sorted(entries, key=lambda entry: (entry.student, entry.file))


def _below(root: Path) -> Iterator[Entry]:
    closed: list[OSError] = []
    for here, folders, files in os.walk(root, onerror=closed.append):
        folders[:] = [name for name in sorted(folders) if name[0] != "." and not Path(here, name).is_symlink()]
        names = (name for name in sorted(files) if name.endswith(".ipynb") and name[0] != ".")
        yield from (_entry(root, Path(here, name)) for name in names)
    for error in closed:  # who handed in this folder is not to be missing from the report
        entry = _entry(root, Path(error.filename))
        yield replace(entry, problem=f"{entry.file} cannot be read: {error.strerror}.")


def _entry(root: Path, path: Path) -> Entry:
    """submissions/ann/06.ipynb and submissions/ann.ipynb are Ann's; a file named like an exercise is its folder's."""
    parts = path.relative_to(root).parts
    own = path.stem not in exercises()
    student = parts[0] if len(parts) > 1 else path.stem if own else root.resolve().name
    return Entry(student, str(Path(*parts)), path)
