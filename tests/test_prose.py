"""The course's prose is idiomatic English: phrases that are right word by word and that nobody says.

BANNED holds a pattern and what to write instead.  A phrase that is right where it stands is listed in RIGHT with its file.
Files of UNEDITED have not had their line edit yet: one that has had it leaves the list, which only gets shorter.
"""

import re

import nbformat
import pytest

from tests import ROOT

BANNED = {
    r"\bfor ever\b": "forever",
    r"\bseldom\b": "rarely",
    r"\breckon\w*": "compute, work out",
    r"\banew\b": "again; from scratch",
    r"\bper cent\b|\d %": "12%",
    r"\bhence\b": "so; which is why",
    r"\bshall\b": "should; will",
    r"\b(?:are|is) dear\b": "is expensive",
    r"\b(?:below|behind) each other\b": "stacked; concatenated, end to end",
    r"\bfor want of\b": "because we had no; for lack of",
    r"\bin place of\b": "instead of",
    r"\bby turns\b": "alternating",
    r"\bin silence\b": "silently, without an error",
    r"\b(?:is|are|was) (?:another|others)\b": "is different",
    r"\b(?:need|needs) not\b": "doesn't have to",
    r"\bwhat (?:comes|becomes) of\b|\bwhat of\b": "what happens to; what about",
    r"\banother (?:backend|dtype|shape|order|op|operation|length|factor|piece|size|tensor|root|kind|result)\b": "a different",
    r"(?<!there )\b(?:is|are) no (?!longer|more|different|such|way)\w+": "isn't a",
    r"\bany, also\b|\balso (?:when|where|if|those)\b": "any, including; even if",
    r"\b(?:bytes?|seconds?|numbers?|calls?|messages?|tokens|times) an? (?:rank|call|step|byte|row|number|layer)\b": "per rank",
    r"\bhalf as (?:much|many)\b[^.]{0,12}\bagain\b": "50% more; 1.5 times as much",
    r"\b(?:go|goes|going) on with\b": "continue with; compute on",
    r"\baddends?\b": "partial sum",
    r"\btime-outs?\b": "timeout",
    r"\b(?:colour|neighbour|behaviour|favour|centre|travell)\w*|\bgrey\b": "color, neighbor, gray, ...",
}
RIGHT = {}  # file -> the phrases that may stand there
UNEDITED = {f"{number:02d}" for number in range(7, 22)} - {"11", "12"}  # chapters, by number
PAGES = [ROOT / "README.md", ROOT / "INSTALL.md", ROOT / "notebooks" / "watch_your_job.md"]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EDITED = [path for path in PAGES + CHAPTERS if path.stem[:2] not in UNEDITED]

FENCED = re.compile(r"^(```|~~~).*?^\1|^ {4}\S.*?$", re.MULTILINE | re.DOTALL)
ASIDE = re.compile(r"`[^`\n]*`|\$[^$\n]*\$|<[^>]*>|(?<=\])\([^)]*\)")  # code, formulas, tags, the targets of links


def prose(text):
    """A text's sentences on one line each, without code, formulas and addresses."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", ASIDE.sub("", FENCED.sub("", text)))


def texts(path):
    if path.suffix == ".md":
        return [path.read_text()]
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]


def stilted(text, allowed=()):
    """The banned phrases of a text, each with what to write instead."""
    found = [
        (match[0], instead) for banned, instead in BANNED.items() for match in re.finditer(banned, prose(text), re.I)
    ]
    return [f"{phrase!r}: {instead}" for phrase, instead in found if phrase not in allowed]


@pytest.mark.parametrize("path", EDITED, ids=lambda path: path.name)
def test_says_it_as_people_say_it(path):
    found = {number: stilted(text, RIGHT.get(path.name, ())) for number, text in enumerate(texts(path))}
    assert {number: what for number, what in found.items() if what} == {}


def test_phrases_are_found_across_lines_and_not_in_code():
    assert stilted("All wait for\never.") == ["'for ever': forever"]
    assert stilted("Send 4 bytes a rank, with another\ndtype.") == [
        "'another dtype': a different",
        "'bytes a rank': per rank",
    ]
    assert stilted("`for ever` and [here](for ever)\n```\nfor ever\n```\n\n    for ever\n") == []
