"""The second day: a chapter was run and saved, its kernel ended, and it is opened again."""

import nbformat
import pytest

from tests.sampling import one_in

from .conftest import KERNEL
from .lab import Notebook, end_kernels

CELLS = """\
import torch
import torch.distributed as dist

from helpers import explore, predict, run, step


def chain():
    rank, x = dist.get_rank(), torch.tensor([dist.get_rank()])
    if rank:
        dist.recv(x, src=rank - 1)
    if rank < dist.get_world_size() - 1:
        dist.send(x, dst=rank + 1)


def add():
    x = torch.tensor([dist.get_rank()])
    dist.all_reduce(x)"""
FIGURES = ("step(run(chain, world_size=3))", "predict(add, world_size=2)", "explore(world_size=2)")
FIGURE_CELLS = (1, 2, 3)
LOST = "Error displaying widget"
SAVE_WIDGETS = "Save Widget State Automatically"


@pytest.fixture
def next_day(chrome, course):
    """Runs the figures; returns what saves the notebook, ends its kernel and opens it again, with its widgets or without."""
    folder, address, token = course
    file, page = folder / "notebooks" / "second_day.ipynb", chrome.new_page()
    where = f"{address}/lab/tree/notebooks/{file.name}?reset&token={token}"
    cells = [nbformat.v4.new_code_cell(source) for source in (CELLS, *FIGURES)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), file)
    notebook = Notebook(page, where)
    notebook.run_all()
    for k in FIGURE_CELLS:
        notebook.cell(k).locator(".collectives").wait_for()
        notebook.cell(k).locator(".collectives-still").wait_for(state="hidden")
    notebook.cell(FIGURE_CELLS[-1]).locator(".collectives img").wait_for()  # of its first run, which comes by itself

    def begin(widgets: bool = True) -> Notebook:
        if not widgets:  # as JupyterLab does elsewhere
            notebook.menu("Settings", SAVE_WIDGETS)
        with page.expect_response(lambda got: got.request.method == "PUT" and file.name in got.url) as saved:
            notebook.menu("File", "Save Notebook")
        assert saved.value.ok
        end_kernels(address, token)
        return Notebook(page, where)

    yield begin
    if "widgets" not in nbformat.read(file, 4).metadata:
        notebook.menu("Settings", SAVE_WIDGETS)
    page.close()
    end_kernels(address, token)
    file.unlink()


@pytest.mark.parametrize(
    "days",
    [
        pytest.param(1, marks=one_in(0, 2), id="the second day"),
        pytest.param(2, marks=one_in(1, 2), id="the third, nothing run between"),
    ],
)
def test_figures_play_and_a_prediction_says_what_to_do(next_day, days):
    for _ in range(days):
        notebook = next_day()
    steps, prediction, explorer = map(notebook.cell, FIGURE_CELLS)
    steps.get_by_role("button", name="one step on").click()
    steps.locator(".collectives [aria-live]", has_text="step 1: 0 -> 1").wait_for()
    prediction.locator("input[type=text]").first.fill("1")
    prediction.get_by_role("button", name="Run").click()
    prediction.get_by_text("The kernel was restarted since: run this cell again").wait_for()
    explorer.locator(".collectives img").wait_for()
    assert notebook.page.get_by_text(LOST).count() == notebook.broken_links() == 0
    assert notebook.page.locator(".collectives-still:visible").count() == 0
    notebook.picture("second-day")


def test_without_the_saved_widgets_the_stills_and_their_words_are_there(next_day):
    notebook = next_day(widgets=False)
    notebook.page.wait_for_function(
        "([words, n]) => document.body.textContent.split(words).length === n + 1", arg=[LOST, 3]
    )
    assert not any(said.is_visible() for said in notebook.page.get_by_text(LOST).all())
    for k in FIGURE_CELLS:
        still = notebook.cell(k).locator(".collectives-still")
        image = still.locator("img")
        image.wait_for()
        assert image.evaluate("e => e.complete && e.naturalWidth > 100")
        still.get_by_text("as text").click()
        still.locator("pre").wait_for()
    notebook.picture("second-day-stills")
