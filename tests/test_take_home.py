"""Each file to take home is its chapter's own code, short, and right wherever torchrun starts it."""

import ast
import re
import subprocess
import sys

import nbformat
import pytest

from tests import ROOT
from tests.sampling import when

FILES = sorted((ROOT / "notebooks" / "take_home").glob("*.py"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def cells(path):
    """The parsed code cells of the chapter that a file says it is from."""
    number = re.search(r"chapter (\d\d)", path.read_text())[1]
    (chapter,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    for cell in nbformat.read(chapter, as_version=4).cells:
        if cell.cell_type == "code":
            yield ast.parse(cell.source)


@every_file
def test_is_the_chapters_own_code(path):
    trees = list(cells(path))
    defined = {
        ast.dump(node) for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    imports = [node for tree in trees for node in tree.body if isinstance(node, ast.ImportFrom)]
    ours = {alias.name for node in imports if node.module.startswith("helpers") for alias in node.names}
    taken = 0
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in ours | {"main"}:
            assert ast.dump(node) in defined, f"{node.name} is not the chapter's"
            taken += 1
    assert taken, "nothing of it is the chapter's"


@every_file
def test_is_short_plain_torch_with_three_lines_to_change(path):
    text = path.read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 60
    assert text.count("# GPU:") == 3 and f"{path.stem}.py" in text
    modules = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in modules} <= {"torch"} | sys.stdlib_module_names


def torchrun(ranks, *what):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *what]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "path, ranks",
    [
        pytest.param(path, ranks, marks=when(False, (k + ranks) % 8 == 0), id=f"{path.stem}-{ranks}")
        for k, path in enumerate(FILES)
        for ranks in ((1, 2, 3) if path.stem == "pipeline_parallel" else (2, 3))
    ],
)
def test_computes_what_one_process_does(path, ranks, tmp_path):
    for watch in ((), ("-m", "collectives.watch")):
        done = torchrun(ranks, *watch, path, *([tmp_path / "saved"] if path.stem == "checkpoint" else []))
        assert done.returncode == 0, done.stderr
        assert {f"rank {rank} of {ranks}" for rank in range(ranks)} <= set(re.findall(r"rank \d of \d", done.stdout))


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_fewer_ranks_as_if_nothing_had_stopped(tmp_path):
    (path,) = [path for path in FILES if path.stem == "checkpoint"]
    for ranks, steps in ((4, "0 and 1"), (2, "2 and 3"), (3, "4 and 5")):
        done = torchrun(ranks, path, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"steps {steps} as in a run that never stopped") == ranks
    assert sorted(path.parent.name for path in tmp_path.glob("*/.metadata")) == ["2", "4", "6"]
