"""Every known mistake ends in the verdict it deserves; no right program is accused."""

import re
import sys

import pytest
import torch
import torch.distributed as dist

from helpers import Mismatch, RunError, run
from tests import ROOT
from tests.bench.mistakes_table import (
    NAMED,
    REPORTS_INTRO,
    RUN,
    counted,
    grade,
    grades,
    page_grades,
    page_row,
    report_row,
    told_by_run,
)
from tests.corpus.mistakes import MISTAKES
from tests.corpus.reports import REPORTS
from tests.sampling import is_taken, when

PAGE = (ROOT / "notebooks" / "mistakes.md").read_text()
SLOW = {"groups_in_other_order"}  # nothing tells but the clock


@pytest.mark.parametrize(
    "mistake, n",  # all on three ranks, as on the page
    [
        pytest.param(mistake, n, marks=when(n == 3, is_taken(k + n, 8)), id=f"{mistake.id}-{n}")
        for k, mistake in enumerate(MISTAKES)
        for n in (2, 3, 8)
    ],
)
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
    if n == 3:  # as on the page
        [row] = re.findall(rf"^\| {re.escape(mistake.what)} \|.*: `(.*)` \|$", PAGE, re.MULTILINE)
        told = re.sub(r" at 0x\w+", "", verdict.splitlines()[0])
        assert told.startswith(row.removesuffix(" ...")), "make mistakes: the page says something else"


def test_the_page_has_a_row_for_each_mistake():
    assert len(re.findall(r"^\| .*(?:Stuck|Mismatch|RankFailed)\*\*: `", PAGE, re.MULTILINE)) == len(MISTAKES)


def test_a_mismatch_waits_for_nobody_once_all_have_made_the_call(monkeypatch):
    monkeypatch.setattr(sys.modules["collectives.judge.monitor"], "DEADLOCK_GRACE_SECONDS", 60.0)

    def program():
        rank = dist.get_rank()
        dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM, async_op=True)
        while True:  # no rank ever stands still
            pass

    with pytest.raises(Mismatch, match="ranks disagree on the reduce op of all_reduce") as caught:
        run(program, world_size=3)
    assert caught.value.run.seconds < 30


def transposed(shape):
    return torch.ones(*reversed(shape)).t()


def into_a_transposed_output():
    dist.all_to_all_single(transposed((2, 3)), torch.ones(2, 3))


def from_transposed_chunks():
    dist.reduce_scatter(torch.ones(2, 3), [transposed((2, 3)) for _ in range(2)])


def from_and_into_transposed_ones():
    dist.reduce_scatter(transposed((2, 3)), [transposed((2, 3)) for _ in range(2)])
    dist.all_gather([torch.ones(2, 3) for _ in range(2)], transposed((2, 3)))
    dist.all_gather_single(transposed((4, 3)), torch.ones(2, 3))


@pytest.mark.parametrize("program", [into_a_transposed_output, from_transposed_chunks])
def test_an_output_that_stores_its_elements_in_a_different_order_than_the_input_is_named(program):
    with pytest.raises(Mismatch, match="ranks 0 and 1 give .* that store their elements in different orders"):
        run(program, world_size=2)
    run(from_and_into_transposed_ones, world_size=2)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=when(k % 8 == 0, is_taken(k, 4))) for k, name in enumerate(REPORTS)]
)
def test_a_report_under_run_is_graded_as_on_the_page(name):
    found, recorded = grade(name, told_by_run(name)), page_grades(name, PAGE)[RUN]
    seen = sys.version_info >= (3, 12) and found == NAMED  # there, exceptions are seen where they are caught
    assert found == recorded or seen, f"make mistakes: {RUN} says something else"


def test_the_page_counts_its_reports():
    intro = REPORTS_INTRO.format(**counted({name: page_grades(name, PAGE) for name in REPORTS}))
    assert intro in PAGE, "make mistakes: the headline counts something else"


@pytest.mark.nightly
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_graded_as_on_the_page(name):
    assert page_row(name, PAGE) + "\n" == report_row(name, grades(name))
