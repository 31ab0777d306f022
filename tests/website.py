"""The website as `make site` builds it, with a page more: a notebook executed now, whose figures play."""

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests import ROOT

PLAYED = [
    """\
import torch
import torch.distributed as dist

from helpers import costs, explore, predict, run, step
from collectives.algorithms import ring_all_reduce


def chain():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(3.0) if rank == 0 else torch.zeros(3)
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < n - 1:
        dist.send(x, rank + 1)


def add_up():
    x = torch.full((2,), 7100.0 + 111 * dist.get_rank())
    dist.all_reduce(x)
    return x


def deserted():
    if dist.get_rank() == 0:
        dist.barrier()""",
    "step(ring_all_reduce(4))",
    "step(run(chain, world_size=4))",
    "predict(add_up, world_size=3)",
    'predict(deserted, ask="verdict", world_size=2)',
    'predict(deserted, ask="waits", world_size=2)',
    "explore()",
    "costs()",
    "run(add_up, world_size=8)",
]


class Page(HTMLParser):
    """What a page holds: links, the places they can lead to, headings, pictures and their words, code cells, folded outputs."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links, self.places, self.headings, self.alts = [], set(), [], []
        self.cells = self.folded = self.pictures = 0
        self.next = None  # where its last link leads, to the page that follows
        self._heading = False
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.places.add(value)
        known = dict(attributes)
        classes = (known.get("class") or "").split()
        if tag == "img" and "only-dark" not in classes:
            self.alts.append(known.get("alt") or "")
            self.pictures += not self.alts[-1].endswith(", continued")
        if tag == "a" and "next-page" in classes:
            self.next = known["href"]
        if tag in ("h1", "h2"):
            self.headings.append("")
        self._heading = tag in ("h1", "h2") or self._heading and "headerlink" not in classes
        self.cells += "cell_input" in classes or classes in (
            ["live", "write"],
            ["live", "puzzle"],
            ["live", "runnable"],
        )
        self.folded += tag == "details" and "hide" in classes

    def handle_endtag(self, tag):
        self._heading = self._heading and tag not in ("h1", "h2")

    def handle_data(self, data):
        if self._heading:
            self.headings[-1] += data


def build(folder: Path) -> Path | str:
    """The folder of a site, built in a copy of the course with an environment of its own; or why it cannot be."""
    course = folder / "course"
    shutil.copytree(ROOT, course, ignore=shutil.ignore_patterns(".*", "_site", "__pycache__", "screenshots"))
    played = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# Played"), *map(nbformat.v4.new_code_cell, PLAYED)]
    )
    NotebookClient(played, timeout=120).execute()
    nbformat.write(played, course / "notebooks" / "98_played.ipynb")

    made, rule = ROOT / ".venv-site" / "made", ROOT / "Makefile"
    if made.exists() and made.stat().st_mtime > rule.stat().st_mtime:  # make would empty an older one
        (course / ".venv-site").symlink_to(ROOT / ".venv-site")

    def make(target):
        return subprocess.run(["make", target, f"PYTHON={sys.executable}"], cwd=course, capture_output=True, text=True)

    environment = make(".venv-site/made")
    if environment.returncode:
        why = [line for line in environment.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        return f"Sphinx cannot be installed here: {why[-1]}"
    built = make("site")
    assert built.returncode == 0 and "WARNING: " not in built.stderr.replace("WARNING: Location", ""), built.stderr
    return course / "_site"
