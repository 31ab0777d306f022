"""The website in Chromium, on a desktop and on a phone: what was recorded plays there without a kernel."""

import io
import re
from itertools import combinations

import pytest
from PIL import Image

from helpers.views.web import script
from tests.sampling import is_taken, is_night
from tests.test_colours import VISION, apart

from .lab import SCREENSHOTS

WIDTHS = {1280: 900, 390: 844}
SHIFTS = """() => new Promise(resolve => {
    let sum = 0
    new PerformanceObserver(list => list.getEntries().forEach(entry => (sum += entry.hadRecentInput ? 0 : entry.value)))
        .observe({ type: 'layout-shift', buffered: true })
    setTimeout(() => resolve(sum), 200) // what is buffered has come by then
})"""
STEP_BACK = """figure => {
    figure.querySelector('[aria-label="one step back"]').click()
    return getComputedStyle(figure.querySelector('.comes')).opacity
}"""
# What people ask, and the page that was written for it.
SOUGHT = {
    "nccl hang": "three_in_the_morning", "fsdp oom": "12_|21_", "moe all to all": "15_", "explain log": "explain_a_log", "nccl timeout": "three_in_the_morning|explain_a_log|18_",
    "NCCL_TIMEOUT": "three_in_the_morning|explain_a_log|18_", "watchdog": "three_in_the_morning|explain_a_log|18_", "stuck": "three|18_|watch|mistakes",
    "deadlock": "02_|18_|watch", "fsdp": "12_", "fsdp2": "12_", "zero": "12_", "ddp": "11_", "moe": "15_", "experts": "15_",
    "nan": "04_|watch_your_job|18_", "oom": "12_|20_|21_|planner|14_", "tensor parallel": "13_", "pipeline bubble": "14_", "1f1b": "14_",
    "ring attention": "16_", "context parallel": "16_", "sequence parallel": "13_|16_", "allreduce": "0[569]_|cheatsheet",
    "all-to-all": "05_|15_|24_|cheatsheet", "ring allreduce": "09_", "broadcast": "03_|cheatsheet", "reduce scatter": "05_|cheatsheet",
    "barrier": "0[0-9]_|18_", "cheat sheet": "cheatsheet", "planner": "planner|21_", "mfu": "21_|20_", "bandwidth": "10_|calibration|19_",
    "process group": "0[17]_", "safetensors": "17_",
}  # fmt: skip
SUM = "21633"
# Letters of figures and pictures that are smaller than 11 pixels, as they are seen.
SMALL = """() => [...document.querySelectorAll('.collectives svg text, .collectives button, .collectives input')].filter(e => {
    const drawn = e.ownerSVGElement, scale = drawn ? drawn.getBoundingClientRect().width / drawn.viewBox.baseVal.width : 1
    return scale * parseFloat(getComputedStyle(e).fontSize) < 11
}).map(e => e.textContent)"""
# Pictures that are shown much smaller than they were drawn; on a wide screen, that are cut.
SHRUNK = """() => [...document.querySelectorAll('.still img')].filter(e =>
    e.complete && e.offsetParent && e.getBoundingClientRect().width < 0.9 * Number(e.getAttribute('width'))).map(e => e.alt)"""
CUT = "() => [...document.querySelectorAll('.still')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
UNREACHED = """() => [...document.querySelectorAll('pre, .still, .stacked')].filter(e =>
    e.checkVisibility({ contentVisibilityAuto: true }) && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0).length"""


@pytest.fixture(params=WIDTHS, ids=lambda width: f"{width} pixels")
def open_page(chrome, site, request):
    """Opens a page of the site from its file; at the end nothing may have failed, or come from elsewhere."""
    wrong, width = [], request.param
    context = chrome.browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]},
        color_scheme="dark" if width < 500 else "light",
        has_touch=width < 500,
    )
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: None if sent.url.startswith(("file:", "data:")) else wrong.append(sent.url))

    def opened(name):
        page.goto((site / name).as_uri())
        return page

    yield opened
    page.screenshot(path=SCREENSHOTS / f"site-{request.node.name.replace(' ', '-')}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the screen"
    assert page.evaluate(SMALL) == [] and page.evaluate(SHRUNK) == []
    assert page.evaluate(UNREACHED) == 0, "what scrolls must be reached by keyboard"
    assert width < 1000 or page.evaluate(CUT) == 0, "a picture is cut"
    context.close()
    assert wrong == []


def test_the_first_page_moves_within_a_second_and_leads_on(open_page):
    page = open_page("index.html")
    figure = page.locator(".collectives").first
    figure.locator(".sheet").scroll_into_view_if_needed()
    figure.locator(".count", has_text="1 of 6").wait_for(timeout=1000)
    figure.locator(".count", has_text="6 of 6").wait_for()
    assert figure.locator("[data-at]:not(.goes) text", has_text="Σ").count() == 16
    assert figure.evaluate(STEP_BACK) == "0", "a cell changes once the message has arrived"
    assert page.evaluate(SHIFTS) < 0.05
    for name, target in (("write your first line", "00_start_here.html"), ("Run it yourself", "#run-it-yourself")):
        assert target in page.get_by_role("link", name=name).first.get_attribute("href")


def test_the_first_page_moves_in_a_window_lower_than_its_figure(chrome, site):
    context = chrome.browser.new_context(viewport={"width": 844, "height": 130})
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    figure = page.locator(".collectives").first
    figure.locator(".sheet").evaluate("e => e.scrollIntoView({ block: 'start' })")
    figure.locator(".count", has_text="1 of 6").wait_for()
    context.close()


def test_search_finds_the_page_that_was_written_for_it_first(chrome, site):
    page, found = chrome.new_page(), {}
    for query in SOUGHT:
        page.goto(f"{(site / 'search.html').as_uri()}?q={query.replace(' ', '+')}")
        page.locator("#search-results li a").first.wait_for()
        found[query] = page.locator("#search-results li a").first.get_attribute("href").partition("#")[0]
    page.close()
    wrong = {query: first for query, first in found.items() if not re.search(SOUGHT[query], first)}
    assert wrong == {}


def test_no_page_is_wider_than_a_phone(chrome, site, request):
    """A third of the pages, and all at night."""
    context = chrome.browser.new_context(viewport={"width": 390, "height": WIDTHS[390]}, has_touch=True)
    page, across = context.new_page(), {}
    files = sorted([*site.glob("notebooks/*.html"), *site.glob("exercises/*.html")])
    for file in files if is_night(request.config) else [file for k, file in enumerate(files) if is_taken(k)]:
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        across[file.stem] = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert {name for name, wide in across.items() if wide > 390} == set() and len(across) > 20


def test_a_search_leads_to_the_section_and_the_lists_beside_a_page_to_where_the_reader_is(chrome, site):
    page = chrome.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q=gradient+accumulation")
    page.locator("#search-results li a").first.click()
    page.wait_for_function("scrollY > 500")  # not the top of a chapter
    in_view = "e => { const r = e.getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight }"
    page.wait_for_function(in_view, arg=page.locator(".toc-tree .scroll-current > a").last.element_handle())
    page.goto((site / "notebooks" / "21_prices_and_a_plan.html").as_uri())
    page.wait_for_function(in_view, arg=page.locator(".sidebar-tree .current-page > a").last.element_handle())  # it scrolls smoothly
    page.close()


def test_steps_move_with_buttons_and_keys_and_say_where_data_came_from(open_page):
    page = open_page("notebooks/98_played.html")
    ring, chain = page.locator(".collectives").nth(0), page.locator(".collectives").nth(1)
    high = ring.bounding_box()["height"]
    ring.get_by_role("button", name="one step on").click()
    ring.locator("[aria-live]", has_text="step 1: 0 -> 1 +d, 1 -> 2 +a").wait_for()
    assert ring.bounding_box()["height"] == high, "longer words move what is below"
    ring.get_by_role("slider").focus()
    page.keyboard.press("End")
    ring.locator(".count", has_text="6 of 6").wait_for()
    ring.locator("[data-at='2 0']").click(force=True)
    ring.get_by_text("a on rank 2: the sum of ranks 0, 1, 2 and 3; rank 1 sent it in step 5").wait_for()
    chain.get_by_role("button", name="Play").click()
    chain.locator(".count", has_text="3 of 3").wait_for()
    chain.get_by_role("button", name="Play").wait_for()
    assert chain.evaluate(STEP_BACK) == "0", "a lane changes once the message has arrived"


def test_a_prediction_is_marked_in_two_stages(open_page):
    page = open_page("notebooks/98_played.html")
    grid, verdict, waits = (page.locator(".collectives").nth(k) for k in (2, 3, 4))
    fields = grid.locator("input[type=text]")
    for k, words in enumerate(["7100", "7100", SUM, SUM, "7322", "?"]):
        fields.nth(k).fill(words)
    fields.nth(5).press("Enter")
    grid.get_by_text("2 of 6 right").wait_for()
    hint = grid.get_by_text("rank 2: this is well defined: all_reduce leaves the SUM")
    assert hint.is_hidden(), "a hint may give the answer away"
    grid.get_by_text("A hint").click()
    hint.wait_for()
    grid.get_by_text(
        "ranks 0 and 2: you gave the rank's own number; all_reduce takes the SUM over all ranks"
    ).wait_for()
    assert grid.get_by_text(f"✗ {SUM}").count() == 0 and grid.locator("img").count() == 0
    grid.get_by_role("button", name="Show me").click()
    assert grid.get_by_text(f"✗ {SUM}").count() == 4
    grid.locator("img[alt^='Picture: all_reduce SUM']:visible").wait_for()
    fields.nth(0).fill(f"{SUM} {SUM}")  # a whole row in its first field
    fields.nth(1).fill("")
    for k in (4, 5):
        fields.nth(k).fill(f"{SUM}.0")
    grid.get_by_role("button", name="Check again").click()
    grid.get_by_text("All 6 right").wait_for()
    page.reload()
    grid.get_by_text("All 6 right").wait_for()
    assert fields.nth(4).input_value() == f"{SUM}.0", "what was predicted is still there"

    verdict.locator("button", has_text="it finishes").click()
    verdict.get_by_role("button", name="Check").click()
    verdict.get_by_text("It did not finish: rank 0 is waiting in barrier").wait_for()
    assert verdict.locator("img").count() == 0
    verdict.locator("button", has_text="wait forever").click()
    verdict.get_by_role("button", name="Check again").click()
    verdict.get_by_text("Right.", exact=True).wait_for()
    waits.get_by_role("textbox").fill("rank 1")
    waits.get_by_role("textbox").press("Enter")
    waits.get_by_text("Not so.").wait_for()
    waits.get_by_role("textbox").fill("0")
    waits.get_by_role("textbox").press("Enter")
    waits.get_by_text("Right.", exact=True).wait_for()


def test_on_a_phone_a_pictures_before_stands_above_its_after(open_page):
    page = open_page("notebooks/98_played.html")
    grid, run = page.locator(".collectives").nth(2), page.locator(".still").last
    grid.get_by_role("button", name="Check").click()
    grid.get_by_role("button", name="Show me").click()
    for drawn in (grid, run):
        drawn.scroll_into_view_if_needed()
        drawn.locator("img[alt^='Picture: all_reduce SUM']:visible").first.wait_for()
        rows = drawn.locator(".stacked:visible .row")
        if page.viewport_size["width"] > 600:
            assert rows.count() == 0
            continue
        rows.nth(2).wait_for()
        head, before, after = (rows.nth(k).bounding_box() for k in range(3))
        assert head["y"] + head["height"] <= before["y"] < before["y"] + before["height"] <= after["y"]
        assert rows.nth(2).locator(".part").count() == 2, "the ranks' names again, and what they hold"
        assert before["x"] + before["width"] <= 390 and after["x"] + after["width"] <= 390


def test_explore_and_costs_follow_their_controls(open_page):
    page = open_page("notebooks/98_played.html")
    explore, costs = page.locator(".collectives").nth(5), page.locator(".collectives").nth(6)
    explore.get_by_role("button", name="all_to_all", exact=True).click()
    explore.locator("[aria-live]", has_text="all_to_all_single, ranks 0-3").wait_for()
    assert explore.get_by_role("slider", name="reduce op").is_disabled()
    explore.get_by_role("slider", name="world size").focus()
    page.keyboard.press("End")
    explore.locator("[aria-live]", has_text="ranks 0-7").wait_for()
    explore.locator("[data-at='1 6']").click(force=True)
    explore.locator("[aria-live]", has_text="on rank 1: from rank 6").wait_for()
    assert "world_size=8" in explore.locator("textarea").input_value()
    explore.get_by_role("button", name="scatter", exact=True).click()
    explore.get_by_role("slider", name="root").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    explore.locator("[aria-live]", has_text="scatter from 2, ranks 0-7").wait_for()
    explore.locator("[data-at='5 0']").click(force=True)
    explore.locator("[aria-live]", has_text="on rank 5: from rank 2").wait_for()
    assert "if rank == 2 else None" in explore.locator("textarea").input_value()
    explore.get_by_role("button", name="all_reduce", exact=True).click()
    explore.get_by_role("slider", name="numbers").focus()
    page.keyboard.press("End")
    explore.locator("[aria-live]", has_text="all_reduce SUM, ranks 0-7, float32 [4]").wait_for()
    explore.locator("[data-at='5 0']").click(force=True)
    explore.locator("[aria-live]", has_text="Σa (280 288 296 304) on rank 5: combined from").wait_for()
    assert "torch.arange(4)" in explore.locator("textarea").input_value()
    costs.get_by_role("slider", name="ranks").focus()
    page.keyboard.press("End")
    costs.locator("[aria-live]", has_text="131,072 ranks, 1 MiB: halving and doubling is fastest").wait_for()
    costs.get_by_role("slider", name="buffer").focus()
    page.keyboard.press("Home")
    costs.locator("[aria-live]", has_text="131,072 ranks, 8 B: recursive doubling is fastest with 85 µs").wait_for()


def test_in_light_and_in_dark_pictures_and_figures_have_the_same_colours(open_page):
    page = open_page("notebooks/98_played.html")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    ranks = re.findall(r"#\w{6}", re.search(r"const PALETTE = \[(.*?)\]", script())[1])
    loaded = []
    page.on("request", lambda sent: loaded.append(sent.url))
    for turned in (False, True):  # as the system has it, then as the page's own switch has it
        if turned:
            page.evaluate("theme => (document.body.dataset.theme = theme)", "light" if dark else "dark")
        still = page.locator(".still:visible").last
        still.scroll_into_view_if_needed()
        page.wait_for_function(
            "still => [...still.querySelectorAll('img')].some(e => e.checkVisibility() && e.complete && e.naturalWidth)",
            arg=still.element_handle(),
        )
        stacked = still.locator(".stacked:visible")  # on a phone
        picture = stacked if stacked.count() else still.locator("img:visible")
        shot = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
        paper = shot.getpixel((3, 3))
        assert max(paper) < 30 if dark != turned else min(paper) == 255
        much = [colour for count, colour in shot.getcolors(1 << 24) if count > 100]
        shown = ["#%02x%02x%02x" % min(much, key=lambda colour: off(colour, tint)) for tint in ranks]
        assert shown == ranks
        for n in range(2, len(shown) + 1):
            for vision in VISION:
                assert min(apart(*pair, vision) for pair in combinations(shown[:n], 2)) > 16
        if not turned:
            other = "light" if dark else "dark"
            assert not [url for url in loaded if f"-{other}-" in url], "only one of the two is loaded"


def off(colour, tint):
    return sum((channel - int(tint[i : i + 2], 16)) ** 2 for channel, i in zip(colour, (1, 3, 5)))
