"""explore(): each control moves the picture; with the mouse, with the keyboard alone, and at once."""

import re
import statistics

import pytest

from tests.sampling import one_in

from .lab import SCREENSHOTS

EXPLORE = "from helpers import explore\n\nexplore()"
TABLE, PICTURE = ".jp-CodeCell .collectives pre", ".jp-CodeCell .collectives img"


@pytest.fixture
def notebook(open_):
    notebook = open_(EXPLORE)
    notebook.run_all()
    notebook.page.locator(PICTURE).wait_for()
    return notebook


def slider(notebook, label):
    return notebook.page.get_by_role("slider", name=label, exact=True)


def choose(notebook, op):
    notebook.page.get_by_role("button", name=op, exact=True).click()
    says(notebook, re.compile(f"^{op}"))  # and not all_reduce, whose picture may yet give way and move the sliders


def says(notebook, words):
    """Waits until the table is that of a run that was asked for; it is folded."""
    notebook.page.locator(TABLE, has_text=words).wait_for(state="attached")


def test_each_control_with_the_mouse(notebook):
    choose(notebook, "reduce")
    for label, part, said in [
        ("reduce op", 4 / 7, "reduce MAX to 0"), ("dtype", 4 / 6, "int64 [3]"), ("numbers", 5 / 7, "int64 [8]"),
        ("world size", 4 / 6, "ranks 0-5"), ("root", 3 / 5, "MAX to 3"),
    ]:  # fmt: skip
        box = slider(notebook, label).bounding_box()
        notebook.page.mouse.click(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)
        says(notebook, said)
    code = notebook.page.locator(".jp-CodeCell textarea").input_value()
    assert "dist.reduce(x, dst=3, op=dist.ReduceOp.MAX)" in code
    notebook.pictures("explore")


@one_in(0, 2)
def test_what_does_not_apply_is_off_and_says_why(notebook):
    choose(notebook, "all_gather")
    assert slider(notebook, "reduce op").is_disabled()
    assert (
        notebook.page.locator("label.off", has_text="reduce op").get_by_text("all_gather combines nothing").is_visible()
    )
    notebook.pictures("explore-off")


@one_in(1, 2)
def test_at_8_ranks_the_screen_has_the_sliders_and_all_that_they_change(notebook):
    page = notebook.page
    page.set_viewport_size({"width": 1280, "height": 800})
    slider(notebook, "world size").focus()
    notebook.keyboard.press("End")
    page.locator("[aria-live]", has_text="all_reduce SUM, ranks 0-7; afterwards ranks 0-7: 280 288 296").wait_for()
    notebook.cell(0).evaluate("e => e.scrollIntoView({block: 'start'})")
    for seen in (slider(notebook, "numbers"), page.locator(PICTURE)):
        box = seen.bounding_box()
        assert box["y"] > 0 and box["y"] + box["height"] < 800
    notebook.picture("explore-8-ranks")
    page.set_viewport_size({"width": 1280, "height": 1000})


@one_in(0, 2)
def test_a_picture_that_is_not_yet_the_controls_is_marked_until_it_is(notebook):
    figure = notebook.page.locator(".jp-CodeCell .collectives")
    at_once = """slider => {
        slider.value = 6
        slider.dispatchEvent(new Event('input'))
        return slider.closest('.collectives').hasAttribute('aria-busy')
    }"""
    assert slider(notebook, "world size").evaluate(at_once) and not figure.evaluate("e => e.ariaBusy === null")
    says(notebook, "ranks 0-7")
    notebook.page.locator(".jp-CodeCell .collectives:not([aria-busy])").wait_for()


def test_each_control_with_the_keyboard_alone(notebook):
    press = notebook.keyboard.press
    notebook.page.evaluate("document.activeElement.blur()")
    notebook.tab_to(".jp-CodeCell .bar button")
    for _ in range(3):  # broadcast, scatter, gather, reduce
        press("Tab")
    press("Space")
    says(notebook, "reduce SUM to 0")
    for key, said in [
        ("ArrowRight", "ranks 0-4"), ("ArrowRight", "reduce SUM to 1"), ("ArrowRight", "reduce AVG to 1"),
        ("ArrowRight", "float64"), ("ArrowLeft", "float64 [2]"),
    ]:  # fmt: skip
        notebook.tab_to("input[type=range]", 8)
        press(key)
        says(notebook, said)
    notebook.page.get_by_text("the code that runs").click()
    notebook.tab_to("textarea", 3)


WATCH = """() => {
    window.seen = []
    addEventListener('keydown', () => { window.pressed = performance.now() }, true)
    new MutationObserver(() => {
        const picture = document.querySelector('.jp-CodeCell .collectives img')
        if (!picture || picture === window.last) return
        const pressed = window.pressed
        window.last = picture
        picture.decode().then(() => requestAnimationFrame(() => window.seen.push(performance.now() - pressed)))
    }).observe(document.querySelector('.jp-OutputArea-output .collectives'), {childList: true, subtree: true})
}"""


@one_in(1, 2)
def test_from_a_control_to_its_picture(notebook, record_property):
    """Reported, not judged: 50 moves at 4 ranks. Judged: a burst of moves must not queue up."""
    page, press = notebook.page, notebook.keyboard.press
    choose(notebook, "broadcast")
    page.evaluate(WATCH)
    slider(notebook, "root").focus()
    for k in range(50):
        press("ArrowRight" if k % 6 < 3 else "ArrowLeft")
        page.wait_for_function("k => window.seen.length > k", arg=k)
    times = sorted(page.evaluate("window.seen"))
    slider(notebook, "world size").focus()
    for key in ["ArrowLeft"] * 2 + ["ArrowRight"] * 36 + ["ArrowLeft"] * 2:
        press(key)
    says(notebook, "ranks 0-5")
    pictures = page.evaluate("window.seen.length") - 50
    said = (
        f"median {statistics.median(times):.0f} ms, worst {times[-1]:.0f} ms; 40 moves in a burst: {pictures} pictures"
    )
    record_property("explore", said)
    print(said)
    (SCREENSHOTS / "explore-latency.txt").write_text(said + "\n")
    assert pictures < 30
