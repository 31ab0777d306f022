"""The library by itself: a wheel in an environment that holds what the wheel asks for, and nothing of Jupyter or the course."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata

import pytest
from flit_core import buildapi
from packaging.requirements import Requirement

from collectives import __version__
from tests import ROOT

TRAIN = """
import torch
import torch.distributed as dist

import helpers

dist.init_process_group("gloo")
x = helpers.doubled(torch.ones(4))
dist.all_reduce(x)
print(f"rank {dist.get_rank()} has {x[0].item()} by {helpers.__file__}")
dist.destroy_process_group()
"""
DRAW = """
import importlib.util
import torch
import torch.distributed as dist
from collectives import run, timeline
from collectives.algorithms import ring_all_reduce
from collectives.jobs import load

def mean():
    x = torch.ones(2) * dist.get_rank()
    dist.all_reduce(x)
    return x / dist.get_world_size()

if __name__ == "__main__":
    r = run(mean, world_size=2)
    print(r)
    r.draw().savefig("run.png")
    ring_all_reduce(4).draw().savefig("ring.png")
    timeline(r)
    print(load("record").table())
    print([name for name in ("IPython", "jupyterlab", "ipywidgets", "helpers") if importlib.util.find_spec(name)])
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheel and what the wheel requires, extras aside."""
    folder = tmp_path_factory.mktemp("environment")
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        wheel = folder / buildapi.build_wheel(str(folder))
    finally:
        os.chdir(here)
    venv.create(folder / "env", symlinks=True)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    (about,) = site.glob("*.dist-info/METADATA")
    install(site, metadata.PathDistribution(about.parent).requires)
    return folder / "env" / "bin" / "python"


def install(site, requirements):
    """Links to the distributions that some requirements lead to."""
    for name in required(requirements):
        for part in {file.parts[0] for file in metadata.files(name) if file.parts[0] != ".."}:
            if not (site / part).exists():
                (site / part).symlink_to(metadata.distribution(name).locate_file(part))


def required(requirements) -> set[str]:
    """The distributions that some requirements lead to, extras aside."""
    found, wanted = set(), list(requirements)
    while wanted:
        requirement = Requirement(wanted.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}) or requirement.name in found:
            continue
        found.add(requirement.name)
        wanted += metadata.requires(requirement.name) or []
    return found


@pytest.mark.nightly
def test_a_job_next_to_a_helpers_of_its_own_is_watched_with_torch_alone_and_drawn_with_the_extras(python, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "helpers.py").write_text("def doubled(x):\n    return 2 * x\n")
    (tmp_path / "draw.py").write_text(DRAW)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def call(*command, status=0):
        done = subprocess.run(
            [python, *command], capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=240
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr * status

    torchrun = "-m torch.distributed.run --nproc-per-node 4 -m collectives.watch --record record train.py"
    printed = call(*torchrun.split())
    assert sorted(re.findall(r"rank (\d) has 8.0 by \S*?/helpers.py", printed)) == ["0", "1", "2", "3"]
    assert "all_reduce SUM" in call("-c", "from collectives.jobs import load; print(load('record').table())")
    assert "train.py, 4 ranks" in call("-m", "collectives", "steps", "record")
    assert "jobs.load" in call("-m", "collectives", "explain", "record")
    assert json.loads((tmp_path / "record" / "about.json").read_text())["version"] == __version__
    assert "pip install 'collectives-course[run]'" in call("draw.py", status=1)
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    install(site, ["cloudpickle"])
    assert "pip install 'collectives-course[pictures]'" in call("draw.py", status=1)
    install(site, ["matplotlib"])
    shown = call("draw.py")
    assert "all_reduce SUM" in shown and "ranks 0-3" in shown
    assert shown.endswith("['helpers']\n")  # the job's own


@pytest.mark.slow
def test_the_command_line_lists_what_it_can_do():
    def call(*words):
        return subprocess.run([sys.executable, "-m", "collectives", *words], capture_output=True, text=True, timeout=60)

    assert call("--version").stdout == f"collectives {__version__}\n"
    listed = call()
    commands = re.findall(r"^  (\w+) ", listed.stdout, re.MULTILINE)
    assert listed.returncode == 0 and "watch" in commands
    for command in commands:
        said = call(command, "--help")
        assert said.returncode == 0 and "usage" in said.stdout, said
    assert "there is no command 'wach'" in call("wach").stderr
