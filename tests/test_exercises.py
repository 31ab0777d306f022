"""Right answers pass, each mistake fails with the words it deserves, and exercises/ is what solutions/ says."""

import os
import re

import answers
import nbformat
import puzzles
import pytest
import torch

from helpers import release, schedule
from helpers.exercise import CheckFailed, check_budget, check_values
from helpers.exercise.tasks import EXERCISES, TASKS, beat

RIGHT, WRONG = answers.RIGHT | puzzles.RIGHT, answers.WRONG | puzzles.WRONG
SLOW = dict.fromkeys(
    ["distributed_argmax", "distributed_softmax", "reduce_scatter_by_hand", "settle"], pytest.mark.slow
)


def cases(table, answer_of):
    return [
        pytest.param(name, entry, marks=SLOW.get(name, ()), id=f"{name}-{answer_of(entry).__name__}")
        for name, entries in table.items()
        for entry in entries
    ]


def named(answer, name):
    def renamed(*args):
        return answer(*args)

    renamed.__name__ = name
    return renamed


@pytest.mark.parametrize("name, answer", cases(RIGHT, lambda answer: answer))
def test_a_right_answer_passes(name, answer, capsys):
    check_budget(named(answer, name))
    said = capsys.readouterr()
    assert said.out.startswith("Right") and re.search("With (8|16) ranks", said.out) and not said.err


@pytest.mark.parametrize("name, entry", cases(WRONG, lambda entry: entry[0]))
def test_a_mistake_fails_and_is_told_why(name, entry):
    answer, words = entry
    with pytest.raises(CheckFailed) as caught:
        check_budget(named(answer, name))
    assert re.search(words, str(caught.value)), str(caught.value)


def test_there_are_enough_mistakes_for_every_task():
    assert set(RIGHT) == set(WRONG) == set(TASKS)
    single = {task.name for task in EXERCISES["08_choose_the_collective"]}
    assert all(len(WRONG[name]) >= 6 for name in set(TASKS) - single)
    assert sum(len(WRONG[name]) for name in single) >= 6


def test_an_unchunked_ring_has_its_values_right():
    wrong, _ = next(entry for entry in WRONG["ring_all_reduce"] if entry[0].__name__ == "unchunked")
    check_values(named(wrong, "ring_all_reduce"))


def test_the_budget_is_judged_on_the_runs_whose_values_were_right(tmp_path):
    calls = tmp_path / "calls"

    def sums(divide):
        def distributed_mean(x):
            with calls.open("a") as file:
                file.write("+")
            mean = x.clone() if x.is_floating_point() else x.float()
            torch.distributed.all_reduce(mean)
            return divide(mean)

        return distributed_mean

    def ran(check, answer):
        calls.write_text("")
        check(answer)
        return len(calls.read_text())

    right, other = (sums(lambda sum, k=k: k * sum / torch.distributed.get_world_size()) for k in (1, 2))
    once = ran(check_values, right)
    assert once > 0
    assert ran(check_budget, right) == 0
    assert ran(check_budget, right) == once  # asked for by itself, it runs by itself
    check_values(right)
    with pytest.raises(CheckFailed, match="differ"):  # what it uses has changed since
        check_budget(other)
    assert ran(check_budget, right) == once


def test_no_built_in_schedule_is_an_answer():
    for made in (
        schedule.ring_all_reduce, schedule.tree_all_reduce, schedule.doubling_all_reduce, schedule.naive_all_reduce,
        schedule.rabenseifner_all_reduce, schedule.double_tree_all_reduce,
    ):  # fmt: skip
        assert beat.too_slow(made(16), 4)
    assert beat.too_slow(schedule.hierarchical_all_reduce(16, 4), 4)
    assert beat.too_slow(schedule.multi_ring_all_reduce(16, 4), 4)


@pytest.mark.parametrize(
    "lie, words",
    [
        (("all_reduce", 4, 2**40, 1, torch.zeros(0, 6, dtype=torch.int64)), "too many"),
        (("all_reduce", 4, 4, 10**9, torch.zeros(0, 6, dtype=torch.int64)), "too many"),
        (("all_reduce", 4, 4, 1, torch.tensor([[-1, 0, 0, 1, 1, 0]])), "no step -1"),
        (("all_reduce", 4, 4, 1, torch.tensor([[0, 0, 0, 99, 1, 0]])), "no rank 99"),
        (("all_reduce", 4, 4, 1, torch.zeros(3)), "must return a Schedule"),
        (("broadcast", 4, 4, 1, torch.zeros(0, 6, dtype=torch.int64)), "of broadcast"),
    ],
)
def test_a_schedule_in_numbers_is_not_believed(lie, words):
    with pytest.raises(ValueError, match=words):
        beat.schedule_of(lie, 4)


def test_what_is_no_answer_is_refused():
    with pytest.raises(ValueError, match="no exercise asks for a function named other"):
        check_values(named(print, "other"))
    with pytest.raises(TypeError, match="check the function itself"):
        check_values(3)


@pytest.mark.parametrize("path", sorted(release.SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.name)
def test_exercises_are_made_from_solutions(path):
    wanted = release.released(nbformat.read(path, as_version=4))
    exercise = release.EXERCISES / path.name
    if not os.environ.get("CI") and release.is_worked_in(exercise, wanted):
        pytest.skip("somebody works on this exercise here")
    assert exercise.read_text(encoding="utf-8") == release.text(wanted), "run `make exercises`"


@pytest.mark.parametrize("path", sorted(release.SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_solution_carries_what_graders_need(path):
    solution = nbformat.read(path, as_version=4)
    marked = [cell for cell in solution.cells if "nbgrader" in cell.metadata]
    assert any(map(release.is_answer, marked)) and any(map(release.is_check, marked))
    for cell in marked:
        assert cell.metadata.nbgrader.grade_id == cell.id and cell.metadata.nbgrader.schema_version == 3
    for cell in release.released(solution).cells:
        assert "BEGIN" not in cell.source and (cell.cell_type != "code" or not cell.outputs)
    links = re.findall(
        r"\]\(([^)#]+)\)", "".join(cell.source for cell in solution.cells if cell.cell_type == "markdown")
    )
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []
