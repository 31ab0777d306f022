"""`explore()` on real ranks, its controls moved as a browser moves them."""

import io
import re

import ipywidgets
import pytest
import torch
from PIL import Image

from helpers import RankFailed, explore, run
from helpers.explorer import CALLS

VIEW = "application/vnd.jupyter.widget-view+json"


def values(explorer):
    return {name: control.value for name, control in explorer.controls.items()}


def shown(explorer):
    """The HTML below the controls."""
    return next(w.value for w in explorer.panel.box.children if isinstance(w, ipywidgets.HTML))


def test_every_control_makes_a_real_run_of_the_code_beside_it():
    explorer = explore("reduce", world_size=3, size=2)
    moves = dict(op="all_reduce", world_size=5, reduce_op="MAX", dtype="int64", size=4)
    for name, value in moves.items():
        before = explorer.run
        explorer.controls[name].value = value
        assert explorer.run is not before
    (call,) = explorer.run.calls
    e = call.events[4]
    assert (call.op, len(call.group), e.reduce_op, e.dtype, e.shape) == ("all_reduce", 5, "MAX", torch.int64, (4,))
    assert e.after.tolist() == [40, 41, 42, 43]
    assert explorer.run.table() in shown(explorer).replace("&gt;", ">")
    explorer.controls["op"].value = "broadcast"
    explorer.controls["root"].value = 3
    assert "src=3" in explorer.code and explorer.run.calls[0].events[0].after.tolist() == [30, 31, 32, 33]


@pytest.mark.parametrize("op", CALLS)
def test_each_collective_runs_and_its_code_can_be_copied(op, monkeypatch):
    explorer = explore(op, world_size=3)
    assert [c.op.removesuffix("_single") for c in explorer.run.calls] == [op]
    names = {"__name__": "__main__"}
    code = re.sub(r"\nrun\(", "\nagain = run(", explorer.code)
    exec(compile(code, "<copied>", "exec"), names)
    assert names["again"].table() == explorer.run.table()


def test_what_does_not_apply_is_disabled_and_says_why():
    explorer = explore("broadcast")
    off = lambda: {name for name, c in explorer.controls.items() if c.disabled}  # noqa: E731
    assert off() == {"reduce_op"} and "combines nothing" in explorer.controls["reduce_op"].tooltip
    explorer.controls["op"].value = "all_reduce"
    assert off() == {"root"} and "no root" in explorer.controls["root"].tooltip
    explorer.controls["op"].value = "barrier"
    assert off() == {"root", "reduce_op", "dtype", "size"}
    explorer.controls["op"].value = "reduce"
    assert off() == set() and "no root" not in explorer.controls["root"].tooltip


def test_the_root_stays_a_rank():
    explorer = explore("broadcast", world_size=6, root=5)
    explorer.controls["world_size"].value = 3
    assert values(explorer)["root"] == explorer.controls["root"].max == 2
    assert explorer.run.calls[0].events[0].src == 2


def test_a_refusal_of_gloo_is_shown_and_the_next_move_works():
    explorer = explore()
    explorer.controls["reduce_op"].value = "BAND"
    assert isinstance(explorer.run, RankFailed) and "non-integral dtype" in shown(explorer)
    explorer.controls["dtype"].value = "int32"
    assert explorer.run.calls[0].events[0].after.tolist() == [0, 1, 0]


def test_the_code_stays_what_ran():
    explorer = explore()
    explorer.panel.code.value = "something else"
    assert explorer.panel.code.value == explorer.code


def test_stands_in_a_file_as_picture_and_text():
    data, _ = explore(world_size=2)._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", VIEW}
    assert data["text/plain"] == repr(explore(world_size=2))
    assert "run(collective, world_size=2)" in data["text/plain"] and "10 11 12  ->  10 12 14" in data["text/plain"]


def test_the_fast_picture_shows_what_the_kept_one_shows():
    explorer = explore(world_size=2)
    with Image.open(io.BytesIO(explorer.png)) as fast, Image.open(io.BytesIO(explorer.run.draw().png())) as kept:
        assert fast.size == kept.size


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
