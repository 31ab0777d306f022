"""Code that is written on a page of the website: Python comes with the site, judges, and draws, in Chromium."""

import inspect

import pytest

from tests.corpus import puzzles
from tests.sampling import one_in

from .lab import PATIENCE, SCREENSHOTS


@pytest.fixture
def cell_of(site, address, served_page):
    """The editor of a function, on its page."""

    def opened(notebook, function):
        named = f'"name":"{function}"'
        files = [file for file in site.glob(f"{notebook}*.html") if named in file.read_text("utf-8")]
        assert files, "nothing can be written on the site: it was built without npm"
        served_page.goto(f"{address}/{files[0].relative_to(site).as_posix()}")
        return served_page.locator(".live.write .collectives", has=served_page.get_by_label(f"Python: {function}"))

    return opened


def test_a_ring_is_written_proved_and_played(cell_of):
    cell = cell_of("notebooks/09_algorithms", "my_ring")
    field, run = cell.get_by_role("textbox"), cell.get_by_role("button", name="Run")
    ring = field.input_value()
    assert "collectives.zip" not in cell.page.evaluate(
        "performance.getEntriesByType('resource').map(e => e.name).join()"
    )
    with cell.page.expect_worker():  # Python comes while the first line is written
        field.focus()
    run.click()
    cell.get_by_text("Proved: my_ring(4), my_ring(1)").wait_for(timeout=PATIENCE)
    cell.locator(".sheet svg").scroll_into_view_if_needed()  # it plays once it is seen
    cell.locator(".count", has_text="6 of 6").wait_for(timeout=PATIENCE)
    assert cell.get_by_role("row", name="yours 14 1.75").is_visible()

    field.fill(ring.replace("(r + 1 - k)", "(r - k)"))
    field.press("Control+Enter")
    cell.get_by_text("✗ my_ring(4) is wrong: at the end rank 0 has chunk a without").wait_for(timeout=PATIENCE)
    assert cell.locator(".count").inner_text() == "6 of 6"

    field.fill(ring)
    field.press("Control+Home")
    field.press("End")
    field.press("Enter")
    cell.page.keyboard.type("if n > 3:\n1 // 0")  # the second line is indented by the first one's colon
    field.press("Control+Enter")
    cell.get_by_text("✗ line 3: ZeroDivisionError").wait_for(timeout=PATIENCE)
    assert cell.locator(".written .no").inner_text().split() == ["✗", "3"]

    cell.page.reload()
    assert "1 // 0" in field.input_value()  # what was written is kept
    cell.get_by_role("button", name="Begin again").click()
    assert field.input_value() == ring


def test_a_loop_without_end_is_ended_and_the_next_run_works(cell_of):
    cell = cell_of("notebooks/09_algorithms", "pipeline")
    field = cell.get_by_role("textbox")
    field.fill("while True:\n    pass")
    field.press("Control+Enter")
    cell.get_by_text("After 10 s the code was still running, so it was ended").wait_for(timeout=PATIENCE)
    cell.get_by_role("button", name="Begin again").click()
    field.press("Control+Enter")
    cell.get_by_text("✗ line 4: NotImplementedError").wait_for(timeout=PATIENCE)


@one_in(0, 2)
def test_a_pipeline_is_drawn_in_time(cell_of):
    cell = cell_of("exercises/14_within_memory", "schedule_within")
    field = cell.get_by_role("textbox")
    field.fill(f"{inspect.getsource(puzzles)}\nschedule_within = backward_first")
    field.press("Control+Enter")
    cell.get_by_text("✓ A step takes 15, of which the busiest rank works 12").wait_for(timeout=PATIENCE)
    boxes = cell.locator("svg[aria-label^='yours: 2 ranks, 4 microbatches. rank 0: F0 F1 B0'] rect")
    assert boxes.count() == 16
    field.fill("def schedule_within(*shape):\n    return [['F0', 'B0', 'F1', 'B1'], ['F1', 'F0', 'B0', 'B1']]")
    field.press("Control+Enter")
    cell.get_by_text("rank 1 waits at 1F1 for 0F1").wait_for(timeout=PATIENCE)


@one_in(1, 2)
def test_an_exercise_is_raced_against_the_chapters_schedules(cell_of):
    cell = cell_of("exercises/09_beat_the_schedule", "faster_all_reduce")
    field = cell.get_by_role("textbox")
    for answer, verdict in (("flat_ring", "✗ It is right, but not fast enough"), ("four_steps", "✓ 4 steps, at least")):
        field.fill(f"{inspect.getsource(puzzles)}\nfaster_all_reduce = {answer}")
        field.press("Control+Enter")
        cell.get_by_text(verdict).wait_for(timeout=PATIENCE)
        rows = [row.inner_text().split("\t") for row in cell.get_by_role("row").all()]
        assert ("yours" in rows[1][0]) == (answer == "four_steps") and len(rows) == 10


def test_a_division_is_planned_by_the_library_on_the_page(chrome, site, address):
    page, wrong = chrome.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    pages = [file for file in site.glob("notebooks/21_*.html") if '"kind":"planner"' in file.read_text("utf-8")]
    page.goto(f"{address}/notebooks/{pages[0].name}")
    figure = page.locator(".live.planner .collectives")
    figure.get_by_text("A move needs Python").wait_for()
    figure.get_by_label("tensor", exact=True).press("ArrowLeft")
    figure.get_by_text("(before: 512 GPUs").wait_for(timeout=3 * PATIENCE)  # Python starts
    figure.get_by_text("data 16, tensor 4, pipeline 4 x 5 on 256 x H100").wait_for()
    figure.get_by_label("pipeline", exact=True).press("ArrowRight")
    figure.get_by_text("must divide the 80 layers").wait_for(timeout=PATIENCE)  # and what was possible stays
    assert figure.get_by_text("data 16, tensor 4, pipeline 4 x 5 on 256 x H100").is_visible()
    page.close()
    assert wrong == []


def test_a_log_is_explained_on_the_page_by_keyboard(chrome, site, address):
    wrong = []
    for width, scheme in ((390, "light"), (1280, "dark")):
        context = chrome.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda sent: None if sent.url.startswith((address, "data:")) else wrong.append(sent.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{address}/notebooks/explain_a_log.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Put in an example").press("Enter")
        page.get_by_label("A log").press("Control+Enter")
        page.get_by_text("Rank 1 holds up the other rank: it has not made all_reduce #2.").wait_for()
        page.get_by_role("button", name="Clear").press("Enter")
        page.get_by_label("Files").set_input_files({"name": "host.log", "mimeType": "", "buffer": b"nothing of note"})
        page.get_by_role("button", name="Explain").press("Enter")
        page.get_by_text("can be explained").wait_for()
        page.screenshot(path=SCREENSHOTS / f"site-explain-{width}.png", full_page=True)
        context.close()
    assert wrong == []
