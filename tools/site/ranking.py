"""A Sphinx extension: the weight of each word on each page, by which tools/site/scorer.js ranks what a search finds.

Sphinx's index knows on which pages a word is, but not how often, so all ties would be sorted by title.  The weights are
BM25's (Robertson and Zaragoza, 2009), where a word in a title or heading counts as several.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path

from docutils import nodes
from sphinx.search.en import SearchEnglish

SATURATION, LENGTH_SHARE = 4, 0.5  # BM25's k1 and b, for pages as long as a chapter
IN_HEADING, IN_TITLE = 8, 40  # what a word there counts as
WORDS_OF_A_PAGE = 600  # words of a page, the weightiest
# Factors: for pages that were written for those who search; for what repeats a chapter, or lists all that there is.
BOOSTS = {
    "three_in_the_morning": 1.8, "watch_your_job": 1.45, "explain_a_log": 1.45, "tour": 0.4, "mistakes": 0.6,
    "if_the_start_fails": 0.6, "reference": 0.6,
}  # fmt: skip
ELSEWHERE = 0.5  # outside notebooks
WORD = re.compile(r"(?!\d+\b)\w+")  # nobody searches for a number
UNSEEN = re.compile(r"<script.*?</script>|<[^>]*>", re.DOTALL)  # of a page's HTML: recordings, tags

_pages: dict[str, tuple[Counter, int]] = {}  # page -> its words, weighted by where they are, and its length
_stem = SearchEnglish({}).stem


def count_words(app, name, template, context, doctree):
    """Count a page's words, stemmed as the search does it."""
    if doctree is None:
        if name == "search":
            app.add_js_file("weights.js")  # on this page alone
        return
    counts, title = Counter(), True
    for word in WORD.findall(doctree.get("title", "").lower()):  # of a chapter's page: with the chapter's name
        counts[_stem(word)] += IN_TITLE
    for text in doctree.findall(nodes.Text):
        if _is_notice(text):
            continue
        prose = UNSEEN.sub(" ", text) if isinstance(text.parent, nodes.raw) else text.astext()
        heading = isinstance(text.parent, nodes.title)
        weight = (IN_TITLE if title else IN_HEADING) if heading else 1
        title = title and not heading
        for word in WORD.findall(prose.lower()):
            counts[_stem(word)] += weight
    _pages[name] = counts, sum(counts.values())


def _is_notice(text: nodes.Text) -> bool:
    """Whether this is in the lines that every page of a notebook has."""
    return any(
        "plays" in node.get("classes", ())
        for node in (text.parent, text.parent.parent)
        if isinstance(node, nodes.Element)
    )


def write_weights(app, exception):
    """Write each page's weightiest words."""
    if exception is None:
        words = json.dumps(weights(_pages), ensure_ascii=False, separators=(",", ":"))
        Path(app.outdir, "_static", "weights.js").write_text(f"var WEIGHTS = {words}\n", encoding="utf-8")


def weights(pages: dict[str, tuple[Counter, int]]) -> dict[str, dict[str, int]]:
    """By page and word: its BM25 weight, in hundredths."""
    on_pages = Counter(word for counts, _ in pages.values() for word in counts)
    usual = sum(length for _, length in pages.values()) / max(1, len(pages))
    by_page = {}
    for name, (counts, length) in pages.items():
        share = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length / usual)
        boost = _boost(name)
        weighed = {
            word: round(100 * boost * _rarity(len(pages), on_pages[word]) * count * (1 + SATURATION) / (count + share))
            for word, count in counts.items()
        }
        by_page[name] = dict(sorted(weighed.items(), key=lambda item: -item[1])[:WORDS_OF_A_PAGE])
    return by_page


def _rarity(pages: int, with_it: int) -> float:
    return math.log(1 + (pages - with_it + 0.5) / (with_it + 0.5))


def _boost(name: str) -> float:
    folder, _, page = name.rpartition("/")
    return BOOSTS.get(page, 1.0) if folder == "notebooks" else ELSEWHERE


def setup(app):
    app.connect("html-page-context", count_words)
    app.connect("build-finished", write_weights)
    return {"parallel_read_safe": True}
