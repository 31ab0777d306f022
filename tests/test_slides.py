"""Every chapter gives slides: its question, its pictures with what they show, its takeaways."""

import re

import nbformat
import pytest
from nbconvert import SlidesExporter

from helpers.course import NOTEBOOKS
from tools.slides import slides

CHAPTERS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_has_slides(path):
    first, *between, last = slides(nbformat.read(path, as_version=4)).cells
    assert re.fullmatch(r"# .+\n\n\*\*Question\*\*(.|\n)*[.?)]", first.source)
    assert re.match(r"## Takeaways\n+- \S", last.source)
    said, shown = between[::2], between[1::2]
    assert len(said) == len(shown) >= 2
    for words, picture in zip(said, shown):
        assert re.match(r"## .+\n\n\S.*[.:?!)`*]$", words.source), words.source
        assert len(picture.outputs) == 1 and picture.metadata["slideshow"]["slide_type"] == "-"


def test_cells_with_the_tag_are_taken_instead():
    chapter = nbformat.read(CHAPTERS[1], as_version=4)
    chapter.cells[3].metadata["tags"] = ["slide"]
    assert [cell.source for cell in slides(chapter).cells] == [chapter.cells[3].source]


def test_slides_are_a_page_that_begins_with_the_title():
    html, _ = SlidesExporter(exclude_input=True).from_notebook_node(slides(nbformat.read(CHAPTERS[1], as_version=4)))
    assert html.count("<section") > 5 and "Reveal.initialize" in html
