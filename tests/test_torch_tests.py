"""torch's own tests under run: right programs are not accused, and none changes because it is recorded."""

import json
import subprocess
import sys

import pytest

from tests.corpus.torch_tests import MISTAKES
from tests.sampling import when


@pytest.mark.parametrize("world_size", [pytest.param(n, marks=when(False)) for n in (3, 4)])
def test_torch_s_own_tests_pass(world_size):
    command = [sys.executable, "-m", "tests.corpus.torch_tests", str(world_size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    outcomes = dict(map(json.loads, (line for line in done.stdout.splitlines() if line.startswith('["test_'))))
    failed = {name: words for name, words in outcomes.items() if words not in ("passed", "skipped")}
    assert failed.keys() == MISTAKES.keys(), failed or done.stderr
    assert all(words in failed[name] for name, words in MISTAKES.items())
    assert sum(words == "passed" for words in outcomes.values()) > 80
