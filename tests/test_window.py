"""Memory that ranks write into: what arrives, what is counted and drawn, what is judged, and what is left."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

from collectives.cost import bill
from collectives.launch.pretended import run as pretended
from collectives.log.traffic import count
from collectives.machines import nvlink_node
from collectives.rank import window as windows
from helpers import RankFailed, Stuck, Window, run


def pushes():
    window, rank = Window(4), dist.get_rank()
    if rank == 0:
        window.put(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t(), 1)
        window.signal(1)
    if rank == 1:
        window.wait(0)
        window.put(window.local[1:3] * 10, 2, offset=2)
        window.signal(2)
    if rank == 2:
        window.wait(1)
        return window.local.tolist(), window.get(1, 3).tolist(), window.pushed
    return window.pushed


def meets():
    dist.barrier()


def test_what_is_put_is_there_after_the_wait_and_is_drawn_and_counted():
    done = run(pushes, world_size=3)
    assert done.results == [24, 16, ([0.0, 0.0, 30.0, 20.0], [4.0], 4)]
    assert [[e.op for e in events] for events in done.events] == [
        ["barrier", "put", "signal"], ["barrier", "wait", "put", "signal"], ["barrier", "wait", "get"],
    ]  # fmt: skip
    table = done.table()
    for line in ("0 -> 1   [1 3] [2 4]   float32 [2, 2], 16 B   put", "signal 1", "1 -> 2   4", "get"):
        assert line in table, table
    assert "no recv" not in repr(done) and done.steps == 4  # the barrier; the first put, which nobody waits for; ...
    traffic = count(done.events)
    assert (traffic.sent, traffic.received) == ([24.0, 20.0, 0.0], [0.0, 24.0, 20.0])
    picture = done.draw(slice(1, None)).svg()
    assert "30 20" in picture and "signal 1" in picture


def test_a_forecast_and_a_bill_name_what_they_leave_out():
    done = run(pushes, world_size=3)
    assert "Calls on a Window aren't part of this" in done.on("nccl")
    found = bill(done, nvlink_node("H100", 3))
    assert found.unpriced == 7 and [item.op for item in found] == ["barrier"]
    assert "left out: 7 of all ranks' calls, on windows, have no price" in repr(found)
    without = run(meets, world_size=3)
    assert "Window" not in without.on("nccl") and "left out" not in repr(bill(without, nvlink_node("H100", 3)))


def test_without_a_record_the_bytes_are_the_same():
    done = run(pushes, world_size=3, record=False)
    assert done.results == run(pushes, world_size=3).results and not any(done.events)


def all_to_all_ranks():
    window, rank, n = Window(4), dist.get_rank(), dist.get_world_size()
    for peer in range(n):
        window.put(torch.tensor([float(rank)]), peer, rank)
        window.signal(peer)
    for peer in range(n):
        window.wait(peer)
    return window.local.tolist()


def test_puts_and_the_waits_for_them_are_one_step():
    done = run(all_to_all_ranks, world_size=4)
    assert done.results == [[0.0, 1.0, 2.0, 3.0]] * 4 and done.steps == 2  # the first is the barrier


def one_after_the_other(times, numel):
    """Rank 0 fills rank 1's window with the number of each round; rank 1 signals back when it has looked."""
    window, rank, seen = Window(numel, torch.int64), dist.get_rank(), []
    for k in range(1, times + 1):
        if rank == 0:
            window.put(torch.full((numel,), k), 1)
            window.signal(1)
            window.wait(1)
        else:
            window.wait(0)
            seen.append(window.local.unique().tolist() == [k])
            window.signal(0)
    return all(seen)


def test_more_signals_than_there_are_slots():
    assert run(one_after_the_other, 3 * windows.SLOTS, 1000, world_size=2, record=False).results == [True, True]


def counts_up():
    window, rank = Window(8), dist.get_rank()
    if rank == 0:
        for k in range(8):
            window.put(torch.tensor([k + 1.0]), 1, k)
            window.signal(1)
    else:
        window.wait(0, 5)
        first = window.local[:5].tolist()
        window.wait(0, 3)  # it has been
        window.wait(0)
        window.wait(0, 8)
        return first, window.local.tolist()


def test_a_wait_is_for_a_count():
    assert run(counts_up, world_size=2).results[1] == ([1.0, 2.0, 3.0, 4.0, 5.0], [k + 1.0 for k in range(8)])


def arrives_late():
    """A signal is seen before the bytes that it is about, as a processor may show them that reorders stores."""
    windows.ARRIVED_SECONDS, window, looks = 60.0, Window(2), []
    checksum = window._checksum

    def before_it_arrives(*puts):
        found = checksum(*puts)
        window._tensors[1].zero_()
        return found

    def look(*puts):
        looks.append(window.local.tolist())
        if len(looks) == 1:
            window._checksum = checksum
            window.signal(0)
            window._checksum = look
        return checksum(*puts)

    if dist.get_rank() == 0:
        window.put(torch.ones(2), 1)
        window._checksum = before_it_arrives
        window.signal(1)
        window._checksum = checksum
        window.wait(1)
        window._tensors[1].fill_(1.0)
    else:
        window._checksum = look
        window.wait(0)
        return looks[0], window.local.tolist()


def test_a_wait_ends_when_the_bytes_have_arrived():
    assert run(arrives_late, world_size=2).results[1] == ([0.0, 0.0], [1.0, 1.0])


def overwritten():
    """What rank 0 put, rank 1 has overwritten before it waits."""
    window, rank = Window(2), dist.get_rank()
    if rank == 0:
        window.put(torch.ones(2), 1)
        window.signal(1)
    dist.barrier()
    if rank == 1:
        window.local.fill_(2.0)
        window.wait(0)
        return window.local.tolist()


def test_what_was_overwritten_holds_up_no_wait():
    assert run(overwritten, world_size=2).results[1] == [2.0, 2.0]


def never_signaled():
    window = Window(4)
    if dist.get_rank() == 0:
        window.put(torch.ones(4), 1)
    else:
        window.wait(0)


def both_wait():
    window, rank = Window(1), dist.get_rank()
    window.wait(1 - rank)
    window.signal(1 - rank)


def signaled_once():
    window, rank = Window(1), dist.get_rank()
    if rank == 0:
        window.signal(1)
    else:
        window.wait(0, 2)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (never_signaled, "rank 1 is waiting in wait #2 for signal 1 from 0; rank 0 returned after 2 calls. This can never"),
        (both_wait, "rank 0 is waiting in wait #2 for signal 1 from 1; rank 1 is waiting in wait #2 for signal 1 from 0."),
        (signaled_once, "rank 1 is waiting in wait #2 for signal 2 from 0; rank 0 returned after 2 calls."),
    ],
)
def test_a_wait_that_nobody_signals_is_judged_at_once(program, words):
    with pytest.raises(Stuck) as found:
        run(program, world_size=2, timeout=60)
    assert words in str(found.value) and "signal after its puts" in str(found.value)
    assert found.value.run.seconds < 20


WRONG = {
    "dtype": (lambda w: w.put(torch.ones(2, dtype=torch.int64), 1), TypeError, "convert it with .to(torch.float32)"),
    "range": (lambda w: w.put(torch.ones(3), 1, 2), IndexError, "elements 2 to 4 aren't there: this window has 0 to 3"),
    "negative": (lambda w: w.get(1, -1, 2), IndexError, "elements -1 to 0 aren't there"),
    "rank": (lambda w: w.signal(2), ValueError, "rank 2 isn't in this window's group, ranks 0 and 1"),
    "count": (lambda w: w.wait(1, 0), ValueError, "the number of a signal, from 1"),
    "itself": (lambda w: w.wait(dist.get_rank()), RuntimeError, "waits for its own signal 1"),
    "list": (lambda w: w.put([1.0], 1), TypeError, "put takes a tensor, and this is a list"),
    "empty": (lambda w: Window(0), ValueError, "at least 1, and this is 0"),
    "kind": (lambda w: Window(2, "float32"), TypeError, "one of torch's"),
    "alike": (lambda w: Window(2 + dist.get_rank()), ValueError, "they must be the same on all ranks"),
}


def errs(name):
    with pytest.raises(WRONG[name][1]) as found:
        WRONG[name][0](Window(4))
    return str(found.value)


@pytest.mark.parametrize("name", WRONG)
def test_an_argument_that_no_window_can_have(name):
    assert all(WRONG[name][2] in words for words in run(errs, name, world_size=2).results)


def not_a_member():
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        return Window(2, group=group).group
    with pytest.raises(ValueError, match="rank 2 isn't in this window's group, ranks 0 and 1"):
        Window(2, group=group)


def test_a_window_of_a_group():
    assert run(not_a_member, world_size=3).results == [(0, 1), (0, 1), None]


def test_no_window_outside_a_run_nor_on_pretended_ranks():
    with pytest.raises(RuntimeError, match="make it in the function that you give to run"):
        Window(2)
    with pytest.raises(RankFailed, match="memory that real ranks share"):
        pretended(lambda: Window(2), world_size=2)


def dies_before():
    if dist.get_rank() == 1:
        while not any(".window." in file for file in os.listdir(os.path.dirname(windows.surroundings.store))):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    Window(4)


def folder_of():
    Window(1)
    dist.barrier()
    folder = os.path.dirname(windows.surroundings.store)
    return folder, [file for file in os.listdir(folder) if "window" in file]


def test_nothing_is_left_of_a_window_even_if_a_rank_dies():
    with pytest.raises(RankFailed, match="rank 1"):
        run(dies_before, world_size=2)
    folder, files = run(folder_of, world_size=2).results[0]
    assert files == [] and [file for file in os.listdir(folder) if "window" in file] == []
