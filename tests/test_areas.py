"""The table of what a change needs: every file has a row, every row names tests that exist, and prose costs little."""

from fnmatch import fnmatch

import pytest

from tests import ROOT
from tests.areas import ALL, ALWAYS, AREAS, CHAPTER, ITSELF, SOLUTION, git, needed, path_of

FILES = (git("ls-files") or "").splitlines()


@pytest.mark.skipif(not FILES, reason="only a clone knows which files are the course's")
def test_every_file_has_a_row_and_every_row_a_file():
    assert [file for file in FILES if not any(fnmatch(file, pattern) for pattern in AREAS)] == []
    first = {next(pattern for pattern in AREAS if fnmatch(file, pattern)) for file in FILES}
    assert [pattern for pattern in AREAS if pattern not in first] == []


def test_rows_name_tests_that_exist_and_each_test_has_an_area():
    named = {test for tests in AREAS.values() if tests is not ALL for test in tests} | set(ALWAYS)
    assert {test for test in named - {ITSELF, CHAPTER, SOLUTION} if not (ROOT / path_of(test)).exists()} == set()


def test_what_a_change_needs():
    assert needed(["collectives/rank/tracer.py"]) is None
    assert needed(["notebooks/05_many_to_many.ipynb", "a/new/folder.txt"]) is None
    prose = needed(["README.md", "notebooks/watch_your_job.md", "notebooks/05_many_to_many.ipynb"])
    assert {"notebooks/05_many_to_many.ipynb", "tests/test_prose.py", "tests/browser/test_opened.py"} <= set(prose)
    assert {"tests/test_site.py", "tests/browser/test_website.py"} <= set(prose)
    costly = {"tests/test_exercises.py", "tests/test_score.py", "tests/test_recorder.py", "tests/test_ranks.py"}
    assert not (costly | {"tests/browser"}) & set(prose)
    assert {"tests/browser", "tests/test_step.py"} <= set(needed(["collectives/figures/web.py"]))
    assert {"tests/test_score.py", "tests/test_handed_in.py"} <= set(needed(["grader/switch.py"]))
    assert "solutions/18_divide_a_model.ipynb" in needed(
        ["exercises/tasks/18_divide_a_model.py"]
    )  # it prints its cases
    assert "notebooks/07_groups.ipynb" in needed(["exercises/tasks/practice/07_groups.py"])
    assert "notebooks/gone.ipynb" not in needed(["notebooks/gone.ipynb"])
