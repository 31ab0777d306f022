"""play(): a pipeline schedule changed with the mouse and with the keyboard, and its bubble and memory with it."""

PLAY = """\
from helpers.pipeline import play

play("1F1B", ranks=4, microbatches=8)"""


def test_bubble_and_memory_move_with_the_controls(open_):
    notebook = open_(PLAY)
    notebook.run_all()
    cell = notebook.cell(0)

    def says(words):
        cell.locator(".collectives [aria-live]", has_text=words).wait_for()

    says("time 33; bubble 37.5% of the work; a rank keeps at most 4 microbatches; 48 messages")
    before = cell.locator(".collectives img").get_attribute("src")
    cell.get_by_role("slider", name="microbatches").focus()
    notebook.keyboard.press("ArrowRight")
    says("bubble 33.3% of the work")
    says("before: time 33, bubble 37.5%")
    cell.locator("img[alt*='bubble 33.3%']").wait_for()
    assert cell.locator(".collectives img").get_attribute("src") != before
    cell.get_by_role("button", name="interleaved").click()
    says("groups of 4, one a rank; 9 are no multiple")
    cell.locator(".collectives img").wait_for(state="detached")
    cell.get_by_role("button", name="zero bubble").click()
    says("bubble 11.1% of the work")
    image = cell.locator("img[alt*='bubble 11.1%']")
    image.wait_for()
    assert image.evaluate("e => e.complete && e.naturalWidth > 800")
    notebook.pictures("play")
