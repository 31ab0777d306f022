"""Exceptions that ranks caught: named in the verdict on ranks that parted, and never where all is well."""

import contextlib
import sys

import pytest
import torch
import torch.distributed as dist

from collectives import run
from collectives.outcome.errors import RunError
from collectives.rank.caught import AT_ONCE, Catches
from tests import ROOT

needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")


def on_the_job():
    """On rank 1, the second of three steps fails in torch.distributed."""
    for step in range(3):
        try:
            dist.all_reduce(None if dist.get_rank() == 1 and step == 1 else torch.ones(1))
        except TypeError:
            continue


def before_it():
    """On rank 1, the second of three steps fails before its call."""
    for step in range(3):
        with contextlib.suppress(RuntimeError):
            if dist.get_rank() == 1 and step == 1:
                raise RuntimeError("out of memory")
            dist.all_reduce(torch.ones(1))


def another_follows():
    """As before_it, and the ranks meet in different collectives."""
    before_it()
    dist.broadcast(torch.ones(1), 0)


def raised_again():
    """An exception that passes through handlers which don't keep it."""
    try:
        try:
            try:
                with torch.no_grad():
                    int("x")
            except KeyError:
                pass
        finally:
            pass
    except ValueError as error:
        return error


def not_pickled():
    """On rank 1, an object doesn't pickle, and the rank is at the next call."""
    with contextlib.suppress(AttributeError):
        dist.all_gather_object([None] * 3, (lambda: None) if dist.get_rank() == 1 else None)
    dist.broadcast(torch.ones(2), 0)


def missing_key():
    """On rank 1, a called function lacks a key, and the rank is at the next call."""
    table = {0: 1.0, 2: 1.0}
    try:
        dist.all_reduce(torch.tensor([value_of(table)]))
    except KeyError:
        pass
    dist.broadcast(torch.ones(2), 0)


def value_of(table):
    return table[dist.get_rank()]


def idioms():
    """What every program does, some ranks more than others."""
    known, numbers = {}, iter(())
    for step in range(3):
        for key in range(dist.get_rank() + 1):
            try:
                known[key, step]
            except KeyError:
                known[key, step] = step
        try:
            next(numbers)
        except StopIteration:
            numbers = iter(())
        raised_again()
        dist.all_reduce(torch.ones(1))


def idioms_and_a_barrier():
    """As idioms, and then rank 0 waits for a call that the others don't make."""
    idioms()
    if dist.get_rank() == 0:
        dist.barrier()


def words(program):
    with pytest.raises(RunError) as raised:
        run(program, world_size=3, timeout=30)
    return str(raised.value)


@pytest.mark.parametrize(
    "program, error",
    [
        (on_the_job, "TypeError: Invalid function argument."),
        pytest.param(before_it, "RuntimeError: out of memory\n  before_it, line", marks=needs_monitoring),
        pytest.param(another_follows, "RuntimeError: out of memory\n  before_it, line", marks=needs_monitoring),
    ],
)
def test_a_verdict_names_what_a_rank_caught_before_it_left_out_a_call(program, error):
    told = words(program)
    assert f"Earlier, after 1 call, rank 1 caught {error}" in told and told.count(" caught ") == 1, told


@pytest.mark.parametrize(
    "program, error",
    [(not_pickled, "AttributeError: "), pytest.param(missing_key, "KeyError: 1", marks=needs_monitoring)],
)
def test_what_any_program_catches_is_named_if_it_is_why_a_call_was_left_out(program, error):
    assert f"Earlier, before any call, rank 1 caught {error}" in words(program)


def test_nothing_is_said_of_what_all_ranks_catch_or_any_program_does():
    assert " caught " not in words(idioms_and_a_barrier)
    run(idioms, world_size=3)


@needs_monitoring
def test_an_exception_counts_as_caught_by_the_handler_that_keeps_it():
    told = []
    catches = Catches(told.append, lambda: 7)
    catches.start()
    try:
        raised_again()
    finally:
        catches.stop()
    raised_again()
    last = {message.line: message for message in told}
    [kept] = [message for message in last.values() if message.times]
    assert kept.error == "ValueError: invalid literal for int() with base 10: 'x'" and kept.calls == 7
    assert kept.line.file == str(ROOT / "tests" / "test_caught.py") and kept.line.function == "raised_again"


@needs_monitoring
def test_between_two_calls_a_line_is_reported_a_few_times_at_most():
    told, calls = [], 0
    catches = Catches(told.append, lambda: calls)
    catches.start()
    try:
        for calls in range(3):
            for _ in range(1000):
                raised_again()
    finally:
        catches.stop()
    assert 3 <= len(told) <= 3 * 2 * AT_ONCE and told[-1].times == 3


def lists_everywhere():
    """scatter_list is for the source alone."""
    from datetime import timedelta

    x, group = torch.zeros(1), dist.new_group(timeout=timedelta(seconds=1))
    with contextlib.suppress(RuntimeError, ValueError):
        dist.scatter(x, [torch.ones(1) for _ in range(dist.get_world_size())], src=0, group=group)


def stacked():
    """torch documents such an output, and gloo refuses it."""
    with contextlib.suppress(RuntimeError):
        dist.all_gather_single(torch.zeros(dist.get_world_size(), 2), torch.ones(2))


def one_is_never_waited_for():
    dist.all_reduce(torch.ones(1))
    return dist.all_reduce(torch.ones(1), async_op=True) and None


@pytest.mark.parametrize(
    "program, words",
    [
        (lists_everywhere, ("Rank 0 alone made scatter #1 (", "ranks 1 and 2 caught ValueError: Argument ``scatter_list`` must NOT")),
        (stacked, ("Ranks 0, 1 and 2 made all_gather_single #1 (", "which failed: ranks 0, 1 and 2 caught", "out.view(-1)")),
        (one_is_never_waited_for, ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_call_whose_error_the_program_caught_has_a_note(program, words):
    seen = repr(run(program, world_size=3))
    assert all(word in seen for word in words), seen
    assert ("caught" in seen) == bool(words), seen


def test_recording_leaves_nothing_behind():
    catches = Catches(print, lambda: 0)
    for _ in range(3):
        catches.start()
        catches.stop()
    if sys.version_info >= (3, 12):
        assert all(sys.monitoring.get_tool(number) != "collectives" for number in range(6))
