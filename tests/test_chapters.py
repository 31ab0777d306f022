"""Every chapter is whole, teaches what claims.md says, and works with any number of ranks."""

import ast
import inspect
import json
import re
from html.parser import HTMLParser

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.model import flatten
from tests import ROOT
from tests.kernels import LocalAsyncKernelManager
from tests.minutes import CHAPTERS, LONGEST, OPTIONAL, about, due, is_folded, minutes, said, tags
from tests.sampling import when

PAGES = sorted((ROOT / "notebooks").glob("[a-z]*.ipynb"))  # without a number
FOLDERS = ("notebooks", "exercises", "solutions")
NOTEBOOKS = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.ipynb"))]
GUIDES = [path for pattern in ("*.md", "[a-z]*/*.md") for path in sorted(ROOT.glob(pattern))]
PARTS = (
    "The mistakes? people make",
    "What it costs",
    "Where training uses it",
    "gloo and NCCL",
    "Recall",
    "Takeaways",
    "Next",
)
CLAIMS = {"0": 16, "1": 28, "2": 24, "3": 49}  # how many statements each series of claims.md has

every_page = pytest.mark.parametrize("path", CHAPTERS + PAGES, ids=lambda path: path.stem)
every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
every_full_chapter = pytest.mark.parametrize("path", CHAPTERS[1:], ids=lambda path: path.stem)  # 00 shows around


def read(path):
    return nbformat.read(path, as_version=4)


# --- what it teaches ----------------------------------------------------------------------


def claims(section):
    """id -> chapters, of one table of claims.md."""
    (text,) = [part for part in (ROOT / "tests" / "claims.md").read_text().split("\n## ") if part.startswith(section)]
    lines = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({row[0] for row in rows}) == len(rows), "an id stands there twice"
    return {id: chapters.split(", ") for id, _, chapters in rows}


def name(path):
    """What claims.md calls a chapter or another page."""
    return path.stem if path in PAGES else path.stem[:2]


@every_page
def test_each_claim_has_its_cell(path):
    there = {claim for cell in read(path).cells for claim in cell.metadata.get("claims", [])}
    due = {id for id, chapters in claims("Shown").items() if name(path) in chapters}
    assert due - there == set()
    assert there - set(claims("Shown")) == set(), "claims.md does not know these"


def test_no_claim_is_forgotten_or_in_both_tables():
    shown, later = claims("Shown"), claims("Later")
    assert set(shown) & set(later) == set()
    assert {id.split("-")[0] for id in {**shown, **later}} == {
        f"{series}.{number + 1}" for series, count in CLAIMS.items() for number in range(count)
    }
    present = {name(path) for path in CHAPTERS + PAGES}
    assert {chapter for chapters in shown.values() for chapter in chapters} <= present
    assert all(len(chapters) == 1 for chapters in later.values())


# --- its parts ----------------------------------------------------------------------------


@every_full_chapter
def test_has_the_parts_of_a_chapter(path):
    cells = read(path).cells
    opening = cells[0].source
    assert opening.startswith(f"# {path.stem[:2]} ")
    assert re.search(r"^- ", opening, re.MULTILINE), "what the reader will be able to do"
    assert re.search(r"\*\*Effort\b.*\d+ minutes", opening) and re.search(r"\*\*(The )?[Qq]uestion\b", opening)
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    headings = re.findall(r"^## (.+)$", prose, re.MULTILINE)
    assert [part for part in PARTS if not any(re.fullmatch(part, heading) for heading in headings)] == []
    assert headings[-1] == "Next"
    assert sum("predict" in tags(cell) for cell in cells) >= 3
    assert sum("raises-exception" in tags(cell) for cell in cells) >= 1


@every_chapter
def test_says_how_long_it_takes(path):
    """If this fails, `python -m tests.minutes` has the words for each head."""
    cells = read(path).cells
    assert said(cells) == due(cells)
    assert about(minutes(cells)[0]) <= LONGEST


def test_an_optional_section_is_counted_apart_with_the_sections_in_it():
    def text(heading, first="Words."):
        return nbformat.v4.new_markdown_cell(f"{heading}\n{first}\n" + "word " * 1000)

    kept, apart = text("## Core"), text("## More", f"{OPTIONAL}.*")
    both = nbformat.v4.new_markdown_cell(f"{apart.source}\n{text('### Within').source}\n{kept.source}")
    for cells in ([kept, apart, text("### Within"), kept], [kept, both]):
        spent = minutes([*cells, nbformat.v4.new_code_cell("x = 1\n" * 10)])
        assert [round(each) for each in spent] == [11, 10]  # the code is read with the core above it


POINTS = {  # the section with a chapter's main point
    "11": "Send while backward still runs",
    "12": "ZeRO 3: shard the parameters",
    "13": "Backward",
    "14": "The order is the schedule",
    "15": "Both ways, and backward",
    "16": "Around the ring",
    "17": "Data parallel: every rank needs everything",
    "20": "All in one table",
    "21": "A rule for each way",
}
MOST_CODE = 100  # lines before it, without what the reader types


@pytest.mark.parametrize("chapter", POINTS)
def test_a_chapter_comes_to_its_point(chapter):
    (path,) = [path for path in CHAPTERS if path.stem.startswith(chapter)]
    spent = 0
    for cell in read(path).cells:
        if cell.cell_type == "markdown" and re.search(
            rf"^##+ {re.escape(POINTS[chapter])}$", cell.source, re.MULTILINE
        ):
            assert spent <= MOST_CODE
            return
        typed = "raise NotImplementedError()" in cell.source or cell.source.startswith("check_practice(")
        shown = cell.cell_type == "code" and not is_folded(cell) and not typed
        spent += sum(bool(line.strip()) for line in cell.source.splitlines()) * shown
    raise AssertionError(f"{path.stem} has no section {POINTS[chapter]!r}")


def questions(paths):
    """The code of all cells that ask for a prediction."""
    return [cell.source for path in paths for cell in read(path).cells if "predict" in tags(cell)]


def test_questions_have_few_lines_of_their_own():
    """Per prediction: lines of code, and those of the call that asks. They may only fall."""
    cells = questions(CHAPTERS)
    calls = [
        node.end_lineno - node.lineno + 1
        for source in cells
        for node in ast.walk(ast.parse(re.sub("^%.*", "", source, flags=re.MULTILINE)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("ask", "predict")
    ]
    assert sum(calls) <= 3.42 * len(cells)
    assert sum(len(source.splitlines()) for source in cells) <= 9.71 * len(cells)
    training = questions([path for path in CHAPTERS if path.stem[:2] in POINTS])
    assert sum(len(source.splitlines()) for source in training) <= 3.5 * len(training)
    assert not any("world_size=1)" in source for source in cells), "ask() needs no ranks"


def test_a_fold_shows_the_code_of_the_library():
    (path,) = [path for path in CHAPTERS if path.stem.startswith("12")]
    (shown,) = [
        re.findall(r"```python\n(def flatten.*?)```", cell.source, re.DOTALL)
        for cell in read(path).cells
        if "def flatten" in cell.source
    ]
    code, ours = (ast.parse(text).body[0] for text in (*shown, inspect.getsource(flatten)))
    assert ast.unparse(code.body) == ast.unparse(ours.body[1:]), "all but its docstring"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_too_large_to_diff(path):
    for number, cell in enumerate(read(path).cells):
        assert len(json.dumps(cell.get("outputs", []))) <= 400_000, f"outputs of cell {number}"


# --- links --------------------------------------------------------------------------------


class References(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("href", "src") and value]


def targets(text):
    """Files that a Markdown text links to or shows; addresses and places within the page left out."""
    text = re.sub(r"(?ms)^(```|~~~).*?^\1|`[^`\n]*`", "", text)
    found = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"(?m)^\[[^\]]+\]:\s*(\S+)", text)
    found += References(text).found
    return [target.partition("#")[0] for target in found if not re.match(r"[a-z]+:|#", target)]


@pytest.mark.parametrize("path", NOTEBOOKS + GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    if path.suffix == ".md":
        texts = [path.read_text()]
    else:
        texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    missing = [target for text in texts for target in targets(text) if not (path.parent / target).exists()]
    assert missing == []


def test_links_are_found():
    text = '[a](b.ipynb#c) ![d](e/f.png "g") <a href="h.md">i</a> <img src=\'j.png\'>\n[k]: l.md\n'
    text += "[m](https://n) [o](#p) `[q](r)`"
    assert sorted(targets(text)) == ["b.ipynb", "e/f.png", "h.md", "j.png", "l.md"]


# --- any number of ranks ------------------------------------------------------------------


def by_size():
    """One chapter with 3 ranks at each push, all with all sizes at night; as they are, 4 ranks."""
    for path in CHAPTERS:
        for world_size in (2, 3, 5, 6, 7, 8):
            marks = when(False, path.stem == "09_algorithms" and world_size == 3)
            yield pytest.param(path, world_size, marks=marks, id=f"{path.stem}-{world_size}")


@pytest.mark.parametrize("path, world_size", list(by_size()))
def test_works_with_other_world_sizes(path, world_size, tmp_path):
    notebook, replaced = read(path), 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source, times = re.subn(r"(?m)^WORLD_SIZE = \d+", f"WORLD_SIZE = {world_size}", cell.source)
            replaced += times
    assert replaced == 1
    resources = {"metadata": {"path": str(tmp_path)}}
    # Cells tagged raises-exception may fail, any other failure is raised here.
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        kernel_manager_class=LocalAsyncKernelManager,
        resources=resources,
    ).execute()
    for cell in notebook.cells:
        if "raises-exception" in tags(cell):
            assert any(output.output_type == "error" for output in cell.outputs), cell.source


LESSON = ("Ask", "Predict", "Draw", "Type", "Stumbles", "Leave out")


def with_headings(cells):
    """Each cell, and the headings that it is under, without markup.  A bare "Your turn" belongs to what it follows."""
    above = {}
    for cell in cells:
        for marks, heading in re.findall(r"^(#+) (.+)$", cell.source, re.MULTILINE) * (cell.cell_type == "markdown"):
            if heading != "Your turn":
                above = {level: text for level, text in above.items() if level < len(marks)}
                above[len(marks)] = heading.replace("`", "").lstrip("0123456789. ")
                yield cell, set(above.values())
        yield cell, set(above.values())


def test_a_lesson_is_half_a_page_and_names_sections_that_its_chapter_has():
    lessons = (ROOT / "exercises" / "LESSONS.md").read_text(encoding="utf-8").replace("`", "")
    planned = re.findall(r"^## (\d\d) [^\n]*, (\d+) minutes\n(.*?)(?=^## |\Z)", lessons, re.MULTILINE | re.DOTALL)
    assert [chapter for chapter, _, _ in planned] == [path.stem[:2] for path in CHAPTERS]
    for path, (_, whole, lesson) in zip(CHAPTERS, planned):
        placed = list(with_headings(nbformat.read(path, as_version=4).cells))
        predicted = [above for cell, above in placed if "predict" in tags(cell)]
        typed = [above for cell, above in placed if cell.source.startswith("check_practice(")]
        said = re.findall(r"^- \*\*([\w ]+)\*\*(?: \((\d+) minutes\))?:(.*?)(?=^- |\Z)", lesson, re.MULTILINE | re.DOTALL)
        assert tuple(label for label, _, _ in said) == LESSON and 150 <= len(lesson.split()) <= 230, path.stem
        assert int(whole) == sum(int(minutes or 0) for _, minutes, _ in said), path.stem
        named = {label: re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", " ".join(words.split())) for label, _, words in said}
        headings = set().union(*(above for _, above in placed))
        found = {name: [h for h in headings if h.startswith(name.rstrip("?"))] for names in named.values() for name in names}
        assert [name for name, those in found.items() if not those] == [], path.stem
        asked = [name for name in named["Predict"] if any(above & {*found[name]} for above in predicted)]
        sections = {tuple(sorted(above)) for above in predicted}
        assert len(asked) >= min(3, len(sections)), (path.stem, named["Predict"])
        tasks = [name for name in named["Type"] if not any(above & {*found[name]} for above in typed)]
        assert named["Type"] and tasks == [], (path.stem, tasks)


@pytest.mark.parametrize("path", CHAPTERS[1:], ids=lambda path: path.stem)
def test_three_predictions_are_not_to_be_skipped(path):
    marked = [cell.source.count("*(Don't skip this one.)*") for cell in read(path).cells if cell.cell_type == "markdown"]
    assert sum(marked) == 3


def test_the_stored_progress_lists_every_chapter_and_exercise():
    shown = read(ROOT / "notebooks" / "your_tools.ipynb").cells[-1].outputs[0].data["text/plain"]
    exercises = [path.stem for path in NOTEBOOKS if path.parent.name == "exercises"]
    assert re.findall(r"^  (\d\d_\w+) ", shown, re.MULTILINE) == [path.stem for path in CHAPTERS] + exercises
