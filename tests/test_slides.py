"""Every chapter gives slides: its question, its pictures with what they show, its takeaways."""

import re

import nbformat
import pytest

from helpers.course import NOTEBOOKS
from tools.slides import page, slides

CHAPTERS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_has_slides(path):
    first, *between, last = slides(nbformat.read(path, as_version=4)).cells
    assert re.fullmatch(r"# .+\n\n\*\*Question\*\*(.|\n)*[.?)]", first.source)
    assert re.match(r"## Takeaways\n+- \S", last.source)
    assert sum(cell.cell_type == "code" for cell in between) >= 2
    for cell, before in zip(between, [first, *between]):
        if cell.cell_type == "markdown":
            assert re.match(r"## .+\n\n(.|\n)*[.:?!)`*]$", cell.source), cell.source
        else:
            assert before.cell_type == "markdown" and len(cell.outputs) == 1
            assert cell.metadata["slideshow"]["slide_type"] == "-"


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_question_has_a_slide_of_its_own_before_its_answer(path):
    cells = slides(nbformat.read(path, as_version=4)).cells
    asked = [k for k, cell in enumerate(cells) if "**Predict.**" in cell.source]
    assert len(asked) >= 2
    assert all(cells[k + 1].cell_type == "markdown" for k in asked), "what comes next begins a slide of its own"


def test_cells_with_the_tag_are_taken_instead():
    chapter = nbformat.read(CHAPTERS[1], as_version=4)
    chapter.cells[3].metadata["tags"] = ["slide"]
    assert [cell.source for cell in slides(chapter).cells] == [chapter.cells[3].source]


def test_slides_are_a_page_that_begins_with_the_title_and_needs_no_network():
    made = slides(nbformat.read(CHAPTERS[1], as_version=4))
    html = page("01", made.cells)
    assert html.count("<section>") == sum(cell.metadata["slideshow"]["slide_type"] == "slide" for cell in made.cells)
    assert html.count("<img ") == sum(cell.cell_type == "code" for cell in made.cells)
    assert re.search(r"<section><div>\s*<h1", html) and "<h2" in html
    loaded = re.findall(r"""<(?:script|img|link|iframe)[^>]*?(?:src|href)=["']([^"']{,20})|(@import.{9})|url\((.{9})""", html)
    assert all(address.startswith("data:") for address, *rest in loaded) and not any(any(rest) for _, *rest in loaded)
    assert "<var>e<sup>x</sup></var>" in page("08", slides(nbformat.read(CHAPTERS[8], as_version=4)).cells)
