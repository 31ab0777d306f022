"""What learners do besides: solve an exercise, interrupt a cell that hangs, restart the kernel in the middle of a run."""

import os
import time

import nbformat

from tests.sampling import one_in

from .lab import PATIENCE, ROOT

HANG = """\
import os
from pathlib import Path

from helpers import run

Path("pids").mkdir(exist_ok=True)


def hang():
    Path("pids", str(os.getpid())).touch()
    while True:
        pass"""
CALL = "run(hang, world_size=2, timeout=600)"
AFTER = "run(lambda: 'fine', world_size=2).results"


def solution(name: str, answer: str) -> list[str]:
    """The lines between the marks of a solution."""
    cells = nbformat.read(ROOT / "solutions" / name, 4).cells
    (cell,) = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade_id") == answer]
    lines = cell.source.splitlines()
    begin, end = ([mark in line for line in lines].index(True) for mark in ("BEGIN SOLUTION", "END SOLUTION"))
    return lines[:begin] + lines[begin + 1 : end]


def test_an_exercise_is_solved_by_typing_the_solution_in(open_, lab):
    notebook = open_(ROOT / "exercises" / "02_distributed_mean.ipynb")
    answer, tries, values, budget = 1, 2, 3, 4
    for k in (0, answer, values):
        notebook.run_cell(k)
    notebook.cell(values).get_by_text("NotImplementedError").first.wait_for()
    lines = solution("02_distributed_mean.ipynb", "mean-answer")
    notebook.cell(answer).locator(".cm-content").click()
    notebook.keyboard.press("Control+A")
    for k, line in enumerate(lines):  # the editor indents by itself
        notebook.keyboard.type(line.strip())
        if k < len(lines) - 1:
            notebook.keyboard.press("Enter")
    assert notebook.cell(answer).locator(".cm-content").inner_text().splitlines() == lines
    for k in (answer, tries, values, budget):
        notebook.keyboard.press("Shift+Enter") if k == answer else notebook.run_cell(k)
    notebook.cell(values).get_by_text("Right: distributed_mean does what it should").wait_for()
    notebook.cell(budget).get_by_text("Right and within its budget").wait_for()
    assert notebook.failed() == []
    notebook.picture("exercise-solved")


def hanging(open_, lab):
    """A notebook whose second cell is in a run that never ends, and the processes of its ranks."""
    folder = lab[2] / "pids"
    for file in folder.glob("*"):
        file.unlink()
    notebook = open_(HANG, CALL, AFTER)
    notebook.run_cell(0)
    notebook.run_cell(1)
    return notebook, until(lambda: len(pids := [int(f.name) for f in folder.glob("*")]) == 2 and pids)


def until(condition):
    limit = time.monotonic() + PATIENCE / 1000
    while not (found := condition()):
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


@one_in(0, 3)
def test_a_long_run_says_what_its_ranks_do_and_leaves_no_trace(open_, lab):
    notebook, pids = hanging(open_, lab)
    line = notebook.cell(1).get_by_text("2 ranks running hang: no call yet")
    line.wait_for()
    notebook.picture("under-way")
    notebook.menu("Kernel", "Interrupt Kernel")
    notebook.cell(1).get_by_text("KeyboardInterrupt").first.wait_for()
    assert line.count() == 0
    until(lambda: gone(pids))
    first = notebook.cell(1).locator(".jp-OutputArea-child").first.bounding_box()
    assert first["height"] < 5, "an empty line is left"
    notebook.picture("under-way-no-more")


def gone(pids):
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def goes_on(notebook):
    notebook.run_cell(2)
    notebook.cell(2).get_by_text("['fine', 'fine']").wait_for()


@one_in(1, 3)
def test_a_cell_that_hangs_is_interrupted(open_, lab):
    notebook, pids = hanging(open_, lab)
    notebook.menu("Kernel", "Interrupt Kernel")
    notebook.cell(1).get_by_text("KeyboardInterrupt").first.wait_for()
    until(lambda: gone(pids))
    notebook.picture("interrupted")
    goes_on(notebook)


@one_in(2, 3)
def test_the_kernel_is_restarted_in_the_middle_of_a_run(open_, lab):
    notebook, pids = hanging(open_, lab)
    notebook.menu("Kernel", "Restart Kernel…")
    notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    until(lambda: gone(pids))
    notebook.idle()
    notebook.run_cell(0)
    goes_on(notebook)
