"""The website as `make site` builds it with Sphinx: every page, every picture, no link that leads nowhere."""

import base64
import hashlib
import io
import json
import re
from html import unescape
from urllib.parse import unquote, urlsplit

import nbformat
import numpy as np
import pytest
from PIL import Image

from collectives.draw.canvas import PALETTE, ink_on
from tests import ROOT
from tests.minutes import is_folded
from tests.sampling import is_taken, is_night
from tests.website import Page
from tools.notebooks import stored_picture
from tools.site.runnable_cells import CHECK

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(site):
    return {file.relative_to(site).as_posix(): Page(file) for file in site.rglob("*.html")}


def test_every_notebook_is_on_the_site_with_its_cells_pictures_and_folds(pages):
    for path in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*.ipynb")]:
        cells = nbformat.read(path, as_version=4).cells
        code = [c for c in cells if c.cell_type == "code"]
        played = [c for c in code if any("collectives" in o.get("metadata", {}) for o in c.outputs)]
        drawn = [o for c in code for o in c.outputs if stored_picture(o)]
        shown = [link for c in cells if c.cell_type == "markdown" for link in re.findall(r"!\[|<img\b", c.source)]
        folds = [
            c for c in code if c.metadata.get("jupyter", {}).get("outputs_hidden") and c.outputs and c not in played
        ]
        folds += [c for c in code if is_folded(c)]
        there = pages[f"{path.parent.name}/{path.stem}.html"]
        in_cells = path.stem == "00_start_here"  # a check is a part of the cell above it
        checks = [c for c in code if in_cells and CHECK.fullmatch(c.source)]
        assert there.cells == len(code) - len(checks), path.name
        assert there.pictures == len(drawn) + len(shown), path.name
        assert there.folded >= len(folds), path.name
    assert {"index.html", "notebooks/mistakes.html", "notebooks/bench.html", "exercises/README.html"} <= set(pages)


def test_a_chapter_is_one_page_whose_headings_have_places_of_their_own_that_stay(site, pages):
    chapters = sorted(ROOT.glob("notebooks/*.ipynb"))
    for path in chapters:
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"]
        sections = [words for c in cells for words in re.findall(r"^## (.+)$", without_code(c.source), re.MULTILINE)]
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        headings = [letters(words) for words in pages[f"notebooks/{path.stem}.html"].headings]
        assert [words for words in headings if words in map(letters, sections)] == list(map(letters, sections)), path.name
        places = re.findall(r'<section id="([^"]*)"', page)
        assert len(places) == len(set(places)) and not [at for at in places if re.fullmatch(r"id\d+", at)], path.name


def test_next_leads_from_each_chapter_to_the_one_that_follows(pages):
    chapters = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
    for path, following in zip(chapters, chapters[1:]):
        assert pages[f"notebooks/{path.stem}.html"].next == f"{following.stem}.html"


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def letters(words):
    return re.sub(r"\W", "", words)


def test_every_chapter_can_be_reached_from_the_first_page(pages):
    assert {f"notebooks/{path.stem}.html" for path in ROOT.glob("notebooks/*.ipynb")} <= set(pages["index.html"].links)


def test_no_link_of_the_site_leads_nowhere(site, pages):
    dead = set()
    for name, page in pages.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            file = (site / name).parent / unquote(to.path) if to.path else site / name
            there = pages.get(file.resolve().relative_to(site.resolve()).as_posix())
            if not file.is_file() or to.fragment and there and unquote(to.fragment) not in there.places:
                dead.add((name, link))
    assert dead == set()


def test_search_weighs_the_words_that_a_reader_sees(site):
    """A word that is on most pages too: the guide says NCCL more often than any.  A recording's text is one long word."""
    weights = json.loads((site / "_static" / "weights.js").read_text(encoding="utf-8").partition("=")[2])
    assert max(weights, key=lambda page: weights[page].get("nccl", 0)) == "notebooks/three_in_the_morning"
    assert not [word for words in weights.values() for word in words if len(word) > 60 or word.isdigit()]


def test_every_picture_has_words_and_no_file_name_for_them(pages):
    for name, page in pages.items():
        for alt in page.alts:
            assert len(alt) > 3 and not re.search(r"\.png$|[0-9a-f]{32}", alt), (name, alt)


def pictures(path):
    """The pictures stored in a notebook, as PNG."""
    outputs = [o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", ())]
    return {found.png for found in map(stored_picture, outputs) if found}


def shown(site, png, theme):
    """The files of a picture on the site, and the picture that they make one below the other."""
    files = sorted(site.glob(f"_static/figures/{hashlib.sha256(png).hexdigest()[:16]}-{theme}-*.webp"))
    return files, np.concatenate([np.asarray(Image.open(file).convert("RGB")) for file in files])


def test_pictures_are_lighter_than_stored_and_not_a_pixel_is_lost(site):
    weighs = {"stored": 0, "site": 0}
    for path in ROOT.glob("notebooks/*.ipynb"):
        for png in pictures(path):
            files, pixels = shown(site, png, "light")
            assert np.array_equal(pixels, Image.open(io.BytesIO(png)).convert("RGB")), path.name
            weighs["stored"] += len(png)
            weighs["site"] += sum(file.stat().st_size for file in files)
    assert weighs["site"] < 0.65 * weighs["stored"]


def test_no_picture_is_heavy(site):
    files = [file for file in site.rglob("*") if file.suffix in (".webp", ".png", ".gif", ".jpg", ".avif", ".svg")]
    assert len(files) > 450 and max(file.stat().st_size for file in files) <= 60_000


def test_in_dark_pictures_ranks_keep_their_colours_and_paper_and_ink_change_places(site, request):
    """Of a fourth of the notebooks, and of all at night."""
    for k, path in enumerate(sorted(ROOT.glob("notebooks/*.ipynb"))):
        for png in pictures(path) if is_night(request.config) or is_taken(k, 4) else ():
            light, dark = shown(site, png, "light")[1], shown(site, png, "dark")[1]
            assert light.shape == dark.shape
            white = (light == 255).all(axis=-1)
            paper = white[:8].all() and dark[:8].max() < 30  # pictures have a margin
            assert paper and (dark[white] < 30).all(axis=-1).mean() > 0.9, path.name
            for tint in PALETTE:
                same = (light == rgb(tint)).all(axis=-1)
                inside = same[1:-1, 1:-1] & same[:-2, 1:-1] & same[2:, 1:-1] & same[1:-1, :-2] & same[1:-1, 2:]
                assert inside.sum() < 100 or (dark[1:-1, 1:-1][inside] == rgb(tint)).all(axis=-1).mean() > 0.99, tint


def test_in_dark_pictures_words_on_ranks_cells_keep_their_ink(site):
    seen = dict.fromkeys(PALETTE, 0)
    for png in pictures(site.parent / "notebooks" / "98_played.ipynb"):
        light, dark = shown(site, png, "light")[1], shown(site, png, "dark")[1]
        for tint in PALETTE:
            cell, ink = (light == rgb(tint)).all(axis=-1), (light == rgb(ink_on(tint))).all(axis=-1)
            sides = ([np.roll(cell, way * far, axis) for far in range(1, 9)] for axis in (0, 1) for way in (-1, 1))
            words = ink & np.logical_and.reduce([np.logical_or.reduce(side) for side in sides])
            assert (dark[words] == rgb(ink_on(tint))).all(), tint
            seen[tint] += words.sum()
    assert min(seen.values()) > 20


def rgb(tint):
    return [int(tint[i : i + 2], 16) for i in (1, 3, 5)]


def test_every_page_says_what_it_is_and_a_chapters_what_runs_there(site, pages):
    titles = []
    for name in pages:
        head, _, body = (site / name).read_text(encoding="utf-8").partition("</head>")
        if name in ("search.html", "genindex.html"):
            continue
        said = unescape(re.search(r'<meta name="description" content="([^"]*)">', head)[1])
        assert 40 <= len(said) <= 204 and 'property="og:title"' in head and "favicon.svg" in head, name
        titles.append(re.search(r"<title>(.*?)</title>", head)[1])
        if re.match(r"(notebooks|exercises)/\d\d_", name):
            assert re.search("To run and change the cells yourself|Change a cell on this page and run it", body), name
    assert len(titles) - len(set(titles)) < 5


def test_nothing_is_loaded_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=[\"'](?:https?:)?//", re.IGNORECASE)
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        assert not loads.search(text) and "@import url(http" not in text, file


def test_the_answer_of_a_prediction_is_in_no_search_and_in_no_words_of_its_page(site):
    page = (site / "notebooks" / "98_played.html").read_text(encoding="utf-8")
    assert "7100" in page and "21633" not in page
    assert "98_played" in (index := (site / "searchindex.js").read_text(encoding="utf-8")) and "21633" not in index
    figures = [json.loads(text) for text in re.findall(r'collectives\+json">(.*?)</script>', page)]
    assert [f["kind"] for f in figures] == ["steps", "steps", "predict", "predict", "predict", "explore", "cost"]
    assert all(len(json.dumps(f, ensure_ascii=False, separators=(",", ":")).encode()) <= 60_000 for f in figures)
    key = json.loads(base64.b64decode(figures[2]["key"]))
    assert key["wants"][0][0]["text"] == "21633" and (site / "notebooks" / key["after"]["picture"][0]["src"]).is_file()
