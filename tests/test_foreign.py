"""Programs of others run under the recorder as without it. `python -m tests.foreign` runs all of them."""

import pytest

from tests.sampling import one_in

from .foreign.compare import PROGRAMS, differences


@pytest.mark.parametrize("name", [pytest.param(n, marks=one_in(k, 12)) for k, n in enumerate(PROGRAMS)])
def test_a_foreign_program_runs_as_without_the_recorder(name, tmp_path):
    if lacks := PROGRAMS[name].lacks:
        pytest.skip(f"{lacks} is not installed")
    assert differences(PROGRAMS[name], tmp_path) == []
