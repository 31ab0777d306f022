"""What a learner gets from `make grade`: points, the reason, and clear words for files that cannot be graded."""

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import nbformat
import pytest

from grader import __main__ as grade
from helpers import progress
from helpers.course import ROOT, SOLUTIONS
from helpers.exercise.notebook import without_solution
from tests.corpus.cells import MEAN, RIGHT, WRONG
from tools import release


def exercise(name=MEAN):
    """As a learner gets it, also where somebody has solved it in exercises/."""
    solution = nbformat.read(SOLUTIONS / f"{name}.ipynb", as_version=4)
    return json.loads(release.text(without_solution(solution)))


def cell(notebook, name):
    return next(c for c in notebook["cells"] if c["id"] == name)


def saved(path, notebook):
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))
    return path


def answered(path, source):
    notebook = exercise()
    cell(notebook, "mean-answer")["source"] = source
    return saved(path, notebook)


def graded(path, *options):
    return grade.main([str(path), "--progress", str(path.with_name("progress.json")), *options])


@pytest.mark.slow
def test_a_wrong_answer_gets_its_reason(tmp_path, capsys):
    path = answered(tmp_path / "mine.ipynb", WRONG)
    before = path.read_bytes()
    assert graded(path) == 0
    said = capsys.readouterr().out
    assert "0 of 3 points" in said and "Think: this is the sum" in said and "open the next of the hints" in said
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_right_answer_gets_its_points_and_what_the_file_says_about_itself_none(tmp_path, capsys):
    path = tmp_path / "mine.ipynb"
    notebook = json.loads(answered(path, RIGHT).read_text())
    for check in ("mean-check-values", "mean-check-budget"):
        cell(notebook, check)["source"] = "1 / 0"
        cell(notebook, check)["metadata"] = {"tags": ["nbval-skip"]}
    saved(tmp_path / "conftest.py", "raise SystemExit(3)")
    assert graded(saved(path, notebook)) == 0
    assert f"{MEAN}: 3 of 3 points, solved" in capsys.readouterr().out
    assert progress.recall(tmp_path / "progress.json") == {MEAN: {"points": 3, "best": 3, "of": 3, "tries": 0}}


@pytest.mark.slow
def test_an_answer_without_end_fails_in_time(tmp_path, capsys):
    path = answered(tmp_path / "mine.ipynb", "def distributed_mean(x):\n    while True:\n        pass")
    assert graded(path) == 0
    assert "out of time" in capsys.readouterr().out


def test_an_untouched_exercise_is_not_begun(tmp_path, capsys):
    assert graded(saved(tmp_path / "mine.ipynb", exercise())) == 0
    assert "02_distributed_mean: not begun. Write into the answer cell" in capsys.readouterr().out


@pytest.mark.slow
def test_all_exercises_end_in_one_table(tmp_path, capsys):
    for name in ("01_tree_broadcast", MEAN, "05_distributed_argmax", "10_find_the_crossover"):
        saved(tmp_path / f"{name}.ipynb", exercise(name))
    answered(tmp_path / f"{MEAN}.ipynb", RIGHT)
    slip = exercise("05_distributed_argmax")
    cell(slip, "argmax-answer")["source"] = "def distributed_argmax(x):\n    return ("
    saved(tmp_path / "05_distributed_argmax.ipynb", slip)
    again = str(tmp_path / ".." / tmp_path.name / f"{MEAN}.ipynb")  # has its line once
    assert grade.main([str(tmp_path), again, "--progress", str(tmp_path / "progress.json")]) == 0
    *_, zeroth, first, second, third, total, then = capsys.readouterr().out.splitlines()
    assert zeroth.startswith("· 01_tree_broadcast") and re.fullmatch(r"✓ 02_distributed_mean +3 of 3", first)
    assert re.fullmatch(r"✗ 05_distributed_argmax +0 of \d", second)
    assert re.fullmatch(r"· 10_find_the_crossover +0 of \d  not begun", third)
    assert re.fullmatch(r"  all +3 of \d+ points", total) and then == "Next: 05_distributed_argmax."
    saved(tmp_path / "cut.ipynb", "{")
    assert grade.main([str(tmp_path / "cut.ipynb"), str(tmp_path / "05_distributed_argmax.ipynb")]) == 2


@pytest.mark.slow
def test_an_answer_cell_that_ends_its_rank(tmp_path, capsys):
    assert graded(answered(tmp_path / "mine.ipynb", RIGHT + "\nimport os; os._exit(0)")) == 0
    said = capsys.readouterr().out
    assert "ended itself with exit code 0" in said and "0 of 3 points" in said


SLIPS = {
    "not Python": ("def distributed_mean(x)\n    return x", "not Python yet. Line 1: expected ':'"),
    "null": ("def distributed_mean(x):\n    return '\0'", "is a character that no program has"),
    "merged": (
        f"<<<<<<< local\n{RIGHT}\n=======\n{WRONG}\n>>>>>>> remote",
        r"line 1 of the answer cell is the mark of a merge",
    ),
    "newer": (
        "def distributed_mean(x):\n    return f'{x['a']}'" if sys.version_info < (3, 12) else "def f(",
        r"\(read by Python 3\.\d+",
    ),
    "renamed": ("def mean(x):\n    return x", "must define distributed_mean. It defines mean"),
}


@pytest.mark.slow
def test_a_slip_is_named(tmp_path, capsys):
    for name, (answer, _) in SLIPS.items():
        answered(tmp_path / f"{name}.ipynb", answer)
    assert grade.main([str(tmp_path), "--progress", str(tmp_path / "progress.json")]) == 0
    said = capsys.readouterr().out
    assert said.count("0 of 3 points") == len(SLIPS)
    for _, words in SLIPS.values():
        assert re.search(words, said), words


def unusable():
    plain, damaged, missing, twice, text = (exercise() for _ in range(5))
    cell(missing, "mean-answer").update(id="0badcafe", metadata={})
    missing["cells"].append(dict(cell(missing, "0badcafe"), id="1badcafe", source=WRONG))
    twice["cells"].append(copy.deepcopy(cell(twice, "mean-answer")))
    cell(text, "mean-answer")["cell_type"] = "markdown"
    gone = dict(plain, cells=[c for c in plain["cells"] if c["id"] != "mean-answer"])
    merged = json.dumps(damaged, indent=1).replace('"cells"', '<<<<<<< HEAD\n"cells"')
    yield "cut short", "mine.ipynb", json.dumps(plain)[:700], "damaged"
    yield "merged", "mine.ipynb", merged, "<<<<<<<"
    yield "no cells", "mine.ipynb", "[1, 2]", "no list of cells"
    yield "renamed", "mine.ipynb", missing, "There is a distributed_mean in cell 4"
    yield "missing", "mine.ipynb", gone, "answer cell of distributed_mean is missing"
    beside = exercise()
    beside["cells"] += [
        dict(cell(beside, "mean-answer"), id=f"{k}badcafe", metadata={}, source=s) for k, s in enumerate((RIGHT, WRONG))
    ]
    yield "beside", "mine.ipynb", beside, "is not the answer cell"
    yield "twice", "mine.ipynb", twice, "2 cells with the id mean-answer"
    yield "text", "mine.ipynb", text, "press Y"
    yield (
        "other",
        "05_distributed_argmax.ipynb",
        plain,
        "named like exercise 05_distributed_argmax, but holds 02",
    )
    yield "foreign", "mine.ipynb", dict(plain, cells=[]), "no exercise of this course"


@pytest.mark.parametrize("name, notebook, words", [pytest.param(*rest, id=what) for what, *rest in unusable()])
def test_a_file_that_cannot_be_graded_says_why(tmp_path, capsys, name, notebook, words):
    path = saved(tmp_path / name, notebook)
    before = path.read_bytes()
    assert graded(path) == 2
    assert words in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_copy_for_students_grades_as_soon_as_the_exercises_are_in_the_place_of_the_solutions(tmp_path):
    for folder in ("collectives", "helpers", "grader", "exercises"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "solutions").mkdir()

    def graded_there(*options):
        command = [sys.executable, "-m", "helpers.grade", "--progress", "progress.json", *options]
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    for options in (["exercises"], ["--score", "exercises"]):
        done = graded_there(*options)
        assert done.returncode == 2 and done.stderr.rstrip().endswith("them: cp exercises/*.ipynb solutions/")
    handed_out = exercise()
    saved(tmp_path / "solutions" / f"{MEAN}.ipynb", handed_out)
    path = tmp_path / "exercises" / f"{MEAN}.ipynb"
    assert "not begun" in graded_there(str(saved(path, handed_out))).stdout
    assert "3 of 3 points, solved" in graded_there(str(answered(path, RIGHT))).stdout


def test_a_file_that_does_not_exist(tmp_path, capsys):
    assert graded(tmp_path / "nowhere.ipynb") == 2
    assert "nowhere.ipynb cannot be read: No such file" in capsys.readouterr().err


def test_hints_open_one_after_the_other_until_points_are_gained(tmp_path):
    file = tmp_path / "progress.json"
    tries = [progress.remember(MEAN, points, 3, file)["tries"] for points in (0, 0, 2, 2, 0, 3)]
    assert tries == [1, 2, 0, 1, 2, 0]
    assert progress.recall(file)[MEAN] == {"points": 3, "best": 3, "of": 3, "tries": 0}
    file.write_text("{]")
    assert progress.recall(file) == {}


def test_progress_shows_itself():
    shown = repr(progress.Progress({MEAN: {"points": 0, "best": 2, "of": 3, "tries": 1}}))
    assert re.search(rf"{MEAN} +2 of 3 points", shown) and re.search("08_ring_all_reduce +not begun", shown)


def test_the_page_on_progress_leads_to_the_chapter_that_is_next():
    first = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    run = [cell.id for cell in first.cells if cell.cell_type == "code"]
    for cells, following in ({}, "00_start_here"), (run[1:], "00_start_here"), (run, "01_ranks"):
        page = progress.Progress({}, {"00_start_here": cells}).page()
        assert f"**Next: [{following.replace('_', ' ')}](notebooks/{following}.ipynb)**" in page


@pytest.mark.slow
def test_watch_grades_again_on_each_save(tmp_path):
    path = saved(tmp_path / "mine.ipynb", exercise())
    command = [
        sys.executable,
        "-u",
        "-m",
        "helpers.grade",
        "--watch",
        str(path),
        "--progress",
        str(tmp_path / "progress.json"),
    ]
    watching = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    try:
        assert any("Watching" in line for line in watching.stdout)
        answered(path, RIGHT)
        assert any("3 of 3 points, solved" in line for line in watching.stdout)
        answered(path, WRONG)
        assert any("0 of 3 points" in line for line in watching.stdout)
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)
    assert watching.returncode == 130
