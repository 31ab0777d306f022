"""Makes notebooks/tour.ipynb, 90 minutes through the chapters, from their own cells:   python -m tools.tour   (make tour)

A cell takes part if its metadata has "tour": {}, or {"from": words, "to": words} for a part of its text. Outputs are the
chapters', so nothing is run. Headings go down a level: the tour's own are one per chapter.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers.course import NOTEBOOKS, chapters

from .notebooks import METADATA
from .release import text

TOUR = NOTEBOOKS / "tour.ipynb"
PUZZLES = NOTEBOOKS / "twelve_puzzles.ipynb"
HEAD = """# A tour in 90 minutes
The chapters' most telling cells, for those who have an evening and not a term. Each part names the chapter it comes from, which
has the rest: more examples, what it costs, the mistakes people make, and more tasks.

Click in a cell and press **Shift + Enter**. Where you're asked to **predict**, do: a wrong guess shows you what you didn't know
yet. The last part is your exam, six puzzles.

(If the first cell fails, type `make check` in a terminal, in the course folder. It reports what's missing and what to do.)"""
EXAM = "Six functions, each with one line missing. All ranks call it together. You've met every call that you need."
TAIL = """## What's next
That was the heart of it. From here, go to
- [Your tools](your_tools.ipynb) and [01 Ranks](01_ranks.ipynb), and on through the chapters, if you want all of it;
- [18 When it hangs](18_when_it_hangs.ipynb), if you have a job that does;
- [10 What it costs](10_what_it_costs.ipynb), [12](12_sharded_data_parallel.ipynb), [13](13_tensor_parallel.ipynb),
  [20](20_one_model_every_way.ipynb) and [21](21_prices_and_a_plan.ipynb), if you have to choose how to train a large model;
- [the other six puzzles](twelve_puzzles.ipynb)."""


def tour() -> NotebookNode:
    """The notebook, with the chapters' outputs."""
    pages = [(path, nbformat.read(path, as_version=4)) for path in (*chapters(), PUZZLES)]
    parts = [(path, page, list(_cells(path, page))) for path, page in pages]
    parts = [part for part in parts if part[2]]
    cells = [_text("tour-head", HEAD), _imports([page for _, page, _ in parts])]
    for path, page, taken in parts:
        cells += [_text(f"tour-{path.stem.replace('_', '-')}", _opening(path, page)), *taken]
    cells.append(_text("tour-tail", TAIL))
    for number, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
    return new_notebook(cells=cells, metadata=METADATA)


def _text(name: str, words: str) -> NotebookNode:
    return new_markdown_cell(words, id=name)


def _opening(path: Path, page: NotebookNode) -> str:
    """A part's heading."""
    title = re.match(r"# (?:\d\d )?(.+)", page.cells[0].source)[1]
    if path == PUZZLES:
        return f"## Your exam\n{EXAM}"
    return f"## {title}\n*From [chapter {path.stem[:2]}]({path.name}).*"


def _imports(pages: list[NotebookNode]) -> NotebookNode:
    """The chapters' imports, from their first cell of code, once, and the number of ranks."""
    names: dict[str | None, set[str]] = {}
    for page in pages:
        first = next(cell.source for cell in page.cells if cell.cell_type == "code")
        for node in ast.parse(first).body:
            if isinstance(node, ast.ImportFrom):
                names.setdefault(node.module, set()).update(alias.name for alias in node.names)
    lines = [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(names.items())]
    source = "\n".join(["import torch", "import torch.distributed as dist", "", *lines, "", "WORLD_SIZE = 4"])
    return new_code_cell(source, id="tour-imports")


def _cells(path: Path, page: NotebookNode) -> Iterator[NotebookNode]:
    """The cells of a page that take part, as they are in the tour."""
    exam = 0  # puzzles so far
    for cell in page.cells:
        part = cell.metadata.get("tour")
        if part is None:
            continue
        taken = nbformat.from_dict(cell)
        taken.metadata.pop("claims", None)
        taken.metadata.pop("tour")
        if cell.cell_type == "markdown":
            start = cell.source.index(part["from"]) if "from" in part else 0
            stop = cell.source.index(part["to"], start) if "to" in part else None
            words = cell.source[start:stop].strip()
            words = re.sub(r"^(##+ )", r"#\1", words, flags=re.MULTILINE)
            words, headings = re.subn(r"^### \d+\.", f"### {exam + 1}.", words)
            exam += headings
            taken.source = re.sub(r"\]\(#", f"]({path.name}#", words)
        yield taken


def main() -> int:
    made = text(tour())
    before = TOUR.read_text(encoding="utf-8") if TOUR.exists() else ""
    TOUR.write_text(made, encoding="utf-8")
    print(f"{TOUR.name}: {'as before' if made == before else 'made'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
