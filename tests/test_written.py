"""What is written on a page: judged with the standard library alone, as the course's own judges judge it."""

import inspect
import json
import re
import subprocess
import sys
from itertools import product

import pytest

from collectives.algorithms import ALGORITHMS
from collectives.cost import cost
from collectives.cost.message_cost import seconds
from collectives.figures.web.panel import describe_panel
from collectives.figures.written import BUILTINS, evaluate
from collectives.machines import Level, Machine, Port, fat_tree, gpu_nodes, pcie_node, rails
from collectives.planner import Division, shape
from collectives.play import step
from helpers.views.planner import planner
from tests import ROOT
from tests.corpus import incidents, practice, puzzles
from tests.moving import Moved
from tools.site.page_tasks import tasks

ALONE = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "matplotlib", "PIL", "IPython", "ipywidgets", "anywidget", "traitlets"}:
            raise ImportError(f"{name} is not in the standard library")

sys.meta_path.insert(0, Blocked())
from collectives.figures.written import evaluate

from collectives.figures.planning import plan_data

given, division = json.load(sys.stdin)
print(json.dumps([*(evaluate(source, task) for source, task in given), plan_data(*division)]))
"""
RING = inspect.cleandoc(
    """
    def my_ring(n):
        add_up = [[add(r, (r + 1) % n, (r - k) % n) for r in range(n)] for k in range(n - 1)]
        pass_around = [[copy(r, (r + 1) % n, (r + 1 - k) % n) for r in range(n)] for k in range(n - 1)]
        print("a ring of", n)
        return Schedule("all_reduce", n, add_up + pass_around, chunks=n, name="ring")
    """
)
ORDERS = "def schedule_within(*shape):\n    return [['F0', 'B0', 'F1', 'B1'], ['F1', 'F0', 'B0', 'B1']]"
TASKS = {name: json.loads(json.dumps(task)) for (_, name), task in tasks().items()}  # as a page has them
ANSWERS = {"faster_all_reduce": puzzles, "schedule_within": puzzles, "pipeline": practice}
ANSWERS |= dict.fromkeys(incidents.RIGHT, incidents)


def test_it_runs_with_the_standard_library_alone():
    model = planner(shape("Mixtral 8x7B"), Division(data=16, experts=8), 64)
    was = {control["name"]: control["at"] for control in describe_panel(model)["controls"]}
    division = [model.recording()["asked"], was, was | {"tensor": 2}]  # a place: of 1, 2, 4, 8
    given = [(RING, TASKS["my_ring"]), (ORDERS, TASKS["schedule_within"])], division
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, input=json.dumps(given), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    ring, orders, plan = json.loads(done.stdout)
    assert plan == json.loads(json.dumps(Moved(model.widget()).move(tensor="4"))) and "before: 16 GPUs" in plan["words"]
    exec(RING, here := dict(BUILTINS))
    assert ring["plays"] == json.loads(json.dumps(step(here["my_ring"](4)).recording()))
    assert "6 steps, at least 2; the busiest rank sends or receives 3/2 S, at least 3/2 S" in ring["words"]
    assert ring["printed"].startswith("a ring of 4\n")
    assert ["yours", 14, 1.75] in ring["board"] and ["binomial tree", 6, 3.0] in ring["board"]
    assert "can never finish" in orders["failure"] and orders["plays"]["starved"] == [
        "rank 0 waits at 0B0 for 1B0",
        "rank 1 waits at 1F1 for 0F1",
    ]


@pytest.mark.parametrize(
    "change, line, words",
    [
        (("range(n - 1)]", "range(n - 1"), 2, "line 2: SyntaxError"),
        (("add_up =", "add_up = 1 // 0 or"), 2, "line 2: ZeroDivisionError"),
        (('print("a ring of", n)', "(lambda: (\n        1 // 0\n    ))()"), 5, "line 5: ZeroDivisionError"),
        (("all_reduce", "all reduce"), 5, "line 5: ValueError: 'all reduce' is not a collective known here"),
        (("def my_ring", "def ring"), None, "no function my_ring"),
        (("return", "s ="), None, "my_ring(4) returns nothing"),
        (("def", "import nothing\ndef"), 1, "No module named 'nothing'. A page has Python's standard library"),
        (("(r + 1 - k)", "(r + 2 - k)"), None, "at the end"),
        (("copy(", "add("), None, "would be in the sum twice"),
        (("(r + 1 - k)", "(r - k)"), None, "at the end rank 0 has chunk a without the parts of ranks 1-3"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_or_its_step(change, line, words):
    found = evaluate(RING.replace(*change, 1), TASKS["my_ring"])
    assert words in found["failure"] and found["line"] == line
    if found["plays"]:  # up to what is wrong, which is the last thing said
        assert found["plays"]["says"][-1] in found["failure"]
        assert len(found["plays"]["says"]) == len(found["plays"]["steps"]) + 1
        stopped = re.search(r"step (\d)", found["failure"])
        assert len(found["plays"]["steps"]) == (int(stopped[1]) if stopped else 6)


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_judged_as_in_the_notebook(name):
    cell = inspect.getsource(ANSWERS[name])
    for answer in ANSWERS[name].RIGHT[name]:
        found = evaluate(f"{cell}\n{name} = {answer.__name__}", TASKS[name])
        assert "failure" not in found, (answer.__name__, found)
    for answer, _ in ANSWERS[name].WRONG[name]:
        found = evaluate(f"{cell}\n{name} = {answer.__name__}", TASKS[name])
        assert found.get("failure"), answer.__name__


@pytest.mark.slow
def test_a_price_is_the_same_without_numpy():
    wire = Port("wire", 2e9, duplex=False)
    shared = [
        Machine("shared", (Level("node", 4, 1e-6, wire, **limit), Level("cluster", 16, 7e-6, wire)), addition=1e-10)
        for limit in ({}, {"uplink": 1e9}, {"bus": 1e9})
    ]
    machines = [gpu_nodes(16, 4), rails(2), pcie_node(16), fat_tree(2), *shared]
    for make in ALGORITHMS:
        parameters = inspect.signature(make).parameters
        for asked in ({}, {"node": 4}) if "node" in parameters else ({},):
            if parameters.get("node") and parameters["node"].default is inspect.Parameter.empty and not asked:
                continue
            s = make(16, **asked)
            for machine, nbytes in product(machines, (0, 1000, 2**30)):
                assert seconds(s, nbytes, machine) == pytest.approx(cost(s, nbytes, machine).seconds, rel=1e-9), s.name
