"""The files around the code agree with each other, and notebooks are fit to be committed."""

import dataclasses
import re
import sys
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from helpers import Call, Event, Run
from helpers.tools import notebooks
from tests import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [Requirement(r) for r in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]
CONDA_NAMES = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib"}
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


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
        wanted = installed.metadata["Requires-Python"]
        if installed.version == version and wanted and python not in SpecifierSet(wanted):
            refused[name] = wanted
    assert refused == {}


@pytest.mark.parametrize("path", notebooks.every(), ids=lambda path: path.name)
def test_notebook_is_fit_to_be_committed(path):
    assert notebooks.problems(path) == []


def test_every_chapter_is_linked_in_the_table():
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"\| \d\d \|", line)]
    linked = {row.split("|")[1].strip(): re.search(r"\]\((notebooks/[^)]+)\)", row) for row in table}
    for chapter in sorted((ROOT / "notebooks").glob("*.ipynb")):
        link = linked[chapter.name[:2]]
        assert link and link[1] == f"notebooks/{chapter.name}"


def test_guides_name_make_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in GUIDES:
        code = re.findall(r"`[^`]+`|^ {4}.+$", path.read_text(), re.MULTILINE)
        named = {name for snippet in code for name in re.findall(r"\bmake ([a-z-]+)", snippet)}
        assert named and named <= targets
