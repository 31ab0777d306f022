"""A learner's own check and the scorer say the same of an answer: which of the exercise's checks it passes."""

import contextlib
import re
import sys

import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from grader import sandbox, submission, walls
from helpers.course import ROOT
from helpers.exercise import CheckFailed, check_cells, notebook
from tests.corpus import answers, incidents, puzzles
from tests.corpus.submissions import GRADED
from tests.kernels import LocalAsyncKernelManager
from tests.sampling import when
from tests.test_exercises import named
from tests.test_score import EXERCISE_OF, checked, patient, scored, submitted  # noqa: F401 (a fixture)

try:
    walls.check()
except walls.Exposed:
    raise  # walls that hide too little are a defect, wherever they are
except walls.Unavailable as why:
    pytestmark = pytest.mark.skip(reason=str(why))

# Rows that the learner's check refuses and the scorer does not, and why.
ONLY_SCORED = {
    "what a cell makes is of its own world": "a notebook's cell runs outside of any group",
    "thread pool": "a pool that a cell makes cannot travel to the ranks",
    "display left over": "the ranks of a notebook have no display",
    "a wait that is repeated hides no steps": "it speaks to the scorer's own wire, and gloo has none",
}
TOLD = "Move this line into the function|Make it inside the function|'display' is not defined|RankFailed"
QUICK = {"unchunked", "gather_and_broadcast"}  # right, and not within their budgets


@pytest.fixture(scope="module")
def sandboxes():
    pool = sandbox.Sandbox()
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "name, answer",
    [
        pytest.param(name, answer, marks=when(False, answer.__name__ in QUICK), id=f"{name}-{answer.__name__}")
        for name, mistakes in (answers.WRONG | puzzles.WRONG | incidents.WRONG).items()
        for answer, _ in mistakes
        if any(one.aspect == "values" for one in notebook.checks_of(EXERCISE_OF[name]))
    ],
)
def test_of_a_mistake_both_say_whether_its_values_are_right(name, answer, sandboxes, patient, monkeypatch):  # noqa: F811
    """That its budget check fails in both, with the same words, is in test_exercises.py and test_score.py."""
    monkeypatch.setattr(check_cells, "TIMEOUT_SECONDS", 20.0)  # some mistakes end by it alone
    values, *_ = checked(name, answer, sandboxes)
    with contextlib.nullcontext() if not values.reason else pytest.raises(CheckFailed):
        check_cells.check_values(named(answer, name))


def test_an_answer_is_known_by_its_variable_and_below_a_magic(monkeypatch):
    for answer in (lambda x: x, type("Mean", (), {"__call__": lambda self, x: x})()):
        monkeypatch.setattr(sys.modules["__main__"], "distributed_mean", answer, raising=False)
        assert check_cells.task_of(answer).name == "distributed_mean"


def errors_in_a_notebook(name, answer):
    """By check cell, the error in the learner's own kernel; "" if there is none."""
    handed_in = submission.graft(submitted(answer, name))
    client = NotebookClient(
        handed_in, timeout=90, allow_errors=True, kernel_manager_class=LocalAsyncKernelManager,
        resources={"metadata": {"path": ROOT}},
    )  # fmt: skip
    with contextlib.suppress(CellTimeoutError, DeadKernelError):
        client.execute()
    cells = [cell for cell in handed_in.cells if cell.cell_type == "code"]
    errors = [" ".join(out.traceback) for cell in cells for out in cell.outputs if out.output_type == "error"]
    ended = {cell.id for cell in cells if cell.execution_count and not any("ename" in out for out in cell.outputs)}
    return {one.name: "" if one.name in ended else errors or "it did not end" for one in notebook.checks_of(name)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", GRADED)
def test_submissions_pass_the_same_checks(name, sandboxes, patient):  # noqa: F811
    row = GRADED[name]
    learners = errors_in_a_notebook(row.exercise, row.source)
    assert name not in ONLY_SCORED or re.search(TOLD, str(learners)), learners
    differ = [(one.name, learners[one.name], one.reason) for one in scored(row.source, sandboxes, row.exercise).checks
              if bool(one.reason) != bool(learners[one.name])]  # fmt: skip
    assert bool(differ) == (name in ONLY_SCORED), differ
