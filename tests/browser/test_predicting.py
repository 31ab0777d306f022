"""predict(): filled in wrong, then right; with the mouse, and with the keyboard alone."""

from tests.sampling import one_in

PREDICT = """\
import torch
import torch.distributed as dist

from helpers import predict


def share_from_last():
    x = torch.full((2,), 7100.0 + 111 * dist.get_rank())
    dist.all_reduce(x)
    return x


predict(share_from_last, world_size=3)"""
CHOOSE = """\
def deserted():
    if dist.get_rank() == 0:
        dist.barrier()


predict(deserted, ask="verdict", world_size=2)"""
SUM = str(3 * 7100 + 333)


def test_wrong_then_right_with_the_mouse(open_):
    frames = []
    notebook = open_(PREDICT, CHOOSE, frames=frames)
    notebook.run_all()
    page, cell = notebook.page, notebook.cell(0)
    inputs = cell.locator("input[type=text]")
    inputs.nth(5).wait_for()
    assert inputs.count() == 6
    notebook.pictures("predict-before")
    assert SUM not in page.content() + "".join(frames), "the answer is in the page before the run"
    for k, words in enumerate(["7100", "7100", "7211", "7211", "7322"]):  # the last is left blank
        inputs.nth(k).click()
        notebook.keyboard.type(words)
    cell.get_by_role("button", name="Run").click()
    cell.get_by_text("0 of 6 right").wait_for()
    assert cell.get_by_text("you gave the rank's own number").is_hidden()
    cell.get_by_text("A hint").click()
    assert cell.get_by_text("you gave the rank's own number; all_reduce takes the SUM").count() == 1
    assert SUM not in page.content() + "".join(frames), "what is right comes on the second stage only"
    notebook.pictures("predict-wrong")
    cell.get_by_role("button", name="Show me").click()
    cell.locator("img[alt^='Picture: all_reduce SUM']").wait_for()
    assert cell.get_by_text(f"✗ {SUM}").count() == cell.locator(".answer .no").count() == 5
    assert cell.get_by_text(SUM, exact=True).count() == 1 and any(SUM in frame for frame in frames)
    notebook.pictures("predict-shown")
    for k in range(6):
        inputs.nth(k).fill(SUM)
    cell.get_by_role("button", name="Run again").click()
    cell.get_by_text("All 6 right").wait_for()
    with page.expect_response(lambda got: got.request.method == "PUT" and ".ipynb" in got.url):
        notebook.menu("File", "Save Notebook")
    page.reload()
    inputs.nth(5).wait_for()
    assert inputs.nth(5).input_value() == SUM, "the kernel is the same, and a prediction is still there"
    notebook.idle()

    choice = notebook.cell(1)
    choice.locator("button", has_text="it finishes").click()
    choice.get_by_role("button", name="Run").click()
    choice.get_by_text("Not so.").wait_for()
    choice.get_by_text("It did not finish: rank 0 is waiting in barrier").wait_for()
    choice.locator("button", has_text="wait forever").click()
    choice.get_by_role("button", name="Run again").click()
    choice.get_by_text("Right.", exact=True).wait_for()
    assert "rank 1  returned before any call" in choice.inner_text()
    choice.scroll_into_view_if_needed()
    notebook.pictures("predict-verdict")


def test_with_the_keyboard_alone(open_):
    notebook = open_(PREDICT, CHOOSE, "below = 1")
    press, page = notebook.keyboard.press, notebook.page
    first, second = notebook.cell(0), notebook.cell(1)
    fields, focus = first.locator("input[type=text]"), page.locator(":focus")
    notebook.run_cell(0)
    fields.first.and_(focus).wait_for()  # what has just appeared takes the keys
    notebook.keyboard.type("1")  # which, in a cell, makes a heading of it
    press("Enter")
    first.get_by_text("0 of 6 right").wait_for()
    with page.expect_response(lambda got: got.request.method == "PUT" and ".ipynb" in got.url):
        press("Control+S")
    fields.first.and_(focus).wait_for()
    for row in range(3):  # a whole row into its first cell
        press("Control+A")
        notebook.keyboard.type(f"{SUM} {SUM}")
        for _ in range(2 if row < 2 else 0):
            press("Tab")
    press("Enter")
    first.get_by_text("All 6 right").wait_for()
    press("Tab")  # the row's second field
    press("Tab")
    first.get_by_role("button", name="Run again").and_(focus).wait_for()  # before what there is to read
    press("Escape")
    first.and_(focus).wait_for()
    fields.first.focus()
    press("Shift+Enter")
    second.and_(focus).wait_for()
    press("Shift+Enter")
    choices = second.locator(".choices button")
    choices.first.and_(focus).wait_for()
    press("Space")
    notebook.tab_to("button.run")
    press("Space")
    second.get_by_text("Not so.").wait_for()
    run_again = second.get_by_role("button", name="Run again").and_(focus)
    run_again.wait_for()  # the focus stays, on what goes on
    press("Tab")
    press("Space")
    second.get_by_text("✓ some ranks wait forever").wait_for()
    run_again.wait_for()  # Show me is gone
    choices.nth(1).focus()
    press("Space")
    notebook.tab_to("button.run")
    press("Space")
    second.get_by_text("Right.", exact=True).wait_for()
    run_again.wait_for()
    press("Shift+Enter")
    notebook.cell(2).and_(focus).wait_for()
    sources = [notebook.cell(k).locator(".cm-content").inner_text() for k in range(3)]
    typed = [source.split() for source in (PREDICT, CHOOSE, "below = 1")]
    assert [source.split() for source in sources] == typed, "no key went into a cell"


@one_in(0, 2)
def test_a_restarted_kernel_breaks_nothing_and_is_named_where_one_is_needed(open_):
    notebook = open_(PREDICT)
    notebook.run_all()
    cell = notebook.cell(0)
    cell.locator("input[type=text]").first.fill("1")
    notebook.menu("Kernel", "Restart Kernel…")
    with notebook.page.expect_response(lambda answer: answer.url.partition("?")[0].endswith("/restart")):
        notebook.page.locator(".jp-Dialog button.jp-mod-accept").click()
    notebook.idle()
    assert cell.locator("input[type=text]").first.input_value() == "1"
    cell.get_by_role("button", name="Run").click()
    cell.get_by_text("The kernel was restarted since: run this cell again").wait_for()
    assert notebook.broken_links() == 0
    notebook.picture("predict-restarted")
