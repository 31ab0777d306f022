"""step(): a run of sends, or a schedule, step by step; as a widget, as pictures, as text."""

import json

import pytest
import torch
import torch.distributed as dist

from collectives.algorithms import ring_all_reduce
from helpers import run, step


def chain():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(3.0) if rank == 0 else torch.zeros(3)
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < n - 1:
        dist.send(x, rank + 1)


def test_a_run_says_who_sends_what_and_who_waits():
    steps = step(run(chain, world_size=4))
    assert repr(steps).splitlines() == [
        "chain: 3 messages in 3 steps",
        "  before:  3 steps to come",
        "  step 1:  0 -> 1 [0 1 2]; ranks 2, 3 wait; 12 B so far",
        "  step 2:  1 -> 2 [0 1 2]; rank 3 waits; 24 B so far",
        "  step 3:  2 -> 3 [0 1 2]; 36 B so far",
    ]
    pictures = [steps.draw(k) for k in range(4)]
    assert len({p.pixels for p in pictures}) == 1, "the picture jumps from step to step"
    assert len({p.png() for p in pictures}) == 4, "a step shows nothing new"
    assert pictures[-1].png() == steps.still.png()
    with pytest.raises(IndexError, match="there is no step 4"):
        steps.draw(4)


def test_a_schedule_steps_to_its_end():
    steps = step(ring_all_reduce(4))
    assert len(steps.frames) == 7 and steps.frames[-1].says == "the end; 6 S so far"
    assert steps.frames[0].says == "step 1:  0 -> 1 +d, 1 -> 2 +a, 2 -> 3 +b, 3 -> 0 +c; 1 S so far"
    assert len({steps.draw(k).pixels for k in range(6)}) == 1


def test_what_is_played_is_what_was_recorded():
    played = step(run(chain, world_size=3)).recording()
    assert played["steps"] == [
        [[0, 1, "0 1 2", 0, True]],
        [[1, 2, "0 1 2", 0, True]],
    ]  # rank 1 passes on what is rank 0's
    assert (played["view"], played["ranks"], played["owners"], len(played["says"])) == ("lanes", [0, 1, 2], [0], 3)
    ring = ring_all_reduce(4)
    played = step(ring).recording()
    assert played["view"] == "grid" and played["start"] == [[[r]] * 4 for r in range(4)]
    assert played["steps"][0] == [[0, 1, [3], True], [1, 2, [0], True], [2, 3, [1], True], [3, 0, [2], True]]
    assert played["says"][0] == "before:  6 steps to come" and played["says"][6].endswith("6 S so far; the end")
    assert len(json.dumps(step(ring_all_reduce(8)).recording())) < 5000, "pages are to stay light"
    assert step(ring_all_reduce(32)).recording()["view"] == "lanes"


def test_the_widget_is_one_model_and_the_still_stands_in_for_it():
    steps = step(run(chain, world_size=3))
    assert steps.widget() is steps.widget() and steps.widget().data == steps.recording()
    widget, still = steps.outputs()
    assert set(widget) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert still["text/plain"] == repr(steps) and 'alt="Picture: ' in still["text/html"]


def test_a_run_without_messages_is_refused():
    with pytest.raises(ValueError, match="sent no messages of its own"):
        step(run(lambda: dist.barrier(), world_size=2))
