"""The course's prose is idiomatic English: phrases that are right word by word and that nobody says.

BANNED holds a pattern and its replacement.  A phrase that is right in a file is listed in RIGHT with that file.
These are read: pages, chapters, exercises with their solutions, every string in the code (captions, messages,
thoughts), the help() of each name that a package exports, and the packages' docstrings and comments, whose number of
hits may only fall.
"""

import ast
import inspect
import re
from collections import Counter, defaultdict
from functools import cache
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
CODE = [
    path
    for folder in ("collectives", "helpers", "grader", "tools", "exercises/tasks")
    for path in ROOT.glob(f"{folder}/**/*.py")
]
READ = sorted(PAGES + CHAPTERS + EXERCISES + CODE)
PACKAGES = [
    "collectives",
    *(f"collectives.{name}" for name in "algorithms cost explain jobs machines play train".split()),
]
PACKAGES += ["helpers", "helpers.exercise", "helpers.model", "helpers.views"]

# Families of translated English in docstrings and comments: a pattern (each line is a paragraph), then an example and
# its native wording.
FAMILIES = {
    "What ... opens": (
        r"(?:^|(?<=[.!?:;] ))What\b(?![^.?]*\?)",
        ("What a rank wrote to a stream", "A rank's output on a stream"),
    ),
    "Of ... opens": (
        r"(?:^|(?<=[.!?:;] ))Of\b|[:;] of (?:an?|the|each|its|those|these|such)\b",
        ("Of a group, the first call", "The first call of a group"),
    ),
    "say, tell": (
        r"(?i)\b(?:say|says|said|saying|tell|tells|told|telling)\b",
        ("as far as its messages tell", "as far as its messages report it"),
    ),
    "is told": (
        r"\b(?:is|are|was|were|be|been|being|gets?) (?:not |never |then |also )?told\b",
        ("the session is told", "the session is notified"),
    ),
    "that of, those of": (r"(?i)\b(?:that|those) of\b", ("the left edge and that of the next", "and the next one's")),
    "stand, lie": (
        r"(?i)\b(?:stand|stands|stood|standing|lie|lies|lay|lying)\b",
        ("what stands in the tensor", "the tensor's value"),
    ),
    "so many, so long": (r"\bso (?:many|long|much)\b", ("silent for so long", "silent for these seconds")),
    "none": (
        r"\b(?:is|are|was|were|be|has|have|had|if|where) none\b",
        ("None if there is none", "None if no rank waits"),
    ),
    "who": (
        r"^Who \w+|(?:[.;:,(]|\b(?:of|by|for|to|from|with|else|what|where|and|as|than|if)) who \w+",
        ("loaded later: who only grades needs no torch", "grading needs no torch"),
    ),
    "in its place": (
        r"(?i)\bin place of\b|\bin (?:its|their|his|the|that) place\b",
        ("or the error in its place", "or the error raised instead"),
    ),
    "take in": (r"(?i)\b(?:take|takes|took|taken|taking) in\b", ("Take in one message", "Process one message")),
}
# Hits in docstrings and comments, of all rooms together.  These numbers may only fall: lower them whenever one does.
MOST_OF_FAMILY = {
    "What ... opens": 4,
    "Of ... opens": 39,
    "say, tell": 15,
    "is told": 0,
    "that of, those of": 6,
    "stand, lie": 11,
    "so many, so long": 0,
    "none": 17,
    "who": 4,
    "in its place": 6,
    "take in": 2,
}
MOST_BANNED = {"collectives/rank": 1, "collectives/watch": 1}  # by room, both names in code; none in any other

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


STRING = r'''("{3}|'{3})(?:\\.|(?!\1).)*\1|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"'''
COMMENT = re.compile(STRING + r"|(?P<comment>(?:^[ \t]*#[^\n]*\n)+|#[^\n]*)", re.DOTALL | re.MULTILINE)


def remarks(source):
    """The docstrings and comments of this Python, one line per paragraph."""
    bodies = [ast.parse(source)]
    for node in bodies:
        bodies += [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler))]
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (docstring := ast.get_docstring(node)):
            yield from (" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))
    for block in filter(None, (found["comment"] for found in COMMENT.finditer(source))):
        yield " ".join(line.strip("# ") for line in block.splitlines())


@cache
def hits():
    """(room -> banned phrases, family -> hits) in the docstrings and comments of the packages."""
    rooms = defaultdict(list)
    for path in (
        path for package in ("collectives", "helpers", "grader", "tools") for path in ROOT.glob(f"{package}/**/*.py")
    ):
        package, *inner = path.relative_to(ROOT).parts[:-1]
        rooms["/".join([package, *inner[:1]]) if package == "collectives" else package] += remarks(path.read_text())
    banned, families = Counter(), Counter()
    for room, said in rooms.items():
        text = ASIDE.sub("", "\n".join(said))
        banned[room] = sum(len(re.findall(pattern, text.lower())) for pattern in BANNED)
        for family, (pattern, _) in FAMILIES.items():
            families[family] += len(re.findall(pattern, text, re.M))
    return banned, families


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


def test_docstrings_and_comments_have_no_more_banned_phrases():
    banned, _ = hits()
    assert {room: n for room, n in banned.items() if n > MOST_BANNED.get(room, 0)} == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_docstrings_and_comments_have_no_more_translated_english(family):
    _, families = hits()
    assert families[family] <= MOST_OF_FAMILY[family]


@pytest.mark.parametrize("pattern, examples", FAMILIES.values(), ids=FAMILIES)
def test_a_family_has_its_example(pattern, examples):
    assert [len(re.findall(pattern, example, re.M)) for example in examples] == [1, 0]


def test_every_docstring_and_comment_is_read():
    source = '''"""Waits for
    ever."""
def f():  # runs
    # for
    # ever
    g("# no comment")  # but this
    """No docstring."""
'''
    assert [*filter(None, remarks(source))] == ["Waits for ever.", "runs", "for ever", "but this"]
