"""A parallel job next to one process: right ones are the same, and of wrong ones the first tensor that differs is named."""

import pytest

from collectives.same import same
from tests.corpus.same import CANNOT, RIGHT, WRONG


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_job_is_the_same(name):
    job, size, options = RIGHT[name]
    seen = same(job, world_size=size, **options)
    assert seen.verdict == "same", seen
    assert seen.comparison.tensors or seen.comparison.rows


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_job_is_named(name):
    job, size, options, first, words = WRONG[name]
    seen = same(job, world_size=size, **options)
    assert (seen.verdict, seen.first) == ("differs", first), seen
    for word in words:
        assert word in seen.reason, seen


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_compared_is_said_with_what_to_set(name):
    job, words = CANNOT[name]
    seen = same(job, world_size=2)
    assert seen.verdict == "cannot compare" and not seen.first, seen
    for word in words:
        assert word in seen.reason, seen
