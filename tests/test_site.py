"""The website as `make site` builds it with Sphinx: every page, every picture, no link that leads nowhere."""

import base64
import hashlib
import io
import json
import re
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from PIL import Image

from tests import ROOT
from tests.website import Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(site):
    return {file.relative_to(site).as_posix(): Page(file) for file in site.rglob("*.html")}


def test_every_notebook_is_a_page_with_its_pictures_and_folds(pages):
    for path in [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*.ipynb")]:
        page = pages[f"{path.parent.name}/{path.stem}.html"]
        cells = nbformat.read(path, as_version=4).cells
        played = [
            c for c in cells if c.cell_type == "code" and any("collectives" in o.get("metadata", {}) for o in c.outputs)
        ]
        drawn = [o for c in cells if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})]
        shown = [link for c in cells if c.cell_type == "markdown" for link in re.findall(r"!\[|<img\b", c.source)]
        assert len(page.alts) == len(drawn) + len(shown), path.name
        folds = [
            c for c in cells if c.metadata.get("jupyter", {}).get("outputs_hidden") and c.outputs and c not in played
        ]
        assert page.folded >= len(folds), path.name
    assert {"index.html", "notebooks/mistakes.html", "notebooks/bench.html", "exercises/README.html"} <= set(pages)


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


def test_every_picture_has_words_and_no_file_name_for_them(pages):
    for name, page in pages.items():
        for alt in page.alts:
            assert len(alt) > 3 and not re.search(r"\.png$|[0-9a-f]{32}", alt), (name, alt)


def test_pictures_are_lighter_than_stored_and_not_a_pixel_is_lost(site):
    weighs = {"stored": 0, "site": 0}
    for path in ROOT.glob("notebooks/*.ipynb"):
        outputs = [o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", ())]
        for png in {base64.b64decode(o.data["image/png"]) for o in outputs if "image/png" in o.get("data", {})}:
            file = site / "_static" / "figures" / f"{hashlib.sha256(png).hexdigest()[:16]}.webp"
            stored, shown = (Image.open(io.BytesIO(data)).convert("RGB") for data in (png, file.read_bytes()))
            assert stored.tobytes() == shown.tobytes(), path.name
            weighs["stored"] += len(png)
            weighs["site"] += file.stat().st_size
    assert weighs["site"] < 0.65 * weighs["stored"]


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
    assert key["wants"][0][0]["text"] == "21633" and (site / "notebooks" / key["after"]["picture"]["src"]).is_file()
