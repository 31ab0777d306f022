"""The twelve puzzles: the website offers what was run, and says of each line what it deserves."""

import json
import re

import nbformat
import pytest

from helpers.exercise.tasks import PRACTICE
from helpers.views.web import LACKS, PUZZLES
from tests import ROOT
from tests.corpus.puzzle_lines import WRONG_LINES
from tests.pretended import TORCH
from tools.frames import PAGE, frames
from tools.puzzles import MODULE, recording
from tools.specifications import FOLDER, before_and_after, specifications

TASKS, CHOICES = PRACTICE[PAGE], json.loads(PUZZLES.read_text(encoding="utf-8"))


def right_lines():
    """The line folded below each puzzle."""
    cells = nbformat.read(ROOT / "notebooks" / f"{PAGE}.ipynb", as_version=4).cells
    found = {}
    for name, frame in frames().items():
        before, after = frame.split(LACKS)
        (answer,) = [cell.source for cell in cells if f"```python\n{before}" in cell.source]
        (found[name],) = re.findall(re.escape(before) + "(.*)" + re.escape(after), answer)
    return found


def test_each_puzzle_offers_its_right_line_and_the_mistakes_that_are_told_apart():
    right = right_lines()
    assert list(frames()) == list(right) == list(MODULE.LINES) == [task.name for task in TASKS]
    for name, lines in MODULE.LINES.items():
        assert sorted(lines) == sorted([right[name], *WRONG_LINES[name]])
        assert lines[0] != right[name]


def test_what_the_website_plays_belongs_to_these_lines():
    for name, line in right_lines().items():
        key = CHOICES[name]["key"]
        assert CHOICES[name]["options"] == list(MODULE.LINES[name])
        assert key["wants"][0][0]["value"] == line and "picture" in key["outcomes"][line]
        assert set(key["reasons"]) == set(WRONG_LINES[name])
        assert all(re.search(words, key["reasons"][wrong]) for wrong, words in WRONG_LINES[name].items())


@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=[pytest.mark.slow] * (k > 0), id=task.name) for k, task in enumerate(TASKS)],
)
def test_a_run_of_each_line_is_still_what_was_recorded(task):
    assert without_pictures(recording(task)) == without_pictures(CHOICES[task.name])


def without_pictures(recorded):
    """A recording's words.

    Buffers of pickled objects end in whatever was in their memory before: not that, nor its width.  A newer torch has
    its own words for errors, and brings objects by calls that take one tensor: there, the heading of such a call.
    """
    outcomes = recorded["key"]["outcomes"]
    said = {line: {"text": words(came["text"]), "prose": came["prose"]} for line, came in outcomes.items()}
    return json.loads(json.dumps(recorded | {"key": recorded["key"] | {"outcomes": said}}))


def words(text):
    if TORCH > (2, 13):
        text = re.sub(r"RuntimeError: [^\n]*", "RuntimeError", text)
        return re.findall(r"(\w+?)(?:_single)?, (ranks [^\n]*)", text) if "uint8" in text else text
    return " ".join(re.sub(r"\.\.\. \d+ \d+ \d+", "...", text).split()) if "uint8" in text else text


def test_each_puzzle_shows_what_its_reference_gives():
    cells = nbformat.read(ROOT / "notebooks" / f"{PAGE}.ipynb", as_version=4).cells
    for name, picture in specifications().items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == picture.svg() + "\n"
        assert any(f"![{picture.alt}](images/puzzles/{name}.svg)" in cell.source for cell in cells)


def test_an_output_has_the_color_of_its_source_or_is_black():
    pictures = specifications()
    assert pictures["pass_right"].text == "1, 2, 3, 4 -> 4, 1, 2, 3"
    before, after = before_and_after(TASKS[10], MODULE.INPUTS["before_me"])  # 0, 3, 4, 8: two of them are inputs too
    assert [[cell.origin for cell in row] for row in after] == [[None], [0], [None], [None]]
    assert [[cell.origin for cell in row] for row in before] == [[0], [1], [2], [3]]
