"""What tests of several files need."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests import ROOT


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
    """The folder of the website, with a page of figures that play."""
    from tests.website import build

    built = build(tmp_path_factory.mktemp("site"))
    return pytest.skip(built) if isinstance(built, str) else built
