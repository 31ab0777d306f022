"""Cells that a reader changes and runs on the website: pretended ranks, in Chromium, by keyboard."""

from pathlib import Path

import pytest

from .lab import PATIENCE

PUZZLE = "notebooks/twelve_puzzles"
LOADING = 3 * PATIENCE


@pytest.fixture
def cell_of(site, address, served_page):
    """The cell of a function on its page."""
    served_page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def opened(path, name):
        named = f'"kind":"runnable","notebook":"{Path(path).stem * path.startswith("notebooks")}","name":"{name}"'
        files = [file for file in site.glob(f"{path}*.html") if named in file.read_text("utf-8")]
        served_page.goto(f"{address}/{files[0].relative_to(site).as_posix()}")
        return served_page.locator(".live.runnable .collectives", has=served_page.get_by_label(f"Python: {name}"))

    return opened


def test_a_puzzle_is_solved_by_keyboard_and_kept(cell_of):
    cell = cell_of(PUZZLE, "everyones_sum")
    page, field = cell.page, cell.get_by_role("textbox")
    with page.expect_worker():
        field.focus()
    page.wait_for_function("getSelection().toString().startsWith('raise NotImplementedError()')")
    page.keyboard.type("if dist.get_rank() == 0: dist.all_reduce(x)")
    page.keyboard.press("Shift+Enter")
    cell.get_by_text("rank 0 is waiting in all_reduce #1; rank 1 returned before any call. This can never finish.").wait_for(
        timeout=LOADING
    )
    cell.get_by_text("Think: the others never make the call.").wait_for()
    assert cell.get_by_text("0 of 12").is_visible() and cell.locator("img[alt^='Picture: all_reduce SUM']").is_visible()

    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    for _ in "if dist.get_rank() == 0: ":
        page.keyboard.press("Delete")
    page.keyboard.press("Control+Enter")
    cell.get_by_text("✓ Right.").wait_for()
    cell.get_by_text("That's 1 of this page's 12.").wait_for()
    assert cell.locator("img[alt^='Picture: all_reduce SUM, ranks 0-3']").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run"

    page.reload()
    assert field.input_value() == "def everyones_sum(x):\n    dist.all_reduce(x)\n    return x"
    assert cell.get_by_text("✓ solved, 1 of 12").is_visible()
    assert page.get_by_text("1 of 12").count() == 12  # every puzzle counts them


def test_a_result_is_shared_as_a_link(cell_of):
    cell = cell_of(PUZZLE, "last_word")
    page, field = cell.page, cell.get_by_role("textbox")
    field.fill(
        field.input_value().replace("raise NotImplementedError()", "dist.broadcast(x, src=dist.get_world_size() - 1)")
    )
    cell.get_by_role("button", name="Copy a link").click()
    cell.get_by_text("The link is copied").wait_for()
    shared, written = page.evaluate("navigator.clipboard.readText()"), field.input_value()
    page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.goto(shared)
    cell.get_by_text("This is the code of the link.").wait_for()
    assert field.input_value() == written
    field.press("Control+Enter")
    cell.get_by_text("✓ Right.").wait_for(timeout=LOADING)


def test_a_chapters_cell_uses_what_the_cells_above_define(cell_of):
    cell = cell_of("notebooks/00_start_here", "train_together")
    field = cell.get_by_role("textbox")
    field.fill(field.input_value().replace("raise NotImplementedError()", "x = torch.linalg.norm(x)"))
    field.press("Control+Enter")
    cell.get_by_text("This page has no torch.linalg. JupyterLab has it").wait_for(timeout=LOADING)
    assert cell.locator(".written .no").inner_text().split() == ["✗", "7"]
    field.fill(field.input_value().replace("x = torch.linalg.norm(x)", "dist.all_reduce(w.grad, op=dist.ReduceOp.AVG)"))
    field.press("Control+Enter")
    cell.get_by_text("with 8 calls of all_reduce. That's 1 of this chapter's 2 short").wait_for()


def test_the_first_page_hangs_and_says_why(cell_of):
    cell = cell_of("index", "log_loss")
    cell.get_by_role("button", name="Run").click()
    cell.get_by_text("Stuck: rank 0 is waiting in all_reduce #1; ranks 1, 2 and 3 returned before any call").wait_for(
        timeout=LOADING
    )
    assert cell.locator("img[alt^='Picture: who waits for whom']").is_visible()


@pytest.mark.parametrize("is_phone", [False, True], ids=["computer", "phone"])
def test_python_loads_by_itself_only_where_that_costs_little(chrome, site, address, is_phone):
    context = chrome.browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=is_phone, has_touch=is_phone)
    page = context.new_page()
    page.clock.install()
    page.add_init_script(
        "globalThis.workers = 0; globalThis.Worker = class extends Worker { constructor(...given) { super(...given); workers++ } }"
    )
    page.goto(f"{address}/notebooks/00_start_here.html")
    cell = page.locator(".live.runnable").first
    cell.scroll_into_view_if_needed()
    cell.evaluate("e => new Promise(done => new IntersectionObserver(([now]) => now.isIntersecting && done()).observe(e))")
    page.clock.run_for(5000)
    assert page.evaluate("workers") == (not is_phone)
    context.close()
