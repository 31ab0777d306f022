"""The course's prose is idiomatic English: phrases that are right word by word and that nobody says.

BANNED holds a pattern and what to write instead.  A phrase that is right where it stands is listed in RIGHT with its file.
What is read: pages, chapters, exercises with their solutions, and of the code every string (captions, messages, thoughts) and
what help() says of a name that a package offers.
"""

import ast
import inspect
import re
from importlib import import_module

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
    r"\b(?:bytes?|seconds?|numbers?|calls?|messages?|tokens|times|entry|strings?|steps|stages) an? "
    r"(?:rank|call|step|byte|row|number|layer|microbatch)\b": "per rank",
    r"\bhalf as (?:much|many)\b[^.]{0,12}\bagain\b": "50% more; 1.5 times as much",
    r"\b(?:go|goes|going) on with\b": "continue with; compute on",
    r"\baddends?\b": "partial sum",
    r"\btime-outs?\b": "timeout",
    r"\b(?:colour|neighbour|behaviour|favour|centre|travell)\w*|\bgrey\b": "color, neighbor, gray, ...",
}
RIGHT = {}  # file, or package -> the phrases that may stand there
PAGES = [ROOT / "README.md", ROOT / "INSTALL.md", *ROOT.glob("notebooks/*.md"), *ROOT.glob("exercises/*.md")]
PAGES += [*ROOT.glob("solutions/*.md"), *ROOT.glob("tools/site/*.md")]
CHAPTERS = [*ROOT.glob("notebooks/*.ipynb")]
EXERCISES = [*ROOT.glob("exercises/*.ipynb"), *ROOT.glob("solutions/*.ipynb")]
CODE = [path for folder in ("collectives", "helpers", "exercises/tasks") for path in ROOT.glob(f"{folder}/**/*.py")]
READ = sorted(PAGES + CHAPTERS + EXERCISES + CODE)
PACKAGES = [
    "collectives",
    *(f"collectives.{name}" for name in "algorithms cost explain jobs machines play train".split()),
]
PACKAGES += ["helpers", "helpers.exercise", "helpers.model", "helpers.views"]

FENCED = re.compile(r"^(```|~~~).*?^\1|^ {4}\S.*?$", re.MULTILINE | re.DOTALL)
ASIDE = re.compile(r"`[^`\n]*`|\$[^$\n]*\$|<[^>]*>|(?<=\])\([^)]*\)")  # code, formulas, tags, the targets of links


def prose(text):
    """A text's sentences on one line each, without code, formulas and addresses."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", ASIDE.sub("", FENCED.sub("", text)))


def strings(source):
    """(line, text) of each string in this Python: of an f-string what is written out, and no docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    passed |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.lineno, node.value


def texts(path):
    """(line or number of the cell, text) of all that the file says."""
    if path.suffix == ".md":
        return [(1, path.read_text())]
    if path.suffix == ".py":
        return [(line, text) for line, text in strings(path.read_text()) if " " in text]
    cells = nbformat.read(path, as_version=4).cells
    return [(number, cell.source) for number, cell in enumerate(cells) if cell.cell_type == "markdown"]


def stilted(text, allowed=()):
    """The banned phrases of a text, each with what to write instead."""
    found = [
        (match[0], instead) for banned, instead in BANNED.items() for match in re.finditer(banned, prose(text), re.I)
    ]
    return [f"{phrase!r}: {instead}" for phrase, instead in found if phrase not in allowed]


def unidiomatic(said, allowed=()):
    """(where, phrases) of those (where, text) that have any."""
    return [(where, found) for where, text in said if (found := stilted(text, allowed))]


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_says_it_as_people_say_it(path):
    assert unidiomatic(texts(path), RIGHT.get(path.name, ())) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_help_says_it_as_people_say_it(package):
    offered = import_module(package)
    said = [(package, offered.__doc__ or "")]
    said += [(name, inspect.getdoc(getattr(offered, name)) or "") for name in offered.__all__]
    assert unidiomatic(said, RIGHT.get(package, ())) == []


def test_phrases_are_found_across_lines_and_not_in_code():
    assert stilted("All wait for\never.") == ["'for ever': forever"]
    assert stilted("Send 4 bytes a rank, with another\ndtype.") == [
        "'another dtype': a different",
        "'bytes a rank': per rank",
    ]
    assert stilted("`for ever` and [here](for ever)\n```\nfor ever\n```\n\n    for ever\n") == []


def test_strings_of_code_are_read_and_docstrings_are_not():
    source = '''def f(n):
    """For ever."""
    return f"{n} waits " "for ever", ["a", "b"]
'''
    assert [text for _, text in strings(source)] == [" waits for ever", "a", "b"]
