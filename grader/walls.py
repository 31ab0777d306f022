"""The walls of the sandbox: bubblewrap with the least that Python and torch can live on, and whether they hold here.

Inside there is Python, torch and the folder `inside`, all of it read-only; no place to write, no network, no other
process to be seen, no solution, test or submission.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from helpers.course import ROOT, own_exercises

from .entries import walk
from .inside import seccomp

INSIDE = Path(__file__).parent / "inside"
TRIAL_SECONDS = 120.0  # for the trial, on a busy machine
VISIBLE_STATUS = 4  # the exit code of the trial where it sees a file that it must not
TRIAL = f"""
import os, sys
sys.path.insert(0, "/course")
secret = {{tuple(map(int, line.split())) for line in sys.stdin}}
inodes = {{inode for inode, device in secret}}
folders = ["/"]
while folders:
    try:
        entries = list(os.scandir(folders.pop()))
    except OSError:
        continue
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
        elif entry.inode() in inodes and (entry.inode(), os.lstat(entry.path).st_dev) in secret:
            print(entry.path, flush=True)
            os._exit({VISIBLE_STATUS})
from inside import seccomp

seccomp.close_in()
try:
    os.fork()
except PermissionError:
    os._exit(0)
os._exit(3)
"""  # ends well only where the walls hold


class Unavailable(RuntimeError):
    """There is no sandbox on this machine. The message has the reason and the remedy."""


class Exposed(Unavailable):
    """There is one, and code in it could see what is hidden from it."""


def check(private: Iterable[Path] = ()) -> None:
    """Raises Unavailable unless submitted code can be walled in here.

    private: files and folders of which nothing may be seen from inside, besides the course's own.
    """
    if sys.platform != "linux":
        raise Unavailable("sandboxes need Linux (bubblewrap). Grade in a Linux container or virtual machine.")
    if not shutil.which("bwrap"):
        raise Unavailable("bubblewrap is not installed (apt-get install bubblewrap, dnf install bubblewrap).")
    if not seccomp.is_supported():
        lacking = "there is no filter for system calls on this kind of processor yet"
        raise Unavailable(f"{lacking}, see grader/inside/seccomp.py.")
    program = [sys.executable, "-I", "-B", "-c", TRIAL]
    secret = "".join(f"{inode} {device}\n" for inode, device in _inodes(_hiding_options(private)))
    options = {"capture_output": True, "text": True, "errors": "replace", "cwd": "/", "timeout": TRIAL_SECONDS}
    try:
        tried = subprocess.run([*bwrap(private), "--", *program], input=secret, **options)
    except subprocess.TimeoutExpired as late:  # where bubblewrap fails halfway, its second process may wait forever
        tried = subprocess.CompletedProcess(program, 1, "", (late.stderr or b"no answer").decode(errors="replace"))
    if tried.returncode == VISIBLE_STATUS:
        seen = tried.stdout.strip()
        raise Exposed(
            f"submitted code could see {seen}, which lies where Python or a library of the system does. Move the course, "
            "the submissions and the report to a folder of their own."
        )
    if tried.returncode:
        said = tried.stderr.strip().rpartition("\n")[2] or f"exit code {tried.returncode}"
        raise Unavailable(
            f"the sandbox does not hold here ({said}). bubblewrap needs user namespaces: in a container, allow them; "
            "on Ubuntu 24.04 and later, see kernel.apparmor_restrict_unprivileged_userns."
        )


def bwrap(private: Iterable[Path] = ()) -> list[str]:
    """The beginning of a command whose rest runs inside the walls.

    private: as for check. Python's own files are visible even in one of these folders.
    """
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    options += ["--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    options += ["--setenv", "PATH", ""]  # else torch for CUDA looks for a compiler, and needs a folder to write to
    seen = {path: None for shown in _visible() for path in (shown, os.path.realpath(shown))}
    shown = {Path(os.path.realpath(path)) for path in seen}
    within = [path for path in _hiding_options(private) if shown & {Path(path), *Path(path).parents}]
    # The inner of two folders is mounted after the outer one, and so decides.
    for path in sorted({*seen, *within}, key=lambda path: (path.count("/"), path)):
        if path in within:
            options += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", os.devnull, path]
        elif os.path.islink(path):  # bound, it would be a second way to hidden files
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind-try", path, path]
    for path in within:
        options += ["--remount-ro", path] if os.path.isdir(path) else []
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        options += ["--dev-bind", device, device]
    options += ["--ro-bind-try", "/proc/cpuinfo", "/proc/cpuinfo"]  # by which torch chooses half-precision kernels
    return ["bwrap", *options, "--ro-bind", str(INSIDE), "/course/inside", "--remount-ro", "/", "--chdir", "/"]


def _visible() -> Iterator[str]:
    """The paths that Python and torch need: programs and libraries, and nothing else next to them."""
    for prefix in ("/usr", "/usr/local", sys.base_prefix, sys.prefix):
        yield from (os.path.join(prefix, name) for name in ("bin", "lib", "lib64", "pyvenv.cfg"))
    yield from ("/lib", "/lib64", "/etc/ld.so.cache")
    yield os.path.dirname(os.path.realpath(sys.executable))
    yield str(Path(importlib.util.find_spec("torch").origin).parents[1])
    yield from ("/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/present")


def _hiding_options(private: Iterable[Path]) -> list[str]:
    """The files and folders to hide inside, including the course, and the library wherever it is installed."""
    library = Path(importlib.util.find_spec("collectives").origin).parent
    return list(dict.fromkeys(map(os.path.realpath, (ROOT, library, *own_exercises(), *private))))


def _inodes(hidden: Iterable[str]) -> set[tuple[int, int]]:
    """Inode and device of everything to hide, except in folders that Python needs, and in dot folders."""
    inodes, needed = set(), {os.path.realpath(path) for path in (*_visible(), INSIDE)}
    for top in hidden:
        files = [top]
        for here, folders, names in walk(top):
            folders[:] = [name for name in folders if name[0] != "." and os.path.join(here, name) not in needed]
            files += (os.path.join(here, name) for name in names)
        for file in files:
            with suppress(OSError):
                status = os.lstat(file)
                inodes.add((status.st_ino, status.st_dev))
    return inodes
