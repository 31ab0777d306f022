"""Slides in a browser that has no network: the keys of a presenter turn them, and nothing is asked for."""

import nbformat

from helpers.course import NOTEBOOKS
from tools.slides import page, slides

from .lab import PATIENCE, SCREENSHOTS


def test_slides_turn_without_a_network(chrome, tmp_path):
    made = slides(nbformat.read(NOTEBOOKS / "05_many_to_many.ipynb", as_version=4))
    (tmp_path / "slides.html").write_text(page("05 Many to many", made.cells), encoding="utf-8")
    for scheme in ("light", "dark"):
        for width, height in ((1440, 900), (1280, 720), (390, 800)):
            context = chrome.browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
            )
            shown, requests = context.new_page(), []
            shown.set_default_timeout(PATIENCE)
            shown.on("request", lambda sent: requests.append(sent.url))
            shown.goto((tmp_path / "slides.html").as_uri())
            count = int(shown.locator("output").inner_text().split(" of ")[1])
            for key, place in (("ArrowRight", 2), (" ", 3), ("PageUp", 2), ("End", count), ("Home", 1), ("PageDown", 2)):
                shown.keyboard.press(key)
                assert shown.locator("output").inner_text() == f"{place} of {count}"
            assert shown.url.endswith("#2")
            top, bottom = shown.locator("section").nth(1).evaluate("e => [e.getBoundingClientRect().top, e.offsetHeight]")
            assert abs(top) < 2 and bottom >= height
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            assert shown.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 100)")
            shown.screenshot(path=SCREENSHOTS / f"slides-{scheme}-{width}.png")
            assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
            context.close()
