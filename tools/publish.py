"""Makes the files of a release, in dist/, and tries each as a stranger would:   make release

It stops where something is missing, with the remedy.  Nothing leaves this machine: RELEASING.md has the steps of an owner.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from datetime import date
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from tools import install

ROOT = Path(__file__).resolve().parents[1]
DIST, SITE, FRAGMENTS = ROOT / "dist", ROOT / "_site", ROOT / ".changes"
OLDEST, TESTED = "3.10", "3.12"  # Pythons that the wheel is tried on, beside the newest that is here
LONGEST_SECONDS = 3600.0  # that a command may take
PROGRAMS = {"npm": "to bring the site its Python. Install Node.js."}  # without which something would be left out
if sys.platform == "linux":
    PROGRAMS["bwrap"] = "to try the grader's sandbox. Install bubblewrap."
NEVER_SHIPPED = ("dist/", "records/", "screenshots/")
HANGS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4))
"""


class Missing(Exception):
    """A gap that keeps a release back, with its remedy."""


def version() -> str:
    """The version of the library."""
    return re.search(r'^__version__ = "(.+)"$', (ROOT / "collectives" / "version.py").read_text(), re.MULTILINE)[1]


# --- before anything is built -------------------------------------------------------------


def equipped() -> str:
    """Nothing of a release is left out because this machine has no program for it."""
    for program, purpose in PROGRAMS.items():
        if not shutil.which(program):
            raise Missing(f"There is no {program} here, {purpose}")
    return f"Python {', '.join(pythons())}, {', '.join(PROGRAMS)}"


def committed() -> str:
    """All is committed, and this version isn't released yet."""
    if changed := git("status", "--porcelain"):
        raise Missing(f"Commit these first, or put them away:\n{changed}")
    tag = f"v{version()}"
    if git("tag", "--list", tag) and git("rev-parse", f"{tag}^{{commit}}") != git("rev-parse", "HEAD"):
        raise Missing(f"{tag} is released already. Raise __version__ in collectives/version.py.")
    return tag


def notes() -> str:
    """The notes of this version, in CHANGELOG.md and dist/NOTES.md."""
    file, heading = ROOT / "CHANGELOG.md", f"## {version()}, "
    if fragments := sorted(path.name for path in FRAGMENTS.iterdir() if path.name != "README.md"):
        if heading in file.read_text(encoding="utf-8"):
            raise Missing(f"CHANGELOG.md is about {version()} already. Move {', '.join(fragments)} from .changes there.")
        call(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version())
        raise Missing("CHANGELOG.md has the notes of the fragments now. Read them, commit, and call this again.")
    text = file.read_text(encoding="utf-8")
    if f"{heading}not released" in text:
        file.write_text(text.replace(f"{heading}not released", heading + date.today().isoformat()), encoding="utf-8")
        raise Missing("CHANGELOG.md has today's date for this version now. Commit it, and call this again.")
    if heading not in text:
        raise Missing(f"There is nothing about {version()} in CHANGELOG.md, and no fragment in .changes: what is new?")
    section = text.partition(heading)[2].partition("\n")[2].partition("\n## ")[0].strip()
    DIST.mkdir(exist_ok=True)
    (DIST / "NOTES.md").write_text(section + "\n", encoding="utf-8")
    return f"{len(section.splitlines())} lines"


# --- the files ----------------------------------------------------------------------------


def built() -> str:
    """A source distribution and a wheel, whose metadata and contents the field's tools accept."""
    for old in (*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")):
        old.unlink()
    call(sys.executable, "-m", "build", "--outdir", str(DIST), ".")
    call(sys.executable, "-m", "twine", "check", "--strict", *map(str, (wheel(), source())))
    call(sys.executable, "-m", "check_wheel_contents", str(wheel()))
    return f"{wheel().name}, {size(wheel())}; {source().name}, {size(source())}"


def complete() -> str:
    """The source distribution has every file of this commit, and the wheel the library alone."""
    with tarfile.open(source()) as file:
        shipped = {name.partition("/")[2] for name in file.getnames()}
    tracked = {name for name in git("ls-files").splitlines() if not name.startswith(NEVER_SHIPPED)}
    if lacking := sorted(tracked - shipped):
        raise Missing(f"The source distribution lacks {', '.join(lacking[:5])}: [tool.flit.sdist] in pyproject.toml.")
    if more := sorted(shipped - tracked - {"PKG-INFO"}):
        raise Missing(f"The source distribution has {', '.join(more[:5])}, which no commit has.")
    with zipfile.ZipFile(wheel()) as file:
        parts = {name.partition("/")[0] for name in file.namelist()}
    if strange := parts - {"collectives", f"collectives_course-{version()}.dist-info"}:
        raise Missing(f"The wheel has {', '.join(sorted(strange))} beside the library.")
    return f"{len(tracked)} files"


# --- as a stranger ------------------------------------------------------------------------


def pythons() -> dict[str, str]:
    """The Pythons that the wheel is tried on: version -> program."""
    here: dict[tuple[int, ...], str] = {}
    programs = [
        *Path.home().glob(".pyenv/versions/*/bin/python"),
        *Path.home().glob(".local/share/uv/python/*/bin/python"),
    ]
    for minor in range(10, 30):
        programs += filter(None, [shutil.which(f"python3.{minor}")])
    for program in (sys.executable, *map(str, programs)):
        question = [program, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
        answer = subprocess.run(question, capture_output=True, text=True)
        if answer.returncode == 0:
            here.setdefault(tuple(map(int, answer.stdout.split())), program)
    numbers = {".".join(map(str, number)): program for number, program in sorted(here.items())}
    if lacking := [number for number in (OLDEST, TESTED) if number not in numbers]:
        raise Missing(f"There is no Python {' and no Python '.join(lacking)} here, on which a release is tried.")
    return {number: numbers[number] for number in dict.fromkeys((OLDEST, TESTED, list(numbers)[-1]))}


def as_stranger(number: str, program: str) -> str:
    """With nothing but the wheel, a job that goes wrong is watched, and its record explained."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        call(program, "-m", "venv", f"{folder}/env")
        python = f"{folder}/env/bin/python"
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
        if (index := os.environ.get("TORCH_INDEX")) and sys.platform == "linux":
            install.take_cpu_torch(pip, index)
        call(*pip, str(wheel()), cwd=folder)
        release = call(python, "-m", "collectives", "--version", cwd=folder)
        if release != f"collectives {version()}\n":
            raise Missing(f"On Python {number} the wheel gives its version as {release.strip()!r}.")
        Path(folder, "train.py").write_text(HANGS)
        job = "-m torch.distributed.run --standalone --nproc-per-node 2 -m collectives.watch --record record train.py"
        output = call(python, *job.split(), cwd=folder, fails=True)
        verdict = Path(folder, "record", "verdict.txt")
        if not verdict.exists() or "all_reduce" not in verdict.read_text():
            raise Missing(f"On Python {number} a watched job that hangs has no verdict on its all_reduce:\n{output}")
        if "all_reduce" not in call(python, "-m", "collectives", "explain", "record", cwd=folder):
            raise Missing(f"On Python {number} explain doesn't name what the record shows.")
    return "watched and explained"


def own_tests() -> str:
    """With nothing but the source distribution, `make test` passes."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        Path(folder).chmod(0o755)  # a test that gives up root's rights reads it too
        with tarfile.open(source()) as file:
            file.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (course,) = Path(folder).iterdir()
        output = call("make", "test", cwd=course)
    return output.rstrip().rpartition("\n")[2].strip("= ")


def served() -> str:
    """The site is built, and its folder alone serves it."""
    output = call("make", "site", cwd=ROOT)
    if not (SITE / "_static" / "python").exists():
        raise Missing(f"The site's pages have no Python:\n{output}")
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
        for page in pages:
            with urlopen(f"http://127.0.0.1:{server.server_port}/{page}", timeout=10) as answer:
                if b"<title>" not in answer.read():
                    raise Missing(f"_site/{page} isn't a page.")
        server.shutdown()
    shutil.make_archive(str(DIST / "site"), "zip", SITE)
    return f"{len(pages)} pages, {size(DIST / 'site.zip')}"


# --- parts --------------------------------------------------------------------------------


def wheel() -> Path:
    return DIST / f"collectives_course-{version()}-py3-none-any.whl"


def source() -> Path:
    return DIST / f"collectives_course-{version()}.tar.gz"


def size(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:.1f} MB"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def call(*command: str, cwd: str | Path = ROOT, fails: bool = False) -> str:
    """The output of a command.  fails: it has to end with an error.  Raises Missing, with the last lines, if it ends otherwise."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MAKE", "VIRTUAL_ENV"))}
    try:
        together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        run = subprocess.run(command, cwd=cwd, env=environ, timeout=LONGEST_SECONDS, **together)
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(map(str, command))} takes longer than {LONGEST_SECONDS / 60:.0f} minutes.") from None
    if (run.returncode != 0) != fails:
        last = "\n".join(run.stdout.splitlines()[-20:])
        raise Missing(f"{' '.join(map(str, command))} ended with {run.returncode}:\n{last}")
    return run.stdout


def main() -> int:
    try:
        steps = [("equipped", equipped), ("committed", committed), ("notes", notes), ("built", built)]
        steps += [("complete", complete)]
        steps += [(f"wheel on {number}", partial(as_stranger, number, python)) for number, python in pythons().items()]
        steps += [("site", served), ("own tests", own_tests)]
        for name, step in steps:
            began = time.monotonic()
            outcome = step()
            print(f"{name:<16} {outcome}  ({time.monotonic() - began:.0f} s)", flush=True)
    except Missing as missing:
        print(f"\nNo release yet. {missing}", file=sys.stderr)
        return 1
    print(f"\ndist/ has the files of v{version()}. RELEASING.md says how they go out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
