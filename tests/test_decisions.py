"""Lines that decide whether a rank makes a call are in the verdict, and only if ranks may decide differently."""

import linecache
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives import run
from collectives.judge.decisions import around, decisions, is_skipped
from collectives.log.event import Line
from collectives.outcome.errors import RunError


def by_the_clock():
    end = time.monotonic() + 0.05 + 0.1 * dist.get_rank()
    while time.monotonic() < end:
        dist.all_reduce(torch.ones(1))


def by_the_disk():
    with tempfile.TemporaryDirectory() as folder:
        if dist.get_rank() == 0:
            Path(folder, "last").touch()
        found = os.path.exists(f"{folder}/last")
        if found:
            dist.broadcast(torch.ones(2), 0)
        dist.all_reduce(torch.ones(1))


def by_the_sum_of_one_rank():
    loss = torch.ones(1)
    dist.reduce(loss, 0)
    if loss.item() > 1:
        dist.barrier()
    dist.all_reduce(torch.ones(1))


def after_a_barrier():
    for step in range(3):
        dist.all_reduce(torch.ones(1))
        stop = dist.get_rank() == 0
        dist.barrier()
        if stop:
            break
    dist.broadcast(torch.ones(2), 0)


def left_early():
    for step in range(3):
        if dist.get_rank() == 1 and step == 1:
            continue
        dist.all_reduce(torch.ones(1))


def handled():
    for step in range(3):
        try:
            1 / (step - dist.get_rank())
        except ZeroDivisionError:
            if dist.get_rank():
                continue
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    "program, words, line",
    [
        (by_the_clock, "depends on its own clock.", "while time.monotonic() < end:"),
        (by_the_disk, "depends on its own file system.", "if found:"),
        (by_the_sum_of_one_rank, "the result of reduce, which only its dst has.", "if loss.item() > 1:"),
        (after_a_barrier, "The barrier before it carries no value", "if stop: break"),
        (
            left_early,
            "A rank that leaves here doesn't get to the call",
            "if dist.get_rank() == 1 and step == 1: continue",
        ),
        (handled, "A rank that catches an exception here doesn't get to the call", "except ZeroDivisionError:"),
    ],
)
def test_a_verdict_has_the_line_that_decides(program, words, line):
    with pytest.raises(RunError) as raised:
        run(program, world_size=3, timeout=30)
    told = str(raised.value)
    assert words in told and f"{program.__name__}, line" in told and told.count(f":  {line}\n") == 1, told


def in_a_thread():
    """On rank 1, the main thread's call comes before the thread's."""
    turn = threading.Event()

    def collect():
        if dist.get_rank() == 1:
            turn.wait()
        dist.broadcast(torch.ones(2), 0)

    thread = threading.Thread(target=collect)
    thread.start()
    if dist.get_rank() != 1:
        thread.join()
    dist.all_reduce(torch.ones(1))
    turn.set()


def test_a_call_in_another_thread_is_named():
    with pytest.raises(RunError, match="in another thread. Two threads' calls on one group come in any order"):
        run(in_a_thread, world_size=2, timeout=30)


def test_a_decision_may_be_where_the_function_is_called_and_ask_another_function():
    """The best loss decides on a checkpoint, and only rank 0 has it."""
    text = BEST.splitlines(keepends=True)
    linecache.cache["<best>"] = (len(BEST), None, text, "<best>")
    lines = [Line("<best>", text.index(line) + 1, "") for line in text if "dist.a" in line]
    assert [(d.kind, d.line.text, d.call.number) for d in decisions(lines)] == [("reduce", "if validate() < best:", 6)]


BEST = """
def validate():
    loss = compute()
    dist.reduce(loss, dst=0)
    return loss.item()
def save(): dist.all_gather(shards, shard)
def job():
    for epoch in range(3):
        dist.all_reduce(gradient)
        if validate() < best:
            save()
"""
SHUFFLED = """
names = set(sizes)
for name in names:
    dist.all_reduce(sizes[name])
"""


def kinds(body, *numbers):
    """The kinds of decision on these lines of a function, whose first is line 1."""
    text = "def job(rank, sizes):\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())
    file = f"<decisions {hash(body)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return [
        d.kind for d in decisions([Line(file, number + 1, "job") for number in numbers], together=len(numbers) == 1)
    ]


@pytest.mark.parametrize(
    "body",
    [
        SHUFFLED,
        "for name in {'b', 'a'} - seen:\n    pass\n    dist.all_reduce(sizes[name])",
        "for k, name in enumerate(list({s.lower() for s in sizes})):\n    pass\n    dist.all_reduce(sizes[name])",
    ],
)
def test_the_order_of_a_set_is_named(body):
    assert kinds(body, 3) == ["set"]


@pytest.mark.parametrize(
    "body, numbers",
    [
        (SHUFFLED.replace("in names", "in sorted(names)"), [3]),
        ("for k in {1, 2}:\n    dist.all_reduce(sizes[k])", [2]),
        # One rank looks, and all get what it saw.
        ("stop = torch.tensor(time.time() > 5)\ndist.broadcast(stop, 0)\nif stop:\n    dist.barrier()\nreturn dist.reduce(stop)", [4, 5]),
        ("if agree(time.time() > 5):\n    dist.barrier()\ndist.reduce(sizes)", [2, 3]),
        ("loss = sizes\ndist.all_reduce(loss)\nif loss > 5:\n    dist.barrier()\ndist.gather(loss)", [4, 5]),
        ("last = size - 1\nif rank == last:\n    dist.reduce(loss, dst=last)\ndist.gather(loss)", [3, 4]),
        ("random.seed(0)\nif random.random() > 0.5:\n    dist.barrier()\ndist.gather(loss)", [3, 4]),
        # It keeps ranks from both calls.
        ("while time.time() < 5:\n    dist.barrier()\n    dist.gather(sizes)", [2, 3]),
        ("if not sizes:\n    return\ndist.barrier()\ndist.gather(sizes)", [3, 4]),
        # A break in a loop of its own, a return in a function of its own, an exception that goes on.
        ("for size in sizes:\n    if size:\n        break\ndist.barrier()\nif rank: dist.gather(sizes)", [4, 5]),
        ("def first():\n    if rank:\n        return 1\ndist.barrier()\nif rank: dist.gather(sizes)", [4, 5]),
        ("try:\n    dist.barrier()\nexcept OSError:\n    raise\ndist.gather(sizes)", [2, 5]),
    ],
)  # fmt: skip
def test_what_is_the_same_on_all_ranks_decides_nothing(body, numbers):
    assert kinds(body, *numbers) == []


def test_random_numbers_without_a_seed():
    assert kinds("if random.random() > 0.5:\n    dist.barrier()\ndist.gather(loss)", 2, 3) == ["random"]
    assert kinds("if random.random() > 0.5:\n    dist.barrier()\nelse:\n    dist.gather(loss)", 2, 4) == ["random"]
    assert kinds("if random.random() > 0.5:\n    dist.barrier()\n    dist.gather(loss)", 2, 3) == []


def test_a_handler_keeps_a_rank_from_the_calls_after_the_exception():
    lines = Path(__file__).read_text().splitlines()
    division = next(k for k, line in enumerate(lines, 1) if "1 / (step" in line)
    at, call = Line(__file__, division, "handled"), Line(__file__, division + 4, "handled")
    assert "dist.all_reduce" in lines[call.number - 1]
    assert is_skipped(call, by=at) and not is_skipped(call, by=call) and not is_skipped(at, by=call)


def test_nothing_is_decided_where_no_source_can_be_read():
    assert not list(around(Line("<no file>", 1, "job")))
