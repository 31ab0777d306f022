"""A learner's own check and the scorer say the same of an answer: which of the exercise's checks it passes."""

import contextlib

import pytest

from helpers.exercise import CheckFailed, check, notebook
from helpers.grade import feedback, sandbox, walls
from tests.corpus import answers, puzzles
from tests.corpus.submissions import GRADED
from tests.sampling import when
from tests.test_exercises import named
from tests.test_score import EXERCISE_OF, checked, patient, scored, submitted  # noqa: F401 (a fixture)

try:
    walls.check()
except walls.Unavailable as why:
    pytestmark = pytest.mark.skip(reason=str(why))

# Rows that the learner's check refuses and the scorer does not, and why.
ONLY_SCORED = {
    "timed by a magic": "`make grade` does not look for a function below a cell magic; the notebook's own check takes it",
    "a function in a name": "the learner's check knows an answer by its own name",
    "an object that is called": "the learner's check knows an answer by its own name",
    "what a cell makes is of its own world": "a notebook's cell runs outside of any group",
    "thread pool": "a pool that a cell makes cannot travel to the ranks",
}
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
        for name, mistakes in (answers.WRONG | puzzles.WRONG).items()
        for answer, _ in mistakes
        if any(one.aspect == "values" for one in notebook.checks_of(EXERCISE_OF[name]))
    ],
)
def test_of_a_mistake_both_say_whether_its_values_are_right(name, answer, sandboxes, patient, monkeypatch):  # noqa: F811
    """That its budget check fails in both, with the same words, is in test_exercises.py and test_score.py."""
    monkeypatch.setattr(check, "TIMEOUT_SECONDS", 20.0)  # some mistakes end by it alone
    values, *_ = checked(name, answer, sandboxes)
    with contextlib.nullcontext() if not values.reason else pytest.raises(CheckFailed):
        check.check_values(named(answer, name))


@pytest.mark.nightly
@pytest.mark.parametrize("name", GRADED)
def test_submissions_pass_the_same_checks(name, sandboxes, patient, monkeypatch):  # noqa: F811
    row = GRADED[name]
    if name == "without end":
        monkeypatch.setattr("helpers.grade.feedback.CELL_SECONDS", 30)
    learners = feedback.tried(submitted(row.source, row.exercise), lambda done, of: None)
    scores = scored(row.source, sandboxes, row.exercise)
    differ = [(ours.name, theirs.reason, ours.reason) for ours, theirs in zip(scores.checks, learners.checks, strict=True)
              if bool(ours.reason) != bool(theirs.reason)]  # fmt: skip
    assert bool(differ) == (name in ONLY_SCORED), differ
