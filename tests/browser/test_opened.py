"""Every chapter is opened and run to its end: the first at each push, all at night."""

import nbformat
import pytest

from tests.sampling import when

from .lab import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
END = 150_000  # ms: a chapter, where others work on the same cores


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=when(path.stem == "00_start_here"), id=path.stem) for path in CHAPTERS],
)
def test_a_chapter_runs_to_its_end(open_, path):
    notebook = open_(path)
    notebook.run_all(END)
    cells = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    meant = [k for k, cell in enumerate(cells) if "raises-exception" in cell.metadata.get("tags", [])]
    wrong = [k for k in notebook.failed() if k not in meant]
    assert wrong == [], "\n\n".join(notebook.cell(k).inner_text()[-800:] for k in wrong)
    asks = sum("\npredict(" in f"\n{cell.source}" for cell in cells)
    if asks:
        notebook.page.locator(".collectives button.run").nth(asks - 1).wait_for(state="attached")
    notebook.picture(f"chapter-{path.stem}")
