"""make slides NB=notebooks/...: a chapter's question, its pictures with the sentences before each, and its takeaways.

A cell tagged "slide" begins a slide; where a chapter has no such cell, they are chosen as above.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from .notebooks import stored_picture

FOLDER = Path("slides")


def slides(chapter: NotebookNode) -> NotebookNode:
    """A notebook whose cells are slides."""
    marked = [cell for cell in chapter.cells if "slide" in cell.metadata.get("tags", ())]
    cells = marked or list(_slides(chapter))
    for cell in cells:
        cell.metadata["slideshow"] = {"slide_type": cell.metadata.pop("slide_type", "slide")}
    return new_notebook(cells=cells, metadata=chapter.metadata)


def _slides(chapter: NotebookNode) -> Iterator[NotebookNode]:
    title = re.match(r"# .+", chapter.cells[0].source)[0]
    questions = (re.search(r"\*\*Question\*\*.*?(?=\n\n|\Z)", cell.source, re.DOTALL) for cell in chapter.cells)
    question = next((found[0] for found in questions if found), "")
    yield new_markdown_cell(f"{title}\n\n{question}")
    heading = sentences = takeaways = ""
    for cell in chapter.cells[1:]:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^##+ (.+)", cell.source, re.MULTILINE) or [heading])[-1]
            sentences = _last_sentences(cell.source) or sentences
            if found := re.search(r"^## Takeaways.*?(?=^## |\Z)", cell.source, re.MULTILINE | re.DOTALL):
                takeaways = found[0].strip()
        elif shown := [output for output in cell.outputs if stored_picture(output)]:
            yield new_markdown_cell(f"## {heading}\n\n{sentences}")
            picture = nbformat.from_dict(cell)
            picture.outputs, picture.source, picture.metadata["slide_type"] = shown[:1], "", "-"
            yield picture
    if takeaways:
        yield new_markdown_cell(takeaways)


def _last_sentences(source: str) -> str:
    """The last two sentences of the last paragraph that is plain text and not folded, or ""."""
    text = re.sub(r"^#+ .*|<details>(?s:.*?)</details>", "\n", source, flags=re.MULTILINE)
    plain = [part for part in map(str.strip, text.split("\n\n")) if part[:1].isalpha() or part[:1] in {"*", "`"}]
    words = " ".join(plain[-1].split()) if plain else ""
    return " ".join(re.split(r"(?<=[.?!:]) (?=[A-Z*`])", words)[-2:])


def main(names: list[str]) -> int:
    if not names:
        print("Name a chapter: make slides NB=notebooks/05_many_to_many.ipynb", file=sys.stderr)
        return 2
    if missing := [name for name in names if not Path(name).is_file()]:
        print(
            f"There is no {missing[0]}. Name a chapter: make slides NB=notebooks/05_many_to_many.ipynb", file=sys.stderr
        )
        return 2
    try:
        FOLDER.mkdir(exist_ok=True)
    except OSError as error:
        print(
            f"Slides cannot be written to {FOLDER}/ here: {error.strerror}. Copy the course to a folder of yours.",
            file=sys.stderr,
        )
        return 2
    exporter = SlidesExporter(exclude_input=True, exclude_input_prompt=True, exclude_output_prompt=True)
    for name in map(Path, names):
        made = slides(nbformat.read(name, as_version=4))
        html, _ = exporter.from_notebook_node(made, {"metadata": {"name": name.stem}})
        path = FOLDER / f"{name.stem}.slides.html"
        path.write_text(html, encoding="utf-8")
        print(f"{path}: {len(made.cells)} cells of slides")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
