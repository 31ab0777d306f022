"""Programs of others run under the recorder as without it. `python -m tests.foreign` runs all of them."""

import pytest

from .foreign.compare import PROGRAMS, differences

AT_EACH_PUSH = ("own_helpers/train", "fails", "titan")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in AT_EACH_PUSH else pytest.mark.nightly) for n in PROGRAMS],
)
def test_a_foreign_program_runs_as_without_the_recorder(name, tmp_path):
    if lacks := PROGRAMS[name].lacks:
        pytest.skip(f"{lacks} is not installed")
    assert differences(PROGRAMS[name], tmp_path) == []
