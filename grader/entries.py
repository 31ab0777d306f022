"""The files that a class handed in, each with its student and its content."""

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any, Callable, Iterator
from unicodedata import normalize

from helpers.exercise.notebook import exercises

MAX_NOTEBOOK_BYTES = 40_000_000  # outputs included, which a loop that prints makes large
MAX_FILES = 60  # of one student that are graded


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose a file is, and when the platform got it."""

    student: str = ""
    id: str = ""  # the student's number in the platform it comes from; a group has its members', with commas
    late: bool = False  # according to the platform
    time: str = ""  # "2025-11-10 23:59:00", or in UTC with "+00:00"


@dataclass(frozen=True)
class Entry(Owner):
    """One file that was handed in."""

    file: str  # as it was found, below the folder of submissions
    path: Path
    problem: str = ""  # why it cannot be looked into; "" if it can

    def read(self) -> tuple[bytes, str]:
        """The file's content, and the reason why it cannot be had; "" if it can. Its bytes also name the record."""
        if self.problem:
            return b"", self.problem
        try:
            # A pipe must not make the grader wait, nor a link lead it elsewhere.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
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
            most = f"a notebook has at most {MAX_NOTEBOOK_BYTES / 1e6:.0f}"
            return b"", f"{self.file} has {large:.0f} MB; {most}. Clear all outputs, save, and hand it in again."
        return content, ""


# Files that systems leave in folders: nobody handed them in.
LITTER = {
    ".DS_Store", "Thumbs.db", "desktop.ini", "__MACOSX", ".git", ".gitignore", ".ipynb_checkpoints", "__pycache__",
    "Feedback Attachment(s)",  # Sakai's, from an earlier grading
}  # fmt: skip
COURSE = ("exercises", "notebooks", "solutions")  # folders by which a clone of the course is recognized
GRADESCOPE = "submission_metadata.yml"  # names the students whose folders are beside it
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
SIDE = {GRADESCOPE, "index.html", "grades.csv"}  # files about a class that Gradescope, Brightspace and Sakai add
RECEIPT = re.compile(r".+_attempt_[\d-]+\.txt")  # Blackboard's, beside each file
# Names of a student's file or folder in the downloads of learning platforms, as patterns. The first that fits counts.
NAMES = {
    "canvas": (
        r"(?:(?P<late>LATE)_)?(?P<student>anon_[^_]+)_\d+_(?P<file>.+)",
        r"(?P<student>.+?)_(?:(?P<late>LATE)_)?(?P<id>\d+)_\d+_(?P<file>.+)",
    ),
    "moodle": (r"(?P<student>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)(?:_(?P<file>.*))?",),
    # Students share the assignment's name, of which a part may be left in theirs.
    "blackboard": (r"[^_]+_(?P<student>.+)_attempt_(?P<time>\d+(?:-\d+){5})(?:_(?P<file>.+)|\.txt)",),
    "brightspace": (r"(?P<id>\d+)-\d+ - (?P<student>.+) - (?P<time>\w{3} \d+, \d{4} \d+ [AP]M)",),
    "sakai": (r"(?P<student>.+)\((?P<id>[^()]+)\)",),
    "ilias": (r"(?P<student>.+)_(?P<id>[^_]+)_\d+",),
}
TIMES = ("%Y-%m-%d-%H-%M-%S", "%b %d, %Y %I%M %p")  # in these names


@dataclass(frozen=True)
class Naming:
    """Whose a first-level name below the submissions is.

    patterns: with the groups student, and maybe id, late, time and file; (): the name is the student's.
    student: the owner of everything, "" for several.  known: the owners of some names.
    """

    patterns: tuple[re.Pattern, ...] = ()
    student: str = ""
    known: dict[str, Owner] = field(default_factory=dict)

    def owner(self, name: str) -> Owner | None:
        """None for a name that doesn't fit."""
        if self.student or name in self.known:
            return self.known.get(name, Owner(student=self.student))
        for match in filter(None, (pattern.fullmatch(name) for pattern in self.patterns)):
            group = {"id": "", "late": "", "time": "", **match.groupdict("")}
            student = " ".join(filter(None, [group["student"], group["id"]]))
            return Owner(student=student, id=group["id"], late=bool(group["late"]), time=_time(group["time"]))
        return None


def _time(text: str) -> str:
    for form in TIMES:
        with suppress(ValueError):
            return str(datetime.strptime(text, form))
    return ""


def _utc(text: str) -> str:
    """A time with its zone, as Gradescope writes it, in UTC."""
    found = re.match(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.\d]* *(Z|[+-]\d\d:?\d\d)", text)
    if not found:
        return ""
    zone = "+00:00" if found[3] == "Z" else f"{found[3][:3]}:{found[3][-2:]}"
    return str(datetime.fromisoformat(f"{found[1]} {found[2]}{zone}").astimezone(timezone.utc))


def naming(pattern: str = "", student: str = "") -> Naming:
    """The naming by a key of NAMES, or a pattern of one's own. Raises ValueError for an unusable one."""
    try:
        compiled = tuple(map(re.compile, NAMES.get(pattern, [pattern] if pattern else [])))
    except re.error as error:
        raise ValueError(f"--names {pattern} is not a pattern: {error}.") from None
    if any("student" not in one.groupindex for one in compiled):
        raise ValueError(f"--names {pattern} is neither {' nor '.join(NAMES)} nor a pattern with (?P<student>...).")
    return Naming(compiled, student)


def find(paths: list[Path], names: Naming = Naming()) -> list[Entry]:
    """An entry for each notebook in files or a folder of students, and for each name in it that gives none."""
    entries = []
    for path in paths:
        # Path.is_dir raises where it may not look
        entries += _in_folder(path, names) if os.path.isdir(path) else _at(path, names, path.resolve().parent.name)
    owners = {entry.student for entry in entries if not RECEIPT.fullmatch(entry.file)}
    entries = [entry for entry in entries if entry.student not in owners or not RECEIPT.fullmatch(entry.file)]
    entries.sort(key=lambda entry: (entry.student, bool(entry.problem), entry.file))
    by_student = [list(group) for _, group in groupby(entries, key=lambda entry: entry.student)]
    return [entry for group in by_student for entry in (*group[:MAX_FILES], *_beyond(group[MAX_FILES:]))]


def _beyond(entries: list[Entry]) -> list[Entry]:
    """One entry for all of a student's that are too many."""
    if not entries:
        return []
    problem = entries[0].file + (f" and {len(entries) - 1} more are" if entries[1:] else " is")
    most = f"at most {MAX_FILES} files of a student are. Hand in one notebook per exercise."
    return [replace(entries[0], problem=f"{problem} not graded: {most}")]


def remarks(entries: list[Entry], names: Naming) -> list[str]:
    """Sentences on names that may be misunderstood: some don't fit the pattern, or all fit one that wasn't asked for."""
    first = list(dict.fromkeys(Path(entry.file).parts[0] for entry in entries))
    odd = [name for name in first if not names.owner(name) and not names.owner(Path(name).stem)]
    if names.patterns and odd:
        return [f"Not named as --names has it, so each is a student of its own: {', '.join(odd)}."]
    fits = [kind for kind in NAMES if all(naming(kind).owner(name) for name in odd)]
    return [f"All names look as {fits[0].title()} makes them: try --names {fits[0]} --list."] if odd and fits else []


def _in_folder(root: Path, names: Naming) -> Iterator[Entry]:
    try:
        first = sorted(entry for entry in os.listdir(root) if entry not in LITTER)
    except OSError as error:
        yield _entry(root.parent, root, names, f"{root.name} cannot be read: {error.strerror}.")
        return
    known = first and all(_is_notebook(name) and Path(name).stem in exercises() for name in first)
    if known or set(COURSE) <= set(first):
        yield from _entries_below(root, root, Naming(student=names.student or root.resolve().name))
        return
    names = replace(names, known=_submitters(root))
    for name in first:
        if name not in SIDE or names.student or os.path.isdir(root / name):
            yield from _at(root / name, names)


def _at(path: Path, names: Naming, owner: str = "") -> list[Entry]:
    """The entries of a name at the top of the submissions, at least one. owner: a student, if it is named like an exercise."""
    linked = path.is_symlink()
    folder = os.path.isdir(path) and not linked
    if folder and (found := list(_entries_below(path.parent, path, names))):
        return found
    problem = _no_submissions(path, path.parent) if folder or not _is_notebook(path.name) else ""
    if not problem and path.stem in exercises() and not linked and not names.owner(path.name):
        names = Naming(student=owner)
        problem = "" if owner else (
            f"{path.name} is named like an exercise, so its student isn't known. Rename it, or put it into a folder with "
            "its student's name. If all of this is one student's: --one-student NAME."
        )  # fmt: skip
    return [_entry(path.parent, path, names, problem)]


def _submitters(root: Path) -> dict[str, Owner]:
    """The owner of each folder of an export from Gradescope, by the file that it adds."""
    text, owners = Entry(GRADESCOPE, root / GRADESCOPE).read()[0].decode("utf-8", "replace"), {}
    for part in re.split(r"^(?=\S+:\s*$)", text, flags=re.MULTILINE):

        def values(key: str) -> list[str]:
            return [value.strip("'\" ") for value in re.findall(rf"^[\s-]*:{key}:(.*)", part, re.MULTILINE)]

        if people := list(zip(values("name"), values("sid"))):
            student = ", ".join(" ".join(filter(None, person)) for person in people)
            numbers, time = ",".join(number for _, number in people), _utc("".join(values("created_at")[:1]))
            owners[part.partition(":")[0]] = Owner(student=student, id=numbers, time=time)
    return owners


def _entries_below(root: Path, top: Path, names: Naming) -> Iterator[Entry]:
    closed: list[OSError] = []
    for here, folders, files in walk(top, closed.append):
        clone = set(COURSE) <= set(folders)
        passed_over = {*LITTER, *({"notebooks", "solutions", "tests"} if clone else ())}
        folders[:] = [n for n in folders if n not in passed_over and not os.path.exists(Path(here, n, "pyvenv.cfg"))]
        for path in (Path(here, name) for name in (*folders, *files)):
            folder = path.name in folders
            useless = os.path.islink(path) if folder else path.name.lower().endswith(ARCHIVES)
            if useless or _is_notebook(path.name) and not folder:
                yield _entry(root, path, names, _no_submissions(path, root) if useless else "")
    for error in closed:  # this folder's student should not be missing from the report
        file = Path(error.filename).relative_to(root)
        yield _entry(root, Path(error.filename), names, f"{file} cannot be read: {error.strerror}.")


def walk(
    top: Path | str, onerror: Callable[[OSError], Any] = lambda error: None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, in the order of the names, and to any depth."""
    todo = [str(top)]
    while todo:
        here, folders, files = todo.pop(), [], []
        try:
            for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
                (folders if entry.is_dir(follow_symlinks=False) or os.path.isdir(entry) else files).append(entry.name)
        except OSError as error:
            onerror(error)
        yield here, folders, files
        inner = (os.path.join(here, name) for name in reversed(folders))
        todo += (folder for folder in inner if not os.path.islink(folder))


def _is_notebook(name: str) -> bool:
    return name.lower().endswith(".ipynb") and not name.startswith("._") and name.lower() != ".ipynb"


def _no_submissions(path: Path, root: Path) -> str:
    """Why a name below the submissions gives no notebook."""
    file = path.relative_to(root)
    unpack = (
        "Only notebooks (.ipynb) are graded: unpack archives, and hand in the notebook itself, not what was made of it."
    )
    if path.is_symlink():
        return f"{file} is a symbolic link, and is not followed. Hand in the notebook itself."
    if not os.path.isdir(path):
        renamed = "Rename it so that it ends in .ipynb." if ".ipynb" in path.name[1:] else unpack
        return f"{file} is not a notebook. {renamed}"
    below = [Path(here, name) for here, _, names in walk(path) for name in names if name not in LITTER]
    if not below:
        return f"{file} is an empty folder."
    notebooks = [file for file in below if _is_notebook(file.name)]
    listed = sorted(str(file.relative_to(path)) for file in notebooks or below)
    names = ", ".join(listed[:5]) + f" and {len(listed) - 5} more" * (len(listed) > 5)
    if notebooks:
        return f"In {file} there are notebooks only where none is looked for: {names}. Move yours to {file} itself."
    return f"There is no notebook in {file}, only {names}. {unpack}"


def _entry(root: Path, path: Path, names: Naming, problem: str = "") -> Entry:
    """submissions/ann/06.ipynb and submissions/ann.ipynb are Ann's."""
    file = path.relative_to(root)
    first = normalize("NFC", file.parts[0])  # macOS takes letters and their accents apart
    plain = first if len(file.parts) > 1 or os.path.isdir(path) else PurePath(first).stem
    owner = names.owner(first) or names.owner(plain) or Owner(student=plain)
    return Entry(str(file), path, problem, **asdict(owner))
