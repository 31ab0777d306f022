"""A learner's own check and the scorer say the same of an answer: which of the exercise's checks it passes."""

import contextlib
import re
import sys

import pytest

from grader import execution, sandbox, submission, walls
from helpers.exercise import CheckFailed, check_cells, notebook
from tests.corpus import answers, incidents, puzzles
from tests.corpus.submissions import GRADED
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
    pool = sandbox.SandboxPool()
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
    assert submission.slips(submitted("%%time\ndef distributed_mean(x): return x")) == ""
    assert "must define distributed_mean" in submission.slips(submitted("%%time\nmean = None"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", GRADED)
def test_submissions_pass_the_same_checks(name, sandboxes, patient, monkeypatch):  # noqa: F811
    row = GRADED[name]
    if name == "without end":
        monkeypatch.setattr("grader.execution.CELL_SECONDS", 30)
    learners = execution.execute(submitted(row.source, row.exercise), lambda done, of: None)
    assert name not in ONLY_SCORED or re.search(TOLD, learners.reason), learners.reason
    scores = scored(row.source, sandboxes, row.exercise)
    differ = [(ours.name, theirs.reason, ours.reason) for ours, theirs in zip(scores.checks, learners.checks, strict=True)
              if bool(ours.reason) != bool(theirs.reason)]  # fmt: skip
    assert bool(differ) == (name in ONLY_SCORED), differ
