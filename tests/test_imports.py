"""What imports what: one way only; a rank loads what it executes; names never depend on what was imported first."""

import ast
import importlib
import pkgutil
import subprocess
import sys

import pytest

import collectives
import helpers
from collectives import algorithms as schedule
from collectives import cost, machines
from collectives.lazy import Later
from collectives.log import backends
from helpers import run
from tests import ROOT

RING_AND_PING_PONG = """
import sys
from collectives.algorithms import ring_all_reduce

ring = ring_all_reduce(2).program()
from collectives.cost import ping_pong

def loaded():
    return {name for name in sys.modules if name.partition(".")[0] in ("collectives", "matplotlib", "PIL", "ipywidgets")}

assert not loaded() & {"collectives.launch.run", "collectives.draw", "collectives.algorithms.from_run", "matplotlib"}, loaded()

import torch
from helpers import run

def program():
    ring(torch.ones(4))
    return loaded()

def measurement():
    ping_pong((16,), 1)
    return loaded()

before = run(loaded, world_size=2).results[1]
during = run(program, world_size=2).results[1]
after = run(loaded, world_size=2).results[1]
measured = run(measurement, world_size=2).results[1]
print(sorted(during - before), sorted(during - after), sorted(measured - during), sep="\\n")
"""


@pytest.mark.slow
def test_a_rank_loads_what_it_executes_and_the_next_ones_have_it():
    done = subprocess.run([sys.executable, "-c", RING_AND_PING_PONG], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "['collectives.algorithms', 'collectives.algorithms.execute', 'collectives.algorithms.schedule']",
        "[]",
        "['collectives.cost', 'collectives.cost.fit']",
    ], done.stderr


@pytest.mark.parametrize("package", [schedule, cost, machines])
def test_lazy_names_are_all_there(package):
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name
    with pytest.raises(ImportError):
        exec(f"from {package.__name__} import no_such_name")


def test_every_name_and_method_that_is_loaded_later_is_there():
    modules = [
        importlib.import_module(name)
        for package in (collectives, helpers)
        for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if "__main__" not in name and name not in ("collectives.remote.network", "collectives.remote.enter")
    ]
    for module in (collectives, helpers, *modules):
        assert [name for name in vars(module).get("_home", ()) if getattr(module, name, None) is None] == [], module
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                assert all(getattr(kind, name) for name, value in vars(kind).items() if isinstance(value, Later)), kind


CLASHES = """
import collectives.cost.cost, collectives.cost.fit  # modules spelled like names of their package
from collectives.algorithms.rounds import Outline
from collectives.algorithms import outline
from collectives.cost import cost, fit
assert callable(cost) and callable(fit) and callable(outline), (cost, fit, outline)
"""


def test_a_module_does_not_hide_the_name_it_is_spelled_like():
    done = subprocess.run([sys.executable, "-c", CLASHES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_lazy_package_travels_to_the_ranks():
    assert run(lambda: machines.flat.__name__, world_size=1).results == ["flat"]


def test_imports_run_one_way():
    linter = pytest.importorskip("importlinter.cli")  # needs Python 3.11
    assert linter.lint_imports(config_filename=str(ROOT / "pyproject.toml")) == linter.EXIT_STATUS_SUCCESS


def names_a_backend(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and value.partition(":")[0] in backends.NAMES


def comparisons(source: str) -> list[str]:
    """The pieces of code that decide by a backend's name: ==, in, match, startswith, a dict's keys."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare() | ast.MatchValue():
                compared = [node]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith" | "get")):
                compared = node.args
            case ast.Dict():
                compared = filter(None, node.keys)
            case ast.Subscript():
                compared = [node.slice]
            case _:
                continue
        if any(names_a_backend(inner) for piece in compared for inner in ast.walk(piece)):
            found.append(ast.unparse(node))
    return found


def test_what_a_backend_does_is_asked_of_the_table_alone():
    for code in (
        'e.backend == "nccl"', '"gloo" in str(backend)', 'name not in (None, "gloo")', 'name.startswith("nccl:")',
        'WAYS = {"xccl": 1}', 'ways["gloo"]', 'match name:\n case "ncclx": pass',
    ):  # fmt: skip
        assert comparisons(code), code
    assert not comparisons('init("gloo"); name = "nccl"; name == other')
    folder = ROOT / "collectives"
    files = [file for file in folder.rglob("*.py") if file != folder / "log" / "backends.py"]
    found = {str(file.relative_to(folder)): there for file in files if (there := comparisons(file.read_text()))}
    assert len(files) > 200 and found == {}, "a trait of log/backends.py decides instead"


def test_what_needs_no_torch_does_not_wait_for_it():
    modules = "grader.instructor, grader.learner"  # the workers and the kernel load it
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


LOADED = """
import sys
from collectives import run

print(*run(lambda: sorted(name for name in sys.modules if name.startswith("collectives.")), world_size=1).results[0])
"""


def test_a_rank_holds_plain_data_and_what_runs_there():
    runs = ("server", "fresh", "warmup", "wire", "process", "work", "pickling", "tcp", "torch_warnings")
    log = {"log", "log.backends", "log.collectives", "log.event", "log.messages"}
    allowed = {"launch", *(f"launch.{name}" for name in runs), *log, "format", "lazy", "version", "rank"}
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120)
    loaded = {name.removeprefix("collectives.") for name in done.stdout.split()}
    assert "rank.tracer" in loaded, done.stderr
    assert {name for name in loaded if not name.startswith("rank.")} <= allowed
