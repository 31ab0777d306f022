"""axe-core finds nothing to mend on pages of every kind of the website, new and used, in light and in dark, on a desktop and on a phone."""

import pytest

from tests import ROOT
from tests.sampling import is_taken, is_night
from tools.site.python import from_npm

AXE = "axe-core@4.14.1"
PAGES = (
    "index", "README", "INSTALL", "search",
    "notebooks/00_start_here", "notebooks/98_played", "notebooks/09_algorithms", "notebooks/10_what_it_costs",
    "notebooks/21_prices_and_a_plan", "notebooks/twelve_puzzles", "notebooks/reference", "notebooks/mistakes",
    "notebooks/bench", "exercises/README", "exercises/09_beat_the_schedule", "exercises/14_within_memory", "notebooks/cheatsheet",
)  # fmt: skip
FOUND = """() => axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations.flatMap(wrong =>
    wrong.nodes.map(node => `${wrong.id}: ${node.target}: ${node.html.slice(0, 160)}`)))"""

# What a reader has made of a page: every answer shown, every fold open, and scrolled up a little.
USED = """async () => {
    const drawn = () => new Promise(requestAnimationFrame)
    for (const button of document.querySelectorAll('.collectives button')) if (button.textContent === 'Show me') button.click()
    for (const fold of document.querySelectorAll('details')) fold.open = true
    for (const place of [900, 900, 600, 600]) {
        scrollTo(0, place)
        await drawn()
    }
    for (const fades of document.getAnimations()) if (fades.effect.getComputedTiming().endTime < Infinity) fades.finish()
    return document.querySelectorAll('.collectives, details').length
}"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(chrome, site, scheme, width, request):
    """By day, each page in one of the four."""
    folder = from_npm(AXE, ["axe.min.js"], ROOT / ".venv-site")
    if folder is None:
        pytest.skip("no npm to fetch axe-core with")
    context = chrome.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, wrong = context.new_page(), {}
    for k, pattern in enumerate(PAGES):
        if not is_night(request.config) and not is_taken(k + 2 * (scheme == "dark") + (width == 390), 4):
            continue
        files = sorted(site.glob(f"{pattern}.html"))
        assert files, f"the site has no page {pattern}"
        page.goto(files[0].as_uri())
        page.add_script_tag(path=folder / "axe.min.js")
        found = page.evaluate(FOUND)
        if page.evaluate(USED):
            found += page.evaluate(FOUND)
        if found:
            wrong[files[0].stem] = found
    context.close()
    assert wrong == {}
