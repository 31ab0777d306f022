"""Builds the course as a website, for reading without running:   make site

Sphinx with MyST-NB makes the pages from the notebooks as they are stored; nothing is run.
They come out in _site/, to be opened or served from any folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_site"
FOLDERS = ("notebooks", "exercises")  # as pages, in this order; links between them stay as they are
SETTINGS = """\
project = "Collectives"
extensions = ["myst_nb", "sphinx_copybutton"]
html_theme = "furo"
html_title = "Collectives"
html_theme_options = {"navigation_with_keys": True}
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "text"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
# Links to files that are not pages (tests, a licence) lead to the repository, not the site.
suppress_warnings = ["myst.xref_missing", "mystnb.unknown_mime_type", "misc.highlighting_failure"]
copybutton_exclude = ".linenos, .gp"
"""


def contents(folder: str) -> str:
    pages = sorted(path.stem for path in (ROOT / folder).glob("*.ipynb"))
    lines = [f"{folder}/{page}" for page in pages]
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {folder.title()}", "", *lines, "```"])


def fold_predictions(notebook: Path) -> None:
    """What a reader is to predict shows only on a click, as in JupyterLab."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["metadata"].get("jupyter", {}).get("outputs_hidden"):
            cell["metadata"]["tags"] = [*tags, "hide-output"]
    notebook.write_text(json.dumps(content), encoding="utf-8")


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        source, made = Path(place, "source"), Path(place, "site")
        source.mkdir()
        (source / "conf.py").write_text(SETTINGS, encoding="utf-8")
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns(".*", "*.py", "README.md"))
            for notebook in (source / folder).glob("*.ipynb"):
                fold_predictions(notebook)
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        index = "\n\n".join(
            [
                readme,
                *map(contents, FOLDERS),
                "```{toctree}\n:hidden:\n:caption: Tables\n\nnotebooks/mistakes\nnotebooks/bench\n```",
            ]
        )
        (source / "index.md").write_text(index, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-b",
            "html",
            "-q",
            "--keep-going",
            "-d",
            f"{place}/cache",
            str(source),
            str(made),
        ]
        done = subprocess.run(command).returncode
        if done == 0:
            shutil.rmtree(SITE, ignore_errors=True)
            shutil.move(made, SITE)
    if done == 0:
        print(f"The course is in {SITE.relative_to(ROOT)}/index.html")
    return done


if __name__ == "__main__":
    sys.exit(main())
