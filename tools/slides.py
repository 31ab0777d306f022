"""make slides NB=notebooks/...: a chapter's question, its pictures with the sentences before each, and its takeaways.

A prediction has a slide without the answer, and then one with it.  A cell tagged "slide" begins a slide; where a chapter has no such cell, they are chosen as above.  A file of slides needs
nothing else, neither a network nor another file.
"""

import base64
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

import nbformat
from nbconvert.filters import markdown2html
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook

from .notebooks import stored_picture

FOLDER, DECK = Path("slides"), Path(__file__).with_name("deck")
ANSWER = re.compile(r"<summary>After the run[^<]*</summary>\s+(.+?)\n(?:\n|</details>)", re.DOTALL)  # a fold's first paragraph
QUESTION = re.compile(r"\*\*Predict\.\*\*(?:.|\n)+?(?=\n\n|\Z)")
ASIDE = "*(Don't skip this one.)* "
MOST_LINES = 16  # of a program that fits below its question
FORMULA = re.compile(r"\$([^$\n]+)\$")  # the few that slides have are powers and indices


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
    heading = sentences = question = takeaways = ""
    for k, cell in enumerate(chapter.cells[1:], 1):
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^##+ (.+)", cell.source, re.MULTILINE) or [heading])[-1]
            sentences = _last_sentences(QUESTION.sub("", cell.source)) or sentences
            question = (QUESTION.findall(cell.source) or [question])[-1]
            if found := re.search(r"^## Takeaways.*?(?=^## |\Z)", cell.source, re.MULTILINE | re.DOTALL):
                takeaways = found[0].strip()
            continue
        shown = [output for output in cell.outputs if stored_picture(output)]
        if question and "predict" in cell.metadata.get("tags", ()):
            program = re.split(r"^(?:predict|ask)\(", cell.source, flags=re.MULTILINE)[0].strip()
            code = f"\n\n```python\n{program}\n```" if 0 < program.count("\n") < MOST_LINES else ""
            yield new_markdown_cell(f"## {heading}\n\n{question.replace(ASIDE, '')}{code}")
            below = "".join(part.source for part in chapter.cells[k + 1 : k + 3] if part.cell_type == "markdown")
            answer, question = ANSWER.search(below), ""
            if answer or shown:
                yield new_markdown_cell(f"## {heading}\n\n{answer[1] if answer else _last_sentences(below) or sentences}")
        elif shown:
            yield new_markdown_cell(f"## {heading}\n\n{sentences}")
        if shown:
            picture = nbformat.from_dict(cell)
            picture.outputs, picture.source, picture.metadata["slide_type"] = shown[:1], "", "-"
            yield picture
    if takeaways:
        yield new_markdown_cell(takeaways)


def page(title: str, cells: list[NotebookNode]) -> str:
    """The slides as a page of HTML, which the keys of any presenter turn."""
    parts: list[list[str]] = []
    for cell in cells:
        if cell.metadata["slideshow"]["slide_type"] != "-" or not parts:
            parts.append([])
        parts[-1].append(_markdown(cell.source) if cell.cell_type == "markdown" else _outputs(cell))
    sections = "\n".join(f"<section><div>{''.join(part)}</div></section>" for part in parts)
    style, script = ((DECK / name).read_text(encoding="utf-8") for name in ("deck.css", "deck.js"))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style><main>{sections}</main><output></output><script>{script}</script></html>\n"
    )


def _markdown(source: str) -> str:
    return markdown2html(FORMULA.sub(_formula, source))


def _formula(match: re.Match) -> str:
    powers = re.sub(r"\^(?:\{([^{}]+)\}|(\w))", r"<sup>\1\2</sup>", match[1])
    indices = re.sub(r"_(?:\{([^{}]+)\}|(\w))", r"<sub>\1\2</sub>", powers)
    return f"<var>{indices}</var>"


def _outputs(cell: NotebookNode) -> str:
    """A cell's pictures, or else its text."""
    parts = []
    for output in cell.outputs:
        if picture := stored_picture(output):
            data, alt = base64.b64encode(picture.png).decode(), escape(picture.alt)
            parts.append(f'<img src="data:image/png;base64,{data}" alt="{alt}">')
        elif text := output.get("text") or output.get("data", {}).get("text/plain"):
            parts.append(f'<pre tabindex="0">{escape("".join(text))}</pre>')
    return "".join(parts)


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
    for name in map(Path, names):
        made = slides(nbformat.read(name, as_version=4))
        html = page(re.match(r"# (.+)", made.cells[0].source + "\n# Slides")[1], made.cells)
        path = FOLDER / f"{name.stem}.slides.html"
        path.write_text(html, encoding="utf-8")
        print(f"{path}: {len(made.cells)} cells of slides")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
