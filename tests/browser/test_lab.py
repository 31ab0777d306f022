"""JupyterLab as `make lab` opens it, on a copy of the course: what is in view, and that opening changes no file."""

import io
import re
import time

import pytest
from PIL import Image

from tests.sampling import one_in

from .conftest import git
from .lab import DARK, LIGHT, PATIENCE, SHOWN, Notebook, end_kernels

TABS = ".lm-DockPanel-tabBar .lm-TabBar-tab"
TAB = TABS + ":has-text('{}')"
WHOLE = """() => [...document.querySelectorAll('.jp-MarkdownViewer img')].some(e => e.complete && e.naturalWidth > 800
    && e.getBoundingClientRect().right < e.closest('.jp-MarkdownViewer').getBoundingClientRect().right)"""


@pytest.fixture
def opened(chrome, course):
    """Opens a notebook in the workspace of the course, where nobody has saved or run a cell."""
    folder, address, token = course
    page = chrome.new_page()
    yield lambda name: Notebook(page, f"{address}/lab/workspaces/collectives/tree/{name}?token={token}")
    page.close()
    end_kernels(address, token)
    git(folder, "checkout", "--", "notebooks")  # JupyterLab may have saved by itself
    (folder / ".progress.json").unlink(missing_ok=True)


def test_outline_progress_and_cheat_sheet_are_there(opened):
    lab = opened("notebooks/00_start_here.ipynb")
    page = lab.page
    assert page.locator(TABS).all_inner_texts() == ["00_start_here.ipynb", "progress.md", "cheatsheet.md"]
    outline = page.locator(".jp-TableOfContents:visible")
    outline.get_by_text("Break it").wait_for()
    lab.pictures("opened", 1440, 1280)
    outline.get_by_text("Takeaways").click()
    page.wait_for_function(
        "s => document.querySelector(s)?.getBoundingClientRect().top < innerHeight",
        arg=f"{SHOWN} [data-jupyter-id=Takeaways]",
    )

    page.locator(TAB.format("cheatsheet")).click()
    page.wait_for_function(WHOLE)
    sheet = page.get_by_alt_text("Every collective on four ranks")
    with page.expect_response(lambda got: got.url.endswith("cheatsheet.svg")):
        lab.theme(DARK)
    page.wait_for_function(WHOLE)
    until = time.monotonic() + PATIENCE / 1000
    while max(corner(sheet)) > 40:
        assert time.monotonic() < until, "the cheat sheet is white on a dark page"
    lab.picture("cheatsheet-dark")
    lab.theme(LIGHT)
    assert min(corner(sheet)) > 250
    page.locator(TAB.format("progress")).click()
    page.get_by_role("row", name="02 point to point not begun").wait_for()
    page.get_by_role("link", name="01 ranks").click()
    page.locator(TAB.format("01_ranks.ipynb") + ".lm-mod-current").wait_for()

    page.locator(TAB.format("00_start")).click()  # the page on progress is true when it is looked at again
    lab.run_cell(0)
    lab.idle()
    page.locator(TAB.format("progress")).click()
    page.get_by_role("row", name=re.compile(r"00 start here 1 of \d+ cells run")).wait_for()

    page.locator(".jp-SideBar [data-id=filebrowser]").click()
    page.locator(".jp-DirListing-item", has_text="first_hour.md").dblclick()  # it is shown, not its source
    page.locator(".jp-MarkdownViewer:visible h1").wait_for()


def corner(shown):
    """Red, green and blue of what is seen at its top left."""
    return Image.open(io.BytesIO(shown.screenshot())).convert("RGB").getpixel((2, 2))


SEEN = """image => {
    const box = image.getBoundingClientRect(), page = image.closest('.jp-WindowedPanel-outer').getBoundingClientRect()
    return (Math.min(box.bottom, page.bottom) - Math.max(box.top, page.top)) / box.height
}"""


def test_the_first_picture_is_on_a_small_screen_after_shift_and_enter(opened):
    lab = opened("notebooks/00_start_here.ipynb")
    lab.page.set_viewport_size({"width": 1280, "height": 800})
    lab.menu("Edit", "Clear Outputs of All Cells")
    lab.run_cell(0)
    lab.cell(0).locator(".jp-InputPrompt", has_text="1").wait_for()
    for _ in range(
        9
    ):  # the loop, the reader's own and its check, the loop with the new line, its picture; texts between
        lab.keyboard.press("Shift+Enter")
    image = lab.cell(5).locator(".jp-OutputArea-output img")
    image.wait_for()
    lab.idle()
    assert image.evaluate(SEEN) > 0.75
    lab.picture("first-picture")
    lab.page.set_viewport_size({"width": 1280, "height": 1000})


@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param(name, marks=one_in(k))
        for k, name in enumerate(("00_start_here", "09_algorithms", "18_when_it_hangs"))
    ],
)
def test_a_chapter_that_was_opened_and_saved_is_as_it_was(course, opened, chapter):
    name = f"notebooks/{chapter}.ipynb"
    lab = opened(name)
    lab.page.locator(f"{SHOWN} .jp-OutputArea-output img").first.wait_for()
    assert lab.page.locator(TAB.format(chapter)).count() == 1 and lab.page.locator(".jp-mod-dirty").count() == 0
    prompts = lab.page.locator(f"{SHOWN} .jp-CodeCell .jp-InputPrompt").all_inner_texts()
    assert prompts and not re.search(r"\d", "".join(prompts)), "no cell looks as if it had been run"
    with lab.page.expect_response(
        lambda got: got.request.method == "PUT" and name in got.url, timeout=PATIENCE
    ) as saved:
        lab.menu("File", "Save Notebook")
    assert saved.value.ok and git(course[0], "status", "--porcelain") == ""
