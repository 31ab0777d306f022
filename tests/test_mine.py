"""What a learner has written is used: by the cells that follow it, and in a copy of the trainer, whose functions chapters build."""

import ast
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest

from helpers import course, progress
from helpers.exercise import check_cells, check_practice, mine_or
from helpers.trainer import swap
from tests.minutes import CHAPTERS

BUILDERS = {
    path.stem: path for path in CHAPTERS if path.stem[:2] in {"11", "12", "13", "14", "15", "16", "17", "20", "24"}
}


@pytest.fixture(autouse=True)
def no_checks_so_far(monkeypatch):
    monkeypatch.setattr(check_cells, "_passed", {})
    monkeypatch.setattr(check_cells, "_answers", {})


# --- in the cells that follow ---------------------------------------------------------------


def needed_blocks(function):
    """A function with the name that a short task of chapter 16 asks for."""
    function.__name__ = "needed_blocks"
    return function


def test_a_function_that_has_passed_is_used_and_otherwise_the_courses(capsys):
    right = needed_blocks(lambda rank, n: [*range(rank, -1, -1)])
    answer = needed_blocks(lambda rank, n: [(rank - hop) % n for hop in range(rank + 1)])
    assert mine_or(answer) is answer and capsys.readouterr().out == "From here on, needed_blocks is ours.\n"
    check_practice(right)
    capsys.readouterr()
    assert mine_or(answer) is right and capsys.readouterr().out == "From here on, needed_blocks is yours.\n"
    with pytest.raises(check_cells.CheckFailed):
        check_practice(needed_blocks(lambda rank, n: [rank]))
    assert mine_or(answer) is answer


def test_the_courses_answer_is_nobodys_pass(capsys):
    answer = mine_or(needed_blocks(lambda rank, n: [*range(rank, -1, -1)]))
    check_practice(answer)
    assert "is the course's answer" in capsys.readouterr().out
    mine_or(answer)
    assert "ours" in capsys.readouterr().out


# --- the chapters' functions are the trainer's ------------------------------------------------


def bare(node):
    """The source of a function or class without docstrings, decorators, and the default of a group."""
    node = ast.parse(ast.unparse(node)).body[0]
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            inner.args.defaults = [value for value in inner.args.defaults if ast.unparse(value) != "None"]
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(inner):
            inner.body = inner.body[1:]
    node.decorator_list = []
    return ast.unparse(node)


def definitions(source):
    """The functions and classes of a source that are written, by name."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {node.name: bare(node) for node in nodes if "NotImplementedError" not in ast.unparse(node)}


def answers(chapter, below=""):
    """The functions in a chapter's folds, by name.  below: only those below this heading."""
    cells = [
        cell.source for cell in nbformat.read(BUILDERS[chapter], as_version=4).cells if cell.cell_type == "markdown"
    ]
    text = "\n".join(["", *cells])
    blocks = re.findall(r"```python\n(.*?)```", text[text.find(below) :], re.DOTALL)
    return {name: text for block in blocks for name, text in definitions(block).items()}


FILES = sorted(course.TRAINER.glob("*.py"))
TRAINERS = {name: text for path in FILES for name, text in definitions(path.read_text()).items()}
OF_THE_BOOK = {  # the chapters' own model, which reads "Alice", and its batches
    "Attention", "Block", "Head", "MLP", "batch", "decoder", "flatten", "initialise", "loss_of", "turned",
}  # fmt: skip
ADAPTED = {  # what the trainer has in a more general form, for groups of a mesh and for microbatches
    "12_sharded_data_parallel": {"ShardedLayer"},
    "15_experts": {"Experts"},
    "16_long_context": {"Ring"},
    "17_loading_a_model": {"cut_of", "save", "load", "pieces_of"},
}


@pytest.mark.parametrize("chapter", BUILDERS)
def test_a_function_of_a_chapter_is_the_trainers_of_the_same_name(chapter):
    cells = [cell.source for cell in nbformat.read(BUILDERS[chapter], as_version=4).cells if cell.cell_type == "code"]
    plain = [source for source in cells if not source.startswith("%")]
    found = {(name, text) for source in plain for name, text in definitions(source).items()}
    shared = {name for name, _ in found if name in TRAINERS}  # another cell of the chapter may vary it
    different = {name for name in shared if (name, TRAINERS[name]) not in found}
    assert different == ADAPTED.get(chapter, set())


def test_answers_of_short_tasks_are_the_trainers():
    parts = {part.name: part.chapter for part in swap.parts()}
    assert set(parts) == {
        "scatter_positions", "order_1f1b", "route", "merge_parts", "zigzag_positions", "shard_range", "newest_complete",
        "place_on_mesh", "norm_of_all", "outer_step", "due_fragment",
    }  # fmt: skip
    for name, chapter in parts.items():
        assert answers(chapter)[name] == TRAINERS[name], name


def test_what_chapters_show_of_the_trainer_at_their_ends_is_the_trainers():
    shown = {name: text for chapter in BUILDERS for name, text in answers(chapter, "\n## In the trainer\n").items()}
    assert shown == {name: TRAINERS[name] for name in shown}
    assert {"cut_block", "cut_experts", "cut_context", "gather_attention", "group_over"} <= shown.keys()


def test_what_chapters_import_is_not_in_the_trainer_as_well():
    files = (course.ROOT / "helpers" / "model").glob("*.py")
    ours = {name for path in files for name in definitions(path.read_text())}
    assert ours & TRAINERS.keys() == OF_THE_BOOK


# --- in a copy of the trainer -----------------------------------------------------------------

RIGHT = {
    "route": "def route(probabilities, k):\n"
    "    experts = probabilities.argsort(-1, descending=True)[:, :k]\n"
    "    best = probabilities.gather(-1, experts)\n"
    "    return experts, F.normalize(best, p=1, dim=-1)",
    "order_1f1b": "def warmup(rank, ranks, microbatches):\n"
    "    return min(ranks - 1 - rank, microbatches)\n\n"
    "def order_1f1b(rank, ranks, microbatches):\n"
    "    w = warmup(rank, ranks, microbatches)\n"
    "    steady = [a for k in range(microbatches - w) for a in (f'F{w + k}', f'B{k}')]\n"
    "    return [f'F{k}' for k in range(w)] + steady + [f'B{k}' for k in range(microbatches - w, microbatches)]",
    "norm_of_all": "def norm_of_all(mine, shared):\n"
    "    squares = torch.stack([mine.square().sum()])\n"
    "    dist.all_reduce(squares)\n"
    "    return torch.sqrt(squares[0] + (shared * shared).sum())",
}
WRONG = {
    "norm_of_all": "def norm_of_all(mine, shared):\n    return (mine.square().sum() + shared.square().sum()).sqrt()"
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that makes a learner's notebooks, in which some functions are written and have passed."""
    chapters = {part.name: part.chapter for part in swap.parts()}

    def write(functions):
        for chapter in set(chapters.values()):
            notebook = nbformat.read(BUILDERS[chapter], as_version=4)
            for cell in notebook.cells:
                for name, text in functions.items():
                    if cell.source.startswith(f"def {name}("):
                        cell.source = text
            nbformat.write(notebook, tmp_path / f"{chapter}.ipynb")
        done = {chapter: [name for name in functions if chapters[name] == chapter] for chapter in chapters.values()}
        (tmp_path / "progress.json").write_text(json.dumps({"practice": done}))
        monkeypatch.setattr(progress, "FILE", tmp_path / "progress.json")
        monkeypatch.setattr(course, "NOTEBOOKS", tmp_path)
        return tmp_path

    return write


def test_a_copy_has_the_functions_that_have_passed_with_their_imports_and_ours_otherwise(written):
    folder = written(RIGHT) / "copy"
    swapped = swap.swap(folder)
    assert {part.name for part, is_theirs in swapped.items() if is_theirs} == set(RIGHT)
    assert {path.name for path in folder.iterdir()} == {path.name for path in course.TRAINER.iterdir()} - {"__pycache__"}
    for part in swapped:
        text, name = (folder / part.file).read_text(), part.name
        assert definitions(text)[name] == definitions(RIGHT[name])[name] if name in RIGHT else TRAINERS[name]
    assert "import torch.nn.functional as F\ndef route" in (folder / "model.py").read_text()
    assert "def warmup" in (folder / "pipeline.py").read_text()


def test_a_function_that_has_not_passed_or_is_gone_is_not_taken(written):
    folder = written(RIGHT)
    (folder / "progress.json").write_text(json.dumps({"practice": {"16_long_context": ["merge_parts"]}}))
    assert not any(swap.swap(folder / "copy").values())


@pytest.mark.parametrize(
    "functions, code",
    [
        pytest.param(RIGHT, 0, id="right", marks=pytest.mark.nightly),
        pytest.param(WRONG, 1, id="wrong", marks=pytest.mark.slow),
    ],
)
def test_a_copy_is_compared_with_one_process(functions, code, written):
    folder = written(functions)
    program = (
        "import sys; from pathlib import Path; from helpers import course; import helpers.trainer.__main__ as program; "
        "course.NOTEBOOKS = Path(sys.argv.pop(1)); sys.exit(program.main())"
    )
    command = [sys.executable, "-c", program, str(folder), "--mine", str(folder / "copy")]
    environment = {**os.environ, "COLLECTIVES_PROGRESS": str(folder / "progress.json")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    assert len(re.findall("yours$", done.stdout, re.MULTILINE)) == len(functions)
    if code:
        assert "fs2" in done.stderr and "continues" not in done.stdout
    else:
        assert "A checkpoint continues on other meshes.\n" in done.stdout
