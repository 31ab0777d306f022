"""The exercises in a course kept with nbgrader, as they are: generate, hand in, autograde."""

import subprocess
import sys

import pytest

from helpers.course import ROOT
from helpers.exercise.notebook import is_answer, pristine, without_solution
from tests.bench.beside_nbgrader import Course, NotInstalled, environment
from tests.corpus.cells import MEAN, RIGHT
from tools import release

pytestmark = pytest.mark.nightly
UNCHUNKED = """def distributed_mean(x):
    y = x.clone() if x.is_floating_point() else x.float()
    rows = [torch.zeros_like(y) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, y)
    return sum(rows) / len(rows)"""


def answered(source):
    """Our own exercise, not nbgrader's version of it, with an answer in it."""
    exercise = without_solution(pristine(MEAN))
    for cell in exercise.cells:
        if is_answer(cell):
            cell.source = source
    return release.text(exercise)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """nbgrader's Python, in an environment of its own."""
    try:
        return environment(tmp_path_factory.mktemp("nbgrader"))
    except NotInstalled as why:
        pytest.skip(f"nbgrader cannot be installed here: {why}")


def test_nbgrader_generates_and_grades_our_exercises(python, tmp_path):
    course = Course(tmp_path / "course", python, MEAN)
    generated = course.generate()
    ours = without_solution(pristine(MEAN))
    assert [cell.id for cell in generated.cells] == [cell.id for cell in ours.cells]
    (answer,) = filter(is_answer, generated.cells)
    assert "NotImplementedError" in answer.source and "SOLUTION" not in answer.source

    course.submit("right", answered(RIGHT))
    course.submit("partly", answered(UNCHUNKED))
    course.submit("wrong", answered("def distributed_mean(x):\n    return x"))
    course.submit("untouched", release.text(ours))
    assert course.autograde() == {"right": (3, 3), "partly": (2, 3), "wrong": (0, 3), "untouched": (0, 3)}


def test_points_of_a_report_go_into_nbgraders_gradebook(python, tmp_path):
    course = Course(tmp_path / "course", python, MEAN)
    course.generate()
    handed_in = {"ann": (RIGHT,), "bob": ("def distributed_mean(x):\n    return x", UNCHUNKED), "cyd": ("# nothing",)}
    for student, attempts in handed_in.items():
        for k, source in enumerate(attempts):
            place = tmp_path / "submissions" / student / f"{k}"
            place.mkdir(parents=True)
            (place / f"{MEAN}.ipynb").write_text(answered(source), encoding="utf-8")
    options = ["--score", "--no-sandbox", "--no-pictures", "--out", str(tmp_path / "report")]
    command = [sys.executable, "-m", "helpers.grade", *options, str(tmp_path / "submissions")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    said = course.to_gradebook(tmp_path / "report" / "report.json")
    assert f"bob, {MEAN}: 2 of 3" in said  # the better attempt
    assert course.scores() == {"ann": (3, 3), "bob": (2, 3), "cyd": (0, 3)}
