"""A learner's own check and the scorer say the same of an answer: which of the exercise's checks it passes."""

import contextlib
import io

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

# Rows that the learner's check refuses and the scorer does not, and why that is as it should be.
ONLY_SCORED: dict[str, str] = {}
ANSWERS = [
    (name, answer) for table in (answers.RIGHT, puzzles.RIGHT) for name, rows in table.items() for answer in rows
]
ANSWERS += [
    (name, answer) for table in (answers.WRONG, puzzles.WRONG) for name, rows in table.items() for answer, _ in rows
]
QUICK = {"unchunked", "gather_and_broadcast"}  # right, and not within their budgets


@pytest.fixture(scope="module")
def sandboxes():
    pool = sandbox.SandboxPool()
    yield pool
    pool.close()


def by_its_own_checks(name, answer, monkeypatch):
    """Whether an answer passes each check cell of its exercise that is about it."""
    monkeypatch.setattr(check, "TIMEOUT_SECONDS", 20.0)  # some mistakes end by it alone
    passed = []
    for one in notebook.checks_of(EXERCISE_OF[name]):
        if one.function == name:
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    {"values": check.check_values, "budget": check.check_budget}[one.aspect](named(answer, name))
                    passed.append(True)
                except CheckFailed:
                    passed.append(False)
    return passed


@pytest.mark.parametrize(
    "name, answer",
    [
        pytest.param(name, answer, marks=when(False, answer.__name__ in QUICK), id=f"{name}-{answer.__name__}")
        for name, answer in ANSWERS
    ],
)
def test_the_corpus_passes_the_same_checks(name, answer, sandboxes, patient, monkeypatch):  # noqa: F811
    learners = by_its_own_checks(name, answer, monkeypatch)
    assert [not one.reason for one in checked(name, answer, sandboxes)] == learners


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
