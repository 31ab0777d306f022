"""Private names of torch: all in one module, and each that is gone costs one feature."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest
import torch

from collectives.rank import torch_private
from tests import ROOT

# Private names of others than torch that the package uses as attributes.
OTHERS = {
    "_replace", "_asdict", "_fields", "_make",  # of a NamedTuple
    "_current_frames", "_exit", "_getframe", "_shutdown", "_threads_queues",  # of the standard library
    "_find_imported_submodules",  # of cloudpickle
    "_run_module_as_main",  # of runpy
    "_ipython_display_", "_repr_mimebundle_", "_render_traceback_",  # that Jupyter looks for
}  # fmt: skip
LOOKED_FOR = {"_source_rank", "_should_skip_dynamo"}  # methods of ours that torch calls
PACKAGES = [ROOT / name for name in ("collectives", "helpers", "grader", "tools")]


def _trees():
    for package in PACKAGES:
        for file in package.rglob("*.py"):
            yield file, ast.parse(file.read_text())


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _defined(tree: ast.AST) -> set[str]:
    """The private names that a module gives to something of its own."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # __slots__
    return names


@pytest.mark.slow
def test_private_names_of_torch_stand_in_one_module():
    trees = dict(_trees())
    own = set().union(*(_defined(tree) for file, tree in trees.items() if file.name != "torch_private.py")) | OTHERS
    taken = {name.rpartition(".")[2] for feature in torch_private.FEATURES for name in feature.names}
    uses = []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _private(node.attr):
                if file.name == "torch_private.py":
                    assert node.attr in taken | OTHERS | {"_local_tensor"} or node.attr in _defined(tree), ast.unparse(
                        node
                    )
                elif node.attr not in own or ast.unparse(node.value).split(".")[0] in ("torch", "dist"):
                    uses.append((file.name, ast.unparse(node)))
            elif file.name != "torch_private.py" and isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None) or ""
                names = [f"{module}.{alias.name}" for alias in node.names]
                if not getattr(node, "level", 0):
                    uses += [
                        (file.name, n) for n in names if n.startswith("torch.") and any(map(_private, n.split(".")))
                    ]
            elif file.name != "torch_private.py" and isinstance(node, ast.FunctionDef):
                if (
                    node.name in LOOKED_FOR and file.parent.name != "inside"
                ):  # the sandbox imports nothing of the library
                    uses.append((file.name, node.name))
    assert not uses


def test_this_torch_has_every_private_name():
    assert torch_private.notices() == [] and len(torch_private.FEATURES) > 10


def test_what_is_off_is_said_with_the_tested_versions():
    feature = torch_private.Feature("telling time")
    try:
        assert feature.takes("torch._C._gone", "instead") == "instead" and not feature
        notice = f"torch {torch.__version__} has no torch._C._gone, so telling time is off; tested versions are 2.13, "
        with pytest.raises(ImportError, match=notice.replace("+", r"\+")):
            feature.require()
        with pytest.warns(UserWarning, match="telling time is off"):
            torch_private.warn()
        torch_private.warn()  # once: here a second warning is an error
    finally:
        torch_private.FEATURES.remove(feature)


@pytest.mark.nightly
def test_a_lost_name_costs_one_feature_and_a_sentence():
    command = [sys.executable, "-m", "tests.corpus.lost_names"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=ROOT)
    whole, *lost = map(json.loads, done.stdout.splitlines())
    assert whole.get("off") == [] and all(whole["seen"].values()), whole
    names = {name for names in whole["features"].values() for name in names}
    assert {outcome["name"] for outcome in lost} == names and len(names) > 30, done.stderr
    for outcome in lost:
        assert "error" not in outcome, outcome
        expected = {title for title, names in whole["features"].items() if outcome["name"] in names}
        assert set(outcome["off"]) == expected and len(outcome["told"]) == len(expected), outcome
        assert all(outcome["name"] in sentence for sentence in outcome["told"]) and outcome["seen"].pop("plain")
        recording = outcome["seen"].pop("recording")
        assert (
            outcome["name"] in recording
            if "recording" in outcome["on"] and not outcome["on"]["recording"]
            else recording
        )
        for probe, works in outcome["seen"].items():  # some work all the same: one type of six is not pickled by name
            assert works or not outcome["on"][probe], (outcome["name"], probe)
