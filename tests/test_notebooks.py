"""`make notebooks`: what it saves, and which notebooks it and `make test` refuse."""

import ast
import builtins
import json
import re
from html import unescape

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers.course import EXERCISES
from tests.minutes import minutes
from tools import notebooks, tour


def write(path, *sources, **metadata):
    nbformat.write(new_notebook(cells=[new_code_cell(s) for s in sources], metadata=metadata), path)
    return path


@pytest.mark.slow
def test_saves_the_outputs_of_a_fresh_run_and_nothing_else(tmp_path):
    source = "from helpers import run\nfrom ipywidgets import IntSlider\nIntSlider(3)"
    path = write(tmp_path / "a.ipynb", source, "print(1, flush=True)\nprint(2)", widgets={"state": {}})
    assert notebooks.problems(path)
    assert notebooks.main([str(path)]) == 0
    assert notebooks.problems(path) == []
    saved = path.read_bytes()
    widget, printed = (cell["outputs"] for cell in json.loads(saved)["cells"])
    assert list(widget[0]["data"]) == ["text/plain"]
    assert [output["text"] for output in printed] == [["1\n", "2\n"]]
    notebooks.main([str(path)])
    assert path.read_bytes() == saved


@pytest.mark.slow
def test_a_failing_cell_leaves_the_file_alone(tmp_path, capsys):
    path = write(tmp_path / "a.ipynb", "print(1)", "1 / 0")
    before = path.read_bytes()
    assert notebooks.main([str(path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "blemish, said",
    [
        (dict(execution_count=None), "not executed"),
        (dict(execution_count=7), "not executed in order"),
        (dict(metadata={"execution": {"iopub.status.busy": "2020-01-01"}}), "front end"),
        (dict(outputs=[new_output("stream", name="stderr", text="oh")]), "stderr"),
        (dict(outputs=[new_output("stream", text="in /home/someone/course/a.py")]), "path of this machine"),
        (dict(outputs=[new_output("stream", text="UserWarning: old")]), "a warning (UserWarning)"),
        (dict(outputs=[new_output("display_data", {"text/plain": "<object at 0x7fb8c0ffee>"})]), "address in memory"),
        (dict(outputs=[new_output("error", ename="KeyError", evalue="1", traceback=[])]), "unexpected KeyError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_what_is_wrong(tmp_path, blemish, said):
    printed = new_output("stream", text="/dev/null, rank 0: Warnings off\n")
    clean = dict(source="1", execution_count=1, outputs=[printed])
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(**clean)], metadata=notebooks.METADATA), path)
    assert notebooks.problems(path) == []
    nbformat.write(new_notebook(cells=[new_code_cell(**clean | blemish)], metadata=notebooks.METADATA), path)
    (problem,) = notebooks.problems(path)
    assert said in problem


# --- what a folded output shows -----------------------------------------------------------

CHAPTERS = sorted(notebooks.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
SHOWN = [*notebooks.every(), *sorted(EXERCISES.glob("*.ipynb"))]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_folded_output_shows_a_question_or_a_heading_and_no_answer(path):
    told = []
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code" and notebooks.is_hidden(cell):
            line = notebooks.first_line(cell)
            if not (line.endswith("?") or "?  " in line or "? (" in line or line in cell.source):
                told.append(line)
            if not cell.metadata.get("collapsed"):
                told.append(f"opening it changes the file: {cell.source[:60]}")
    assert told == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_viewer_that_folds_no_outputs_shows_of_a_prediction_the_question_and_what_it_is_about(path):
    """GitHub and VS Code: their pages are as nbconvert's, without styles and scripts."""
    chapter = nbformat.read(path, 4)
    chapter.cells = [cell for cell in chapter.cells if any(map(asks, cell.get("outputs", ())))]
    page, _ = HTMLExporter(template_name="basic", exclude_input=True).from_notebook_node(chapter)
    seen = unescape(re.sub(r"<details>.*?</details>|<.*?>", "", page, flags=re.DOTALL))
    questions = [cell.outputs[0].data["text/plain"].partition("\n")[0] for cell in chapter.cells]
    given = [line for line in map(str.rstrip, seen.splitlines()) if re.match(r"  (rank|\d+\*?) ", line)]
    asked = [cell.outputs[0].metadata["collectives"] for cell in chapter.cells]
    assert [line for line in seen.splitlines() if line.strip() and line.rstrip() not in given] == questions
    assert len(given) == sum(1 + len(each["rows"]) for each in asked if each["before"])
    assert all(re.search(r"->[ _]*$", line) for line in given if not line.startswith("  rank")), (
        "an answer is filled in"
    )
    assert page.count("<details>") == len(questions)


def asks(output):
    """Whether an output is a prediction's."""
    return output.get("metadata", {}).get("collectives", {}).get("kind") == "predict"


def test_the_line_of_a_folded_output_is_the_one_that_jupyterlab_takes():
    empty = new_output("display_data", {"text/plain": "\n"})
    picture = new_output("display_data", {"image/png": "", "text/plain": "Picture: who waits"})
    words = new_output("display_data", {"text/plain": "\n  How does it end?\n  Stuck"})
    assert notebooks.first_line(new_code_cell("", outputs=[words, picture])) == "How does it end?"
    assert notebooks.first_line(new_code_cell("", outputs=[picture, words])) == "Picture: who waits"
    assert notebooks.first_line(new_code_cell("", outputs=[empty, words])) == ""


def test_folded_in_both_ways_of_saying_it():
    folded = new_code_cell("", metadata={"jupyter": {"outputs_hidden": True}})
    unfolded = new_code_cell("", metadata={"collapsed": True})
    for cell in (folded, unfolded):
        notebooks.fold(cell)
    assert folded.metadata["collapsed"] is True and "collapsed" not in unfolded.metadata


# --- the tour -----------------------------------------------------------------------------


def test_the_tour_is_what_the_chapters_say():
    """If this fails: make tour."""
    stored = nbformat.read(tour.TOUR, 4)
    assert [(cell.id, cell.source) for cell in stored.cells] == [(c.id, c.source) for c in tour.tour().cells]


def test_the_tour_defines_all_that_it_uses_and_takes_90_minutes():
    cells = nbformat.read(tour.TOUR, 4).cells
    known, missing = {*dir(builtins)}, []
    for cell in (cell for cell in cells if cell.cell_type == "code"):
        nodes = list(ast.walk(ast.parse(cell.source)))
        known |= {node.name.split(".")[0] for node in nodes if isinstance(node, (ast.FunctionDef, ast.alias))}
        known |= {node.asname for node in nodes if isinstance(node, ast.alias)}
        known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        missing += [(cell.id, node.id) for node in names if node.id not in known]
    assert missing == []
    assert 70 <= sum(minutes(cells)) <= 95
    typed = [k for k, cell in enumerate(cells, 1) if cell.source.startswith("check_practice(")]
    at = [0, *(sum(minutes(cells[:k])) for k in typed)]
    assert max(later - earlier for earlier, later in zip(at, at[1:])) <= 12.5  # minutes from a task's check to the next one's


# --- code that fits its cell --------------------------------------------------------------

LONGEST = 100  # columns: JupyterLab's window of 1280 pixels has no more, and what is longer is scrolled sideways


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_line_of_code_is_wider_than_its_cell(path):
    code = (cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code")
    assert [line for source in code for line in source.splitlines() if len(line) > LONGEST] == []


WIDER = {  # one output each
    "03_one_to_many": "a message of gloo's",
    "07_groups": "a verdict's row, with its line of code",
    "09_algorithms": "a step of a schedule",
    "18_when_it_hangs": "a table of dumps",
    "if_the_start_fails": "a message of torch's, for each variable",
}


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_line_that_is_printed_is_wider_than_its_cell(path):
    outputs = [output for cell in nbformat.read(path, 4).cells for output in cell.get("outputs", ())]
    seen = [each for each in outputs if each.output_type != "error" and {*each.get("data", ())} <= {"text/plain"}]
    printed = [each.get("text") or each.data["text/plain"] for each in seen]
    wide = [said for said in printed if max(map(len, said.splitlines()), default=0) > LONGEST]
    assert len(wide) == (path.stem in WIDER), wide


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_fold_without_an_empty_line_is_no_markdown(path):
    """What follows <summary> is HTML until the first empty line: backticks would be seen."""
    pages = "\n\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown")
    raw = re.findall(r"</summary> *\n?(?!\n)(.*?)(?=\n\n|</details>)", pages, re.DOTALL)
    assert [words for words in raw if re.search(r"`|\*\w|\]\(", words)] == []
