"""Cells that run on a page: with the standard library alone, judged and drawn as in the notebook."""

import base64
import json
import re
import subprocess
import sys
from functools import cache

import pytest

from collectives import run
from helpers.exercise.tasks import module
from tests import ROOT
from tests.pretended import compiled
from tools.site.runnable_cells import RUNNABLE, cells_of, examples_of

ALONE = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "matplotlib", "PIL", "IPython", "cloudpickle", "nbformat", "anywidget"}:
            raise ModuleNotFoundError(f"{name} is not in the standard library", name=name)

sys.meta_path.insert(0, Blocked())
from collectives.draw.without_matplotlib import install
install()
from collectives.pretend.torch_module import install
install()
from helpers.exercise.page import evaluate

for line in sys.stdin:
    print(json.dumps(evaluate(json.loads(line))), flush=True)
"""
LINES = module("practice.twelve_puzzles").LINES
CELLS = {cell["name"]: cell for notebook in RUNNABLE for cell in cells_of(notebook).values()}
RIGHT = {
    "train_together": ("raise NotImplementedError()", "dist.all_reduce(w.grad, op=dist.ReduceOp.AVG)"),
    "mean_loss": ("raise NotImplementedError()", "dist.all_reduce(loss)\n    if dist.get_rank() == 0:\n        return loss.item() / dist.get_world_size()"),
}  # fmt: skip


def outcomes(*cells):
    """The outcomes of cells on a page."""
    asked = "\n".join(json.dumps(cell) for cell in cells)
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def cell(name, *change, **more):
    known = CELLS[name]
    before = [above["source"] for above in known["before"]]
    source = known["source"].replace(*change) if change else known["source"]
    return {
        "notebook": known["notebook"],
        "before": before,
        "source": source,
        "check": known["check"],
        "finished": [],
    } | more


def shown(outcome):
    return "".join(output.get("text", "") + output.get("words", "") for output in outcome["outputs"])


@cache
def with_lines():
    """The outcome of each puzzle with each of its lines."""
    asked = [(name, line) for name, lines in LINES.items() for line in lines]
    cells = [cell(name, CELLS[name]["source"], with_line_of(name, line)) for name, line in asked]
    return dict(zip(asked, outcomes(*cells), strict=True))


def with_line_of(name, line):
    return re.sub(r"raise NotImplementedError\(\).*", lambda _: line, CELLS[name]["source"])


@pytest.mark.parametrize("name", LINES)
def test_a_puzzles_lines_are_right_and_wrong_as_in_the_notebook(name):
    right = [line for line in LINES[name] if with_lines()[name, line]["failure"] is None]
    recorded = json.loads((ROOT / "helpers" / "views" / "web" / "puzzles.json").read_text())[name]["key"]
    assert right == [recorded["wants"][0][0]["text"]]
    outcome = with_lines()[name, right[0]]
    assert outcome["solved"] == name and "of this page's 12" in shown(outcome)
    assert any("picture" in output for output in outcome["outputs"])
    for line in {*LINES[name]} - {*right}:
        assert "Think: " in with_lines()[name, line]["failure"], line


def test_chapter_00_runs_and_its_tasks_are_checked():
    drawn = cell("together.draw(0)")
    apart, train, picture, *checked = outcomes(
        cell("train_apart"),
        cell("run(train, world_size=1).results"),
        drawn,
        *(cell(name, *RIGHT[name]) for name in RIGHT),
    )
    assert shown(apart) == "[3.49, 4.48, 5.48, 6.47]" and shown(train) == "[4.98]"
    assert picture["outputs"][0]["picture"]["alt"].startswith("Picture: all_reduce AVG")
    for name, outcome in zip(RIGHT, checked):
        assert outcome["solved"] == name and outcome["failure"] is None, outcome


def test_the_readmes_examples_print_what_the_readme_says():
    text = (ROOT / "README.md").read_text()
    train, hangs = (found for _, found in examples_of("README", text))
    asked = [
        found | {"before": [above["source"] for above in found["before"]], "finished": []} for found in (train, hangs)
    ]
    trained, hung = outcomes(*asked)
    assert shown(trained) in text
    assert hung["failure"].partition("\nEvery rank")[0] in text
    assert hung["outputs"][0]["picture"]["alt"].startswith("Picture: who waits for whom")


@pytest.mark.parametrize(
    "line, words, number",
    [
        ("raise NotImplementedError()", "The line is still to be written", None),
        ("x = torch.linalg.norm(x)", "This page has no torch.linalg. JupyterLab has it", 2),
        ("x = ", "line 2: SyntaxError", 2),
        ("pass\n\n\nimport numpy\n\n\ndef g(x):\n    pass", "A page has Python's standard library, a small torch", 5),
        ("if dist.get_rank() == 0: dist.all_reduce(x)", "rank 0 is waiting in all_reduce #1; rank 1 returned before any call", None),
    ],
)  # fmt: skip
def test_what_goes_wrong_gets_a_sentence(line, words, number):
    (outcome,) = outcomes(cell("everyones_sum", "raise NotImplementedError()  # your line", line))
    assert words in outcome["failure"] and outcome["line"] == number and outcome["solved"] is None


def test_each_rank_has_its_own_variables():
    source = "from helpers import run\ntotal = torch.zeros(1)\nseen = []\n\ndef f():\n    seen.append(dist.get_rank())\n    total.add_(dist.get_rank() + 1)\n"
    source += "    dist.all_reduce(total)\n    return total, seen\n\nprint(run(f, world_size=3).results, total, seen)"
    (outcome,) = outcomes(cell("everyones_sum", check=None, source=source))
    expected = ", ".join(f"(tensor([6.]), [{rank}])" for rank in range(3))
    assert shown(outcome) == f"[{expected}] tensor([0.]) []\n", outcome


PROGRAM = """
import torch
import torch.distributed as dist


def f():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0) + rank
    dist.all_reduce(x)
    y = torch.zeros(4)
    dist.all_to_all_single(y, x * rank)
    sending = dist.isend(x, (rank + 1) % n)
    dist.recv(y, (rank - 1) % n)
    sending.wait()
    dist.barrier()
"""


def test_a_picture_is_the_notebooks():
    (outcome,) = outcomes(
        cell("everyones_sum", check=None, before=[], source=f"{PROGRAM}\nfrom helpers import run\nrun(f)")
    )
    drawn = base64.b64decode(outcome["outputs"][0]["picture"]["src"].partition(",")[2]).decode()
    real = run(compiled(PROGRAM), world_size=4).draw().svg()
    number = re.compile(r"\d+\.?\d*")
    assert number.sub("#", drawn) == number.sub("#", real)
    colours = re.compile("#[0-9a-f]{6}")
    assert colours.findall(drawn) == colours.findall(real)
    places = [
        (float(a), float(b))
        for a, b in zip(number.findall(colours.sub("", drawn)), number.findall(colours.sub("", real)))
    ]
    assert max(abs(a - b) for a, b in places) < 5  # letters are as wide as DejaVu's, without kerning
