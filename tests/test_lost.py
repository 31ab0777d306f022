"""Runs that may lose ranks: real kills, real survivors, and a Run that names who is missing."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from collectives import run
from collectives.outcome.errors import RankFailed, Stuck

LIMIT = timedelta(seconds=2)


def survive(end, lost=(1,), catch=True):
    """Sums of four steps; in step 2, the lost ranks end, and the others repeat the step without them."""
    rank, members, sums = dist.get_rank(), list(range(dist.get_world_size())), []
    group = dist.new_group(members, timeout=LIMIT)
    while len(sums) < 4:
        if rank in lost and len(sums) == 2:
            end()
        x = torch.full((100,), rank + 1.0)
        try:
            dist.all_reduce(x, group=group)
        except RuntimeError:
            if not catch:
                raise
            failed = True
        else:
            failed = False
        if failed:
            members = [r for r in members if r not in lost]
            dist.destroy_process_group(group)
            group = None
            group = dist.new_group(members, timeout=LIMIT, use_local_synchronization=True)
            continue
        sums.append(x[0].item())
    return sums


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def ended():
    os._exit(3)


@pytest.mark.parametrize(
    "end, words",
    [
        (killed, "was killed by SIGKILL"),
        pytest.param(stopped, "was stopped by SIGSTOP", marks=pytest.mark.slow),
        (ended, "ended itself with exit code 3 (os._exit?)"),
    ],
)
def test_survivors_go_on_and_the_run_names_who_is_lost(end, words):
    done = run(survive, end, may_lose=1)
    assert done.results == [[10, 10, 8, 8], None, [10, 10, 8, 8], [10, 10, 8, 8]]
    assert done.losses == {1: words}
    assert [len(events) for events in done.events] == [5, 2, 5, 5]
    assert f"\nRank 1 {words} after all_reduce #2 (survive, line " in repr(done)
    assert "     1   (lost)\n" in repr(done)
    failed, repeated = done.calls[2:4]
    assert failed.ranks == repeated.ranks == repeated.group == (0, 2, 3)
    assert done.table(2).count("(failed)") == 3 and done.table(3).count("8 8 8 ... 8 8 8") == 3
    assert {"never called", "failed"} <= set(done.draw(2).text.replace(")", "(").split("(")) | set(words_in(done, 2))


def words_in(done, which):
    return [word for word in ("never called", "failed", "lost", "still waiting") if word in done.draw(which).svg()]


def test_the_call_in_which_a_rank_ended_is_marked():
    def fails():
        try:
            if dist.get_rank() == 1:
                work = dist.all_reduce(torch.ones(1), async_op=True)
                killed()
            dist.all_reduce(torch.ones(1))
            dist.barrier()
        except RuntimeError:
            return "noticed"

    done = run(fails, world_size=2, may_lose=1)
    assert done.results == ["noticed", None]
    assert "was killed by SIGKILL in all_reduce #1" in repr(done)
    (event,) = done.events[1]
    assert event.cut_short and event.end is None
    assert "(lost)" in done.table(0) and "lost" in words_in(done, 0)


def test_without_the_option_a_death_ends_the_run():
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL after 2 calls"):
        run(survive, killed)


def test_more_deaths_than_allowed_end_it():
    with pytest.raises(RankFailed, match=r"run\(may_lose=1\) goes on without 1 rank, and ranks 1 and 3 are lost") as e:
        run(survive, killed, (1, 3), may_lose=1)
    assert e.value.rank in (1, 3)
    done = run(survive, killed, (1, 3), may_lose=2)
    assert done.results == [[10, 10, 4, 4], None, [10, 10, 4, 4], None] and set(done.losses) == {1, 3}


def test_survivors_that_catch_nothing_are_told_to():
    with pytest.raises(RankFailed, match="rank 1 was killed by SIGKILL") as error:
        run(survive, killed, catch=False, may_lose=1)
    assert "catch the RuntimeError of their call" in str(error.value)


def test_a_survivors_own_mistake_is_named_and_not_the_death():
    def work():
        if dist.get_rank() == 1:
            killed()
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            raise KeyError("members") from None

    with pytest.raises(RankFailed, match="raised KeyError: 'members'"):
        run(work, may_lose=1)


def test_a_mistake_before_any_loss_is_still_judged():
    def parted():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(Stuck, match="This can never finish"):
        run(parted, world_size=2, may_lose=1)


@pytest.mark.slow
def test_a_rank_that_is_stopped_and_one_that_waits_for_it_without_a_limit_are_out_of_time():
    def waits():
        if dist.get_rank() == 1:
            stopped()
        dist.all_reduce(torch.ones(1))

    with pytest.raises(Stuck) as error:
        run(waits, world_size=2, may_lose=1, timeout=2)
    assert error.value.timed_out and error.value.waits == {0: {1}}


def test_the_next_run_has_all_ranks_again():
    began = time.monotonic()
    assert run(survive, killed, may_lose=1).losses
    assert run(dist.get_rank).results == [0, 1, 2, 3] and not run(dist.get_rank).losses
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "may_lose, error, words",
    [
        (4, ValueError, "may_lose must be from 0 to 3, not 4: a run needs one that survives"),
        (-1, ValueError, "from 0 to 3, not -1"),
        (True, TypeError, "may_lose is a number of ranks"),
        (1.0, TypeError, "may_lose is a number of ranks"),
    ],
)
def test_a_number_that_cannot_be_lost_is_refused(may_lose, error, words):
    with pytest.raises(error, match=words):
        run(dist.get_rank, may_lose=may_lose)
