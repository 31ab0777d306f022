"""`explore()` on real ranks, its controls moved as a browser moves them."""

import re

import pytest
import torch

from collectives.log.collectives import COLLECTIVES
from helpers import RankFailed, explore, run
from tests.moving import Moved

VIEW = "application/vnd.jupyter.widget-view+json"


def test_every_control_makes_a_real_run_of_the_code_beside_it():
    explorer = explore("reduce", world_size=3, size=2)
    moved = Moved(explorer.widget())
    moves = dict(op="all_reduce", world_size="5", reduce_op="MAX", dtype="int64", size="4")
    for name, option in moves.items():
        before = explorer.run
        now = moved.move(**{name: option})
        assert explorer.run is not before and now["code"] == explorer.code
    (call,) = explorer.run.calls
    e = call.events[4]
    assert (call.op, len(call.group), e.reduce_op, e.dtype, e.shape) == ("all_reduce", 5, "MAX", torch.int64, (4,))
    assert e.after.tolist() == [40, 41, 42, 43]
    assert now["text"] == explorer.run.table() and now["picture"]["src"].startswith("data:image/svg+xml")
    moved.move(op="broadcast", root="3")
    assert "src=3" in explorer.code and explorer.run.calls[0].events[0].after.tolist() == [30, 31, 32, 33]


@pytest.mark.parametrize("op", COLLECTIVES)
def test_each_collective_runs_and_its_code_can_be_copied(op, monkeypatch):
    explorer = explore(op, world_size=3)
    assert [c.op.removesuffix("_single") for c in explorer.run.calls] == [op]
    names = {"__name__": "__main__"}
    code = re.sub(r"\nrun\(", "\nagain = run(", explorer.code)
    exec(compile(code, "<copied>", "exec"), names)
    assert names["again"].table() == explorer.run.table()


def test_what_does_not_apply_is_off_and_says_why():
    moved = Moved(explore("broadcast").widget())
    off = moved.move()["off"]
    assert set(off) == {"reduce_op"} and "combines nothing" in off["reduce_op"]
    off = moved.move(op="all_reduce")["off"]
    assert set(off) == {"root"} and "no root" in off["root"]
    assert set(moved.move(op="barrier")["off"]) == {"root", "reduce_op", "dtype", "size"}
    assert moved.move(op="reduce")["off"] == {}


def test_the_root_stays_a_rank():
    explorer = explore("broadcast", world_size=6, root=5)
    now = Moved(explorer.widget()).move(world_size="3")
    assert now["at"] == now["most"] == {"root": 2}
    assert explorer.run.calls[0].events[0].src == 2


def test_a_refusal_of_gloo_is_shown_and_the_next_move_works():
    explorer = explore()
    moved = Moved(explorer.widget())
    refused = moved.move(reduce_op="BAND")
    assert isinstance(explorer.run, RankFailed) and "non-integral dtype" in refused["text"] and refused["prose"]
    moved.move(dtype="int32")
    assert explorer.run.calls[0].events[0].after.tolist() == [0, 1, 0]


def test_has_its_words_beside_the_widget():
    widget, data = explore(world_size=2).outputs()
    assert set(widget) == {"text/plain", VIEW} and set(data) == {"text/plain", "text/html"}
    assert data["text/plain"] == repr(explore(world_size=2))
    assert "run(collective, world_size=2)" in data["text/plain"] and "10 11 12  ->  10 12 14" in data["text/plain"]


@pytest.mark.parametrize(
    "start",
    [dict(op="all_scatter"), dict(world_size=1), dict(root=4), dict(reduce_op="XOR"), dict(dtype="int4"), dict(size=5)],
)
def test_refuses_a_start_that_it_does_not_offer(start):
    with pytest.raises(ValueError, match=f"explore: {next(iter(start))} is one of"):
        explore(**start)


def test_a_picture_takes_no_other_way_than_run():
    explorer = explore("all_gather", world_size=2)

    def same():
        import torch.distributed as dist

        x = (torch.arange(3) + 10 * dist.get_rank()).to(torch.float32)
        dist.all_gather_single(torch.zeros(6), x)

    assert run(same, world_size=2).table() == explorer.run.table()
