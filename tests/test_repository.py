"""The files around the code agree with each other, and notebooks are fit to be committed."""

import dataclasses
import json
import re
import sys
from html import unescape
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from collectives import __version__
from collectives.log.collectives import COLLECTIVES
from helpers import Call, Event, Run
from tests import ROOT
from tests.bench import power
from tools import notebooks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(r) for r in PROJECT["dependencies"] + EXTRAS["course"] + EXTRAS["test"]]
CONDA_NAMES = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib", "flit-core": "flit_core"}
GUIDES = [ROOT / "README.md", ROOT / "INSTALL.md", ROOT / "CONTRIBUTING.md"]
CODE = ("collectives", "helpers", "grader", "tools")
ROOMS = [page for folder in CODE for page in (ROOT / folder).rglob("README.md")]
PAPERS = [ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *ROOMS]
FOLDERS = (*CODE, "tests", "exercises", "solutions", "notebooks", ".github")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOMS,
    *(path for folder in ("exercises", "solutions", "notebooks") for path in (ROOT / folder).glob("*.[mi]*")),
]


def test_the_page_of_fields_has_them_all():
    page = (ROOT / "notebooks" / "reference.md").read_text()
    for kind in (Run, Call, Event):
        declared = (f.name for f in dataclasses.fields(kind))
        public = {*declared, *(name for name in vars(kind) if not name.startswith("_"))}
        assert [name for name in sorted(public) if not re.search(rf"`\.{name}\b", page)] == [], kind.__name__


def test_conda_environment_says_what_pyproject_says():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    # Binder takes the version of Python from "python=3.12" only (repo2docker's conda build pack).
    conda = [Requirement(re.sub(r"^python=", "python==", entry)) for entry in entries if isinstance(entry, str)]
    versions = {CONDA_NAMES.get(r.name, r.name): r.specifier for r in conda}
    (python,) = versions.pop("python")
    assert python.version in SpecifierSet(PROJECT["requires-python"])
    assert "pip" in versions and {"pip": ["-e ."]} in entries
    del versions["pip"]
    assert versions == {r.name: r.specifier for r in REQUIREMENTS}


def pins_for(python):
    """The version of each package that constraints.txt pins for a full version of Python."""
    pins, minor = {}, python.rpartition(".")[0]
    where = {"python_version": minor, "python_full_version": python, "sys_platform": "linux"}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(where):
                (version,) = pin.specifier
                assert version.operator == "==", line
                assert canonicalize_name(pin.name) not in pins, f"{pin.name} is pinned twice for Python {python}"
                pins[canonicalize_name(pin.name)] = version.version
    return pins


def test_a_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_tested_versions_of_torch_are_said_alike():
    from collectives.rank.torch_private import TESTED

    workflow = (ROOT / ".github" / "workflows" / "torch.yml").read_text()
    listed = f"{', '.join(TESTED[:-1])} and {TESTED[-1]}"
    assert set(re.findall(r"==([\d.]+)\.\*", workflow)) == set(TESTED[1:])  # ci.yml runs the first
    for name in ("pyproject.toml", "README.md", "INSTALL.md", "environment.yml"):
        assert listed in (ROOT / name).read_text(), name
    assert re.search(r"^torch==([\d]+\.[\d]+)", (ROOT / "constraints.txt").read_text(), re.M)[1] == TESTED[0]


@pytest.mark.parametrize(
    "version, age",
    [("2.13.0+cpu", None), ("2.15.1", None), ("2.16.0a0+git", "newer"), ("2.9.1", "older"), ("3.0", "newer")],
)
def test_another_torch_than_the_tested_ones_is_a_notice(version, age):
    from tools.check import untested

    note = untested(version, ("2.13", "2.14", "2.15"))
    listed = "than the versions the course is tested with: 2.13, 2.14 and 2.15."
    assert note == (f"Note: torch {version} is {age} {listed}" if age else None)


@pytest.mark.parametrize("python", ["3.10.0", "3.11.0", "3.11.5", "3.12.0", "3.13.0", "3.14.0"])
def test_constraints_pin_each_direct_dependency_within_its_range(python):
    pins = pins_for(python)
    for requirement in REQUIREMENTS:
        if requirement.marker and not requirement.marker.evaluate({"python_version": python.rpartition(".")[0]}):
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("micro", [0, 2, 5])  # Debian 12 has 3.11.2
def test_what_is_pinned_runs_on_every_release_of_this_python(micro):
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{micro}"
    refused = {}
    for name, version in pins_for(python).items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system
            continue
        wanted = installed.metadata.get("Requires-Python")
        if installed.version == version and wanted and python not in SpecifierSet(wanted):
            refused[name] = wanted
    assert refused == {}


def test_every_break_that_measures_the_tests_breaks_something():
    assert power.stale() == []


@pytest.mark.parametrize("path", notebooks.every(), ids=lambda path: path.name)
def test_notebook_is_fit_to_be_committed(path):
    assert notebooks.problems(path) == []


def test_every_chapter_is_linked_in_the_table_and_every_other_page_below_it():
    text = (ROOT / "README.md").read_text()
    table = [line for line in text.splitlines() if re.match(r"\| \d\d \|", line)]
    linked = {row.split("|")[1].strip(): re.search(r"\]\((notebooks/[^)]+)\)", row) for row in table}
    pages = {path.name for path in (ROOT / "notebooks").glob("[a-z]*.ipynb")}
    assert {name for name in pages if f"](notebooks/{name})" not in text} == set()
    for chapter in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        link = linked[chapter.name[:2]]
        assert link and link[1] == f"notebooks/{chapter.name}"


def test_guides_name_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in GUIDES:
        code = re.findall(r"`[^`]+`|^ {4}.+$", path.read_text(), re.MULTILINE)
        named = {name for snippet in code for name in re.findall(r"\bmake ([a-z-]+)", snippet)}
        assert named and named <= targets


def test_papers_name_files_and_constants_that_exist():
    code = "\n".join(path.read_text() for path in FILES if path.suffix == ".py")
    missing = []
    for page in PAPERS:
        named = re.findall(r"`([^`\n]+)`", page.read_text())
        paths = [f"/{path.relative_to(ROOT)}" for path in (*FILES, *ROOT.iterdir())]
        files = {name for name in named if re.fullmatch(r"[\w./]+\.(py|csv|md|yml|toml|txt)", name)}
        constants = {name for name in named if re.fullmatch(r"_?[A-Z][A-Z_]{3,}", name)}
        missing += [(page, name) for name in files if not any(path.endswith(f"/{name}") for path in paths)]
        missing += [(page, name) for name in constants if not re.search(rf"^{name}\b", code, re.MULTILINE)]
    assert missing == []


def test_papers_are_short():
    def words(name):
        return len((ROOT / name).read_text().split())

    assert len((ROOT / "CONTRIBUTING.md").read_text().encode()) <= 6000
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Words")[2]
    assert len(re.findall(r"^\| (?!word|-)", table, re.MULTILINE)) <= 20
    assert words("ARCHITECTURE.md") <= 1000
    assert all(len(page.read_text().split()) <= 260 for page in ROOMS), {p: len(p.read_text().split()) for p in ROOMS}
    if __version__ == "0.1.0":  # nothing is released yet
        assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 12


def test_every_room_has_its_page_and_architecture_has_them_all():
    packages = {path.parent for folder in CODE for path in (ROOT / folder).glob("*/__init__.py")} | {
        ROOT / f for f in CODE
    }
    of_rooms = {"views", "exercise", "model", "trainer", "inside", "site"}  # parts of a room, on its page
    assert {path.relative_to(ROOT) for path in packages if path.name not in of_rooms} - {Path("collectives")} <= {
        page.parent.relative_to(ROOT) for page in ROOMS
    }
    guide = (ROOT / "ARCHITECTURE.md").read_text()
    (library,) = (c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c.get("containers") == ["collectives"])
    table = guide.partition("## The rooms")[2].partition("\n## ")[0]
    rows = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[2] if "|" in row else "")
    ]
    listed = {name for layer in library["layers"] for name in layer.split(" | ")}
    assert listed | {"tools", "grader", "helpers"} == set(rows)
    for layer, below in zip(library["layers"], library["layers"][1:]):
        assert max(map(rows.index, layer.split(" | "))) < min(map(rows.index, below.split(" | "))), (layer, below)


def test_links_lead_to_files():
    broken = []
    for page in PAGES:
        text = page.read_text()
        if page.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        targets = re.findall(r"\]\(([^)#\s]+)", re.sub(r"`[^`\n]*`", "", text))
        broken += [(page.name, each) for each in targets if ":" not in each and not (page.parent / each).exists()]
    assert broken == []


def test_a_link_to_a_notebook_has_its_number():
    wrong = []
    for page in PAGES:
        text = re.sub(r'\\n",\s*"', " ", page.read_text())  # a notebook's lines are strings of their own
        links = re.findall(r"\[((?:exercise |chapter )?(\d\d)\b[^\]]*)\]\([^)]*?(\d\d)_\w+\.ipynb", text, re.IGNORECASE)
        wrong += [(page.name, words) for words, said, number in links if said != number]
    assert wrong == []


def test_the_field_guide_quotes_the_program_as_it_is():
    program = (ROOT / "notebooks" / "jobs" / "train.py").read_text().splitlines()
    quoted = []
    for page in ("first_hour", "three_in_the_morning"):
        text = (ROOT / "notebooks" / f"{page}.md").read_text()
        blocks = [block.splitlines() for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
        quoted += [line for block in blocks if block[0] in program for line in block if line != "..."]
    assert len(quoted) > 8 and [line for line in quoted if line not in program] == []


def test_the_stored_cheat_sheet_says_what_the_library_says():
    sheet = unescape((ROOT / "notebooks" / "images" / "cheatsheet.svg").read_text(encoding="utf-8"))
    said = [words for each in COLLECTIVES.values() for words in (each.signature, each.needs, each.leaves, each.use)]
    assert [words for words in said if f">{words}<" not in sheet] == []
    paper = (ROOT / "notebooks" / "images" / "cheatsheet.pdf").read_bytes()
    assert re.search(rb"/Count 1\b", paper) and paper.count(b"/FontName") >= 2, "one page, with letters"
    page = (ROOT / "notebooks" / "cheatsheet.md").read_text(encoding="utf-8")
    rows = [f"| `{each.signature}` | {each.needs} | {each.leaves} | {each.use} |\n" for each in COLLECTIVES.values()]
    assert [row for row in rows if row not in page] == []
