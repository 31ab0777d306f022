"""Python for pages: Pyodide's core, and the parts of the library that judge a reader's code, plan a division and explain logs.

Pyodide comes from npm when the site is built, and is served with the site.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Sequence

from helpers.course import ROOT
from helpers.views.web import WORKER

from .runnable_cells import RUNNABLE

PYODIDE = "pyodide@314.0.7"  # its Python is 3.14
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# See worker.mjs.
ANSWER = "collectives.figures.written, collectives.figures.planning, collectives.watch.explain.command"
SCRIPT = f"import sys, {ANSWER}; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('collectives')))"
# With the small torch and matplotlib, as a page has them.
CELLS = """
import sys
from collectives.draw.without_matplotlib import install; install()
from collectives.pretend.torch_module import install; install()
import helpers.exercise.page, collectives.draw.panels, collectives.draw.wait_graph
print(*(m.__file__ for n, m in sys.modules.items() if n.partition(".")[0] in ("collectives", "helpers")))
"""
DATA = [
    *(f"collectives/machines/{name}.csv" for name in ("gpus", "links", "models", "networks")),
    *(f"exercises/tasks/practice/{name}.py" for name in RUNNABLE),
]  # that these modules read


def from_npm(package: str, files: Sequence[str], kept: Path) -> Path | None:
    """The folder with these files of a package, fetched if they are not there.  None, and a printed reason, without.

    package: a name and a version, "pyodide@314.0.7".
    """
    folder = kept / package
    if all((folder / name).exists() for name in files):
        return folder
    if not shutil.which("npm"):
        print(f"There is no npm, and so no {package}. Install Node.js, then make site again.")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(["npm", "pack", "--silent", package], cwd=folder, capture_output=True, text=True)
    if packed.returncode:
        print(f"npm cannot fetch {package}.\n{packed.stderr}")
        return None
    archive = folder / packed.stdout.split()[-1]
    shutil.unpack_archive(archive, folder)
    for name in files:
        shutil.move(folder / "package" / name, folder / name)
    shutil.rmtree(folder / "package")
    archive.unlink()
    return folder


def serve(kept: Path, folder: Path) -> int | None:
    """Put all that a page loads into a folder of the site.  Returns the number of bytes; None if there is no Python."""
    source = from_npm(PYODIDE, FILES, kept)
    if source is None:
        print("Pages have no Python.")
        return None
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(source / name, folder)
    shutil.copy(WORKER, folder)
    loaded = set()
    for script in (SCRIPT, CELLS):
        modules = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
        loaded |= set(modules.stdout.split())
    with zipfile.ZipFile(folder / "collectives.zip", "w", zipfile.ZIP_DEFLATED) as library:
        for name in [*sorted(loaded), *(ROOT / name for name in DATA)]:
            library.write(name, Path(name).resolve().relative_to(ROOT.resolve()))
    return sum(file.stat().st_size for file in folder.iterdir() if file.name not in (WORKER.name, FILES[0]))
