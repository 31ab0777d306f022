"""What tests of several files need."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from filelock import FileLock

from tests import ROOT, areas
from tests.sampling import is_taken

# Where little is left to do, no worker should begin with one of these; pytest-xdist hands files out in this order.
LONGEST = (
    "test_class", "test_exercises", "test_score", "test_grade", "test_launch", "test_hosts", "test_cluster",
    "test_engines", "test_ranks", "test_chapters", "test_faults", "test_parallel", "test_correct",
    "01_ranks", "18_when_it_hangs", "19_real_hardware", "20_one_model_every_way",
)  # fmt: skip


# Notebooks whose stored outputs `make test` compares. `make test-all` compares an eighth of the others, and what
# changed; the night all. tests/test_exercises.py judges answers to every exercise.
QUICK = {
    "notebooks": ("00_start_here", "05_many_to_many", "your_tools"),
    "solutions": ("02_distributed_mean",),
}


def pytest_collection_modifyitems(config, items):
    chosen = {Path(one.partition("::")[0]).resolve() for one in config.args} | set(map(ROOT.joinpath, changed()))
    for item in items:
        if item.path.suffix == ".ipynb" and item.path.stem not in QUICK[item.path.parent.name]:
            due = is_taken(sorted(item.path.parent.glob("*.ipynb")).index(item.path) + 4, 8) or item.path in chosen
            item.add_marker(pytest.mark.slow if due else pytest.mark.nightly)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def changed() -> set[str]:
    """The tests that changes need by rows of tests/areas.py, whatever else they need."""
    files = areas.changed(os.environ.get("CI_BASE") or areas.fork()) or ()
    return {test for file in files for test in areas.needed([file]) or ()}


def pytest_runtest_setup():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and all that it starts


def pytest_terminal_summary(terminalreporter, config):
    """Note what failed in this run, for tests/again.py."""
    reports = [each for outcome in ("failed", "error") for each in terminalreporter.stats.get(outcome, ())]
    if hasattr(config, "cache"):  # tests.bench.power goes without
        config.cache.set("again", [each.nodeid for each in reports])


@pytest.fixture
def script(tmp_path):
    """Runs source text as a script, in an empty folder, by way of a line of shell; the arguments are the script's."""

    def run_script(source, shell='exec "$@"', **environ):
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(source))
        return subprocess.run(
            ["sh", "-c", shell, "sh", sys.executable, str(file)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            capture_output=True, text=True, timeout=120, cwd=tmp_path,
        )  # fmt: skip

    return run_script


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the website, with a page of figures that play: one for all workers."""
    from tests.website import build

    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    with FileLock(place / "site.lock"):
        made = place / "site" / "course" / "_site"
        built = made if made.exists() else build(place / "site")
    return pytest.skip(built) if isinstance(built, str) else built
