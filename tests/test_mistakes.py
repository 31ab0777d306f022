"""Every known mistake ends in the verdict it deserves; no right program is accused."""

import re

import pytest
import torch.distributed as dist
from mistakes import MISTAKES

from helpers import RunError, run

SLOW = {"groups_in_other_order"}  # nothing tells but the clock


@pytest.mark.parametrize("n", [2, 3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.id)
def test_a_mistake_is_recognised(mistake, n):
    with pytest.raises(RunError) as caught:
        run(
            lambda: mistake.program(dist.get_rank(), dist.get_world_size()),
            world_size=n,
            timeout=3 if mistake.id in SLOW else 30,
        )
    verdict = str(caught.value)
    assert type(caught.value) is mistake.error, verdict
    assert re.search(mistake.words, verdict.splitlines()[0]), verdict
    assert re.search(r"\b\w+, line \d+:  \S", verdict), f"no line of the program in: {verdict}"
