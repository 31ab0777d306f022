"""Names are nouns for things and verbs for acts: no pronouns, no participles, and one name for one thing."""

import ast
from collections import defaultdict
from functools import cache

import pytest

from tests import ROOT

PACKAGES = ("collectives", "helpers", "grader", "tools")
PRONOUNS = """
    each what who whom whose which that this these those it its they them their theirs mine my me ours our us we one ones
    other others another both all any some none nobody nothing everything something somebody everybody own same whole
"""
PARTICIPLES = """
    told said asked found made done gone got given taken held kept known seen heard lost shown wanted named used tried
    astray standing waiting
"""
WORDS = {*PRONOUNS.split(), *PARTICIPLES.split()}

# Public names: what chapters and exercises call, and messages, which records on disk are made of.
PUBLIC = {
    "collectives/algorithms/pipeline/pipeline.py: kept",
    "collectives/frontend.py: Shown",
    "collectives/log/messages.py: Waiting",
    "collectives/same/side_by_side.py: Same",
    "collectives/same/side_by_side.py: same",
}
MOST_BINDINGS = 1582  # of all variables, parameters, functions and classes; may only fall

# Modules that share a name, and why they may.
SAME_STEM = {
    "alike": "steps of a schedule that are alike, and submissions that are",
    "calibrate": "the room, its main module, and the face that chapters import",
    "cost": "the room and its main function",
    "pipeline": "the room and its main class",
    "predict": "the room and its main function",
    "planner": "the room, the face that chapters import, and the view of it",
    "explain": "the room, and the face that readers import",
    "reports": "the module, and the face that chapters import",
    "command": "what `python -m collectives NAME` runs, in each room that has such a command",
    "count": "a schedule's, and a pipeline schedule's: the same parts for both",
    "execute": "a schedule's, and a pipeline schedule's",
    "picture": "a schedule's, and a pipeline schedule's",
    "proof": "a schedule's, and a pipeline schedule's",
    "run": "the function, and the Run that it returns",
    "web": "the library's figures in a browser, and the course's",
    "causes": "judge/wording has the words for each",
    "failures": "explain reads them, judge/wording has words for them",
    "hosts": "ranks are started on them, or a log is from them",
    "text": "what a run prints, and the lines of other tools",
}


def modules():
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@cache
def tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def bindings(node):
    """Every name that this code gives to a value, a parameter, a function or a class."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            yield part.name


def is_vague(name):
    return name != "__all__" and name.strip("_").lower() in WORDS


def module_level(node):
    """The names that a module gives at its top."""
    for part in node.body:
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            yield part.name
        elif isinstance(part, (ast.Assign, ast.AnnAssign)):
            for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def test_no_module_names_anything_by_a_pronoun_or_a_participle():
    found = {f"{file.relative_to(ROOT)}: {name}" for file in modules() for name in module_level(tree(file))
             if is_vague(name)}  # fmt: skip
    assert found == PUBLIC


def test_variables_that_are_pronouns_or_participles_become_fewer():
    assert sum(is_vague(name) for file in modules() for name in bindings(tree(file))) <= MOST_BINDINGS


def test_a_module_name_stands_for_one_thing():
    places = defaultdict(set)
    for file in modules():
        places[file.stem].add(file)
        if file.name == "__init__.py" and file.parent.name not in PACKAGES:
            places[file.parent.name].add(file.parent)
    shared = {stem for stem, files in places.items() if len(files) > 1 and not stem.startswith("__")}
    assert shared == set(SAME_STEM)


def test_a_class_name_stands_for_one_thing():
    classes = defaultdict(list)
    for file in modules():
        for part in ast.walk(tree(file)):
            if isinstance(part, ast.ClassDef):
                classes[part.name].append([ast.unparse(base).rpartition(".")[2] for base in part.bases])
    shared = {name for name, bases in classes.items() if len(bases) > 1 and not any(name in of for of in bases)}
    assert not shared


@pytest.mark.parametrize("name, vague", [("_told", True), ("SAID", True), ("reported", False), ("each", True)])
def test_what_counts(name, vague):
    assert is_vague(name) is vague
