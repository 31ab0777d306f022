"""The files that a class handed in, each with its student and its content."""

import errno
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterator

from helpers.exercise.notebook import exercises

MAX_NOTEBOOK_BYTES = 10_000_000


@dataclass(frozen=True)
class Entry:
    """One file that was handed in."""

    student: str
    file: str  # as it was found, below the folder of submissions
    path: Path
    problem: str = ""  # why it cannot be looked into; "" if it can
    id: str = ""  # the student's number in the platform it comes from, if its name has one
    late: bool = False  # according to the platform

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
                    return b"", f"{self.file} is not a file."
                content = file.read(MAX_NOTEBOOK_BYTES + 1)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return b"", f"{self.file} is a symbolic link, and is not followed. Hand in the notebook itself."
            return b"", f"{self.file} cannot be read: {error.strerror}."
        if len(content) > MAX_NOTEBOOK_BYTES:
            large = max(status.st_size, len(content)) / 1e6
            return b"", f"{self.file} has {large:.0f} MB; a notebook has at most {MAX_NOTEBOOK_BYTES / 1e6:.0f}."
        return content, ""


# Files that systems leave in folders: nobody handed them in.
LITTER = {
    ".DS_Store",
    "Thumbs.db",
    "desktop.ini",
    "__MACOSX",
    ".git",
    ".gitignore",
    ".ipynb_checkpoints",
    "__pycache__",
}
COURSE = ("exercises", "notebooks", "solutions")  # folders by which a clone of the course is recognized
NAMES = {  # how learning platforms name their downloads: the names of a student's file or folder, as a pattern
    "canvas": r"(?P<student>[^_]+)_(?:(?P<late>LATE)_)?(?P<id>\d+)_\d+_(?P<file>.+)",
    "moodle": r"(?P<student>[^_]+)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)(?:_(?P<file>.*))?",
}


@dataclass(frozen=True)
class Naming:
    """Whose a first-level name below the submissions is.

    pattern: with the groups student, and maybe id, late and file; None: the name is the student's.
    student: of whom everything is, "" for several.
    """

    pattern: re.Pattern | None = None
    student: str = ""

    def owner(self, name: str) -> tuple[str, str, bool]:
        """Student, id in the roster, and whether it came late."""
        if self.student:
            return self.student, "", False
        if self.pattern and (match := self.pattern.fullmatch(name)):
            found = match.groupdict()
            number = found.get("id") or ""
            return " ".join(filter(None, [found["student"], number])), number, bool(found.get("late"))
        return name, "", False


def naming(pattern: str = "", student: str = "") -> Naming:
    """The naming by a key of NAMES, or a pattern of one's own. Raises ValueError for none."""
    try:
        compiled = re.compile(NAMES.get(pattern, pattern)) if pattern else None
    except re.error as error:
        raise ValueError(f"--names {pattern} is not a pattern: {error}.") from None
    if compiled and "student" not in compiled.groupindex:
        raise ValueError(f"--names {pattern} is neither {' nor '.join(NAMES)} nor a pattern with (?P<student>...).")
    return Naming(compiled, student)


def find(paths: list[Path], names: Naming = Naming()) -> list[Entry]:
    """An entry for each notebook in files, folders and folders of students, and for each name that gives none."""
    entries = []
    for path in paths:
        # Path.is_dir raises where it may not look
        entries += _in_folder(path, names) if os.path.isdir(path) else [_entry(path.parent, path, names)]
    return sorted(entries, key=lambda entry: (entry.student, entry.file))


def _in_folder(root: Path, names: Naming) -> Iterator[Entry]:
    try:
        first = sorted(entry for entry in os.listdir(root) if entry not in LITTER)
    except OSError as error:
        yield replace(_entry(root.parent, root, names), problem=f"{root.name} cannot be read: {error.strerror}.")
        return
    of_one = any(_is_notebook(name) and Path(name).stem in exercises() for name in first)
    for name in first:
        path = root / name
        found = list(_below(root, path, names)) if os.path.isdir(path) and not path.is_symlink() else []
        if not os.path.isdir(path) and _is_notebook(name):
            found = [_entry(root, path, names)]
        yield from found
        if not found and not of_one:
            yield replace(_entry(root, path, names), problem=_nothing(path))


def _below(root: Path, top: Path, names: Naming) -> Iterator[Entry]:
    closed: list[OSError] = []
    for here, folders, files in os.walk(top, onerror=closed.append):
        clone = set(COURSE) <= set(folders)
        passed_over = {*LITTER, *({"notebooks", "solutions"} if clone else ())}
        folders[:] = [n for n in sorted(folders) if n not in passed_over and not Path(here, n).is_symlink()]
        folders[:] = [n for n in folders if not os.path.exists(Path(here, n, "pyvenv.cfg"))]
        yield from (_entry(root, Path(here, name), names) for name in sorted(files) if _is_notebook(name))
    for error in closed:  # this folder's student should not be missing from the report
        entry = _entry(root, Path(error.filename), names)
        yield replace(entry, problem=f"{entry.file} cannot be read: {error.strerror}.")


def _is_notebook(name: str) -> bool:
    return name.lower().endswith(".ipynb") and not name.startswith("._") and name.lower() != ".ipynb"


def _nothing(path: Path) -> str:
    """Why a name below the submissions gives no notebook."""
    unpack = (
        "Only notebooks (.ipynb) are graded: unpack archives, and hand in the notebook itself, not what was made of it."
    )
    if path.is_symlink():
        return f"{path.name} is a symbolic link, and is not followed. Hand in the notebook itself."
    if not os.path.isdir(path):
        return f"{path.name} is not a notebook. {unpack}"
    files = sorted(
        str(file.relative_to(path)) for file in path.rglob("*") if file.name not in LITTER and not file.is_dir()
    )
    if not files:
        return f"{path.name} is an empty folder."
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    return f"There is no notebook in {path.name}, only {', '.join(files[:5])}{more}. {unpack}"


def _entry(root: Path, path: Path, names: Naming) -> Entry:
    """submissions/ann/06.ipynb and submissions/ann.ipynb are Ann's; a file named like an exercise is its folder's."""
    parts = path.relative_to(root).parts
    own = path.stem not in exercises()
    name = parts[0] if len(parts) > 1 or os.path.isdir(path) else path.stem if own else root.resolve().name
    if names.pattern and names.pattern.fullmatch(parts[0]):
        name = parts[0]
    student, number, late = names.owner(name)
    return Entry(student, str(Path(*parts)), path, id=number, late=late)
