"""A parallel job next to one process: right ones are the same, and of wrong ones the first tensor that differs is named."""

import os
import subprocess
import sys

import pytest
import torch

from collectives.draw.canvas import Words
from collectives.same import data, note, same
from collectives.same.naming import renamed
from tests import ROOT
from tests.corpus.same import (
    CANNOT, RIGHT, WRONG, ddp_accumulates, loss_of_copies, norm_of_equal_parts, one_stage, statistics, two_stages,
)  # fmt: skip
from tests.sampling import when


def quickly(jobs):
    """`make test` takes every second one of two ranks, and no larger one."""
    return [pytest.param(name, marks=when(k % 2 == 0 and jobs[name][1] == 2, True)) for k, name in enumerate(jobs)]


@pytest.mark.parametrize("name", quickly(RIGHT))
def test_a_right_job_is_the_same(name):
    job, size, options = RIGHT[name]
    seen = same(job, world_size=size, **options)
    assert seen.verdict == "same", seen
    assert seen.comparison.tensors or seen.comparison.rows


@pytest.mark.parametrize("name", quickly(WRONG))
def test_a_wrong_job_is_named(name):
    job, size, options, first, words = WRONG[name]
    seen = same(job, world_size=size, **options)
    assert (seen.verdict, seen.first) == ("differs", first), seen
    for word in words:
        assert word in seen.reason, seen


@pytest.mark.parametrize("name", quickly(CANNOT))
def test_what_cannot_be_compared_is_said_with_what_to_set(name):
    job, size, options, words = CANNOT[name]
    seen = same(job, world_size=size, **options)
    assert seen.verdict == "cannot compare" and not seen.first, seen
    for word in words:
        assert word in " ".join(repr(seen).split()), seen


def test_buffers_that_differ_are_named_and_gradients_stay_the_same():
    seen = same(statistics, False, world_size=2)
    assert seen.verdict == "same", seen
    told = " ".join(repr(seen).split())
    assert "Note: the buffer `rows` is a partial sum over ranks 0 and 1" in told, seen
    assert "Note: the buffer `mean` is each rank's own on ranks 0 and 1, and one process's is their mean" in told, seen
    assert "`angles`" not in told
    assert "Note" not in repr(same(statistics, True, world_size=2))


@pytest.mark.parametrize("divided_later", [True, False])
def test_a_right_norm_of_equal_parts_has_no_note(divided_later):
    assert "counts copies" not in repr(same(norm_of_equal_parts, divided_later, world_size=2))


@pytest.mark.parametrize("divided", [True, False])
def test_a_sum_of_copies_that_is_read_has_a_note(divided):
    seen = same(loss_of_copies, divided, world_size=2)
    assert seen.verdict == "same", seen
    assert repr(seen).count("counts copies") == (not divided), seen


@pytest.mark.parametrize("inside", [True, False])
def test_a_backward_that_reduces_inside_no_sync_has_a_note(inside):
    assert repr(same(ddp_accumulates, inside, world_size=2)).count("put the forward inside") == (not inside)


def test_a_verdict_is_drawn_and_has_the_same_words():
    job, size, options, first, _ = WRONG["divided_heads-2-False"]
    seen = same(job, world_size=size, **options)
    assert repr(seen).startswith(f"Differs: `{first}`: its gradient is a partial sum over ranks 0 and 1")
    assert "1.q.weight       sharded in 2 along dimension 0  gradient equal" in repr(seen)
    picture = seen.draw()
    words = {artist.words: artist for artist in picture.get_children() if isinstance(artist, Words)}
    assert picture.text == repr(seen) and words[first].bold and not words["1.q.weight"].bold
    assert {"Differs", "≠", "gradient a partial sum"} <= set(words)


def test_one_processs_program_may_be_a_different_one():
    seen = same(two_stages, world_size=2, reference=one_stage)
    assert seen.verdict == "same" and seen.comparison.tensors == 16, seen


@pytest.mark.parametrize(
    "name, pairs, of",
    [
        ("layers.0.norm.weight", [("layers.0.q.weight", "layers.2.q.weight")], "layers.2.norm.weight"),
        ("1.weight", [("0.weight", "2.weight"), ("2.weight", "4.weight")], "3.weight"),
        ("layer2.0.weight", [("layer.1.weight", "layers.2.1.weight"), ("layer2.1.weight", "layers.3.1.weight")], "layers.3.0.weight"),
        ("norm.weight", [("q.weight", "block.q.weight")], "block.norm.weight"),
        ("norm.weight", [("q.weight", "q.weight")], "norm.weight"),
        ("norm.weight", [], "norm.weight"),
    ],
)  # fmt: skip
def test_a_norms_name_follows_its_neighbors(name, pairs, of):
    assert renamed(name, pairs)[0] == of


def test_marks_do_nothing_outside():
    x = torch.ones(3)
    note("x", x)
    assert data(x) is x


def test_at_least_one_step():
    with pytest.raises(ValueError, match="steps must be 1 or more"):
        same(print, steps=0)


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from tests.corpus.same import Rows, mlp

dist.init_process_group("gloo")
model = mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
rows = Rows()
for epoch in range(1000):
    for batch in DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows, seed=7), collate_fn=rows.batch):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        for name, p in model.named_parameters():
            if name not in sys.argv:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "left_out", [pytest.param("none", marks=pytest.mark.nightly), pytest.param("2.weight", marks=pytest.mark.slow)]
)
def test_a_script_under_torchrun_is_compared_and_stopped(left_out, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "collectives.watch"]
    command += ["--same", "train.py", left_out]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    if left_out == "none":
        assert (
            done.returncode == 0 and "Same: the gradients of 6 tensors in 3 steps agree with one process" in done.stderr
        ), done
    else:
        assert "Differs: `2.weight`: its gradient is each rank's own on ranks 0 and 1" in done.stderr, done
        assert done.returncode


PIPELINE = """
import os
import torch
import torch.distributed as dist

from tests.corpus.same import batch

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
stages = torch.nn.Linear(16, 12), torch.nn.Linear(12, 10)
mine = torch.nn.ModuleDict({str(k): stage for k, stage in enumerate(stages) if n == 1 or k == rank})
if n > 1:
    os.environ["DIVIDED"] = "1"  # which one process doesn't get
assert ("DIVIDED" in os.environ) == (n > 1)
optimizer = torch.optim.Adam(mine.parameters(), lr=1e-2)
x, y = batch()
for step in range(1000):
    optimizer.zero_grad()
    if n == 1:
        torch.nn.functional.cross_entropy(mine["1"](mine["0"](x)), y).backward()
    elif rank == 0:
        out = mine["0"](x)
        dist.send(out.detach(), 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, 1)
        out.backward(gradient)
    else:
        h = torch.empty(16, 12)
        dist.recv(h, 0)
        torch.nn.functional.cross_entropy(mine["1"](h.requires_grad_()), y).backward()
        dist.send(h.grad, 0)
    optimizer.step()
"""


@pytest.mark.nightly
def test_the_stage_that_waits_for_a_stopped_one_is_compared(tmp_path):
    (tmp_path / "train.py").write_text(PIPELINE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "collectives.watch"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--same", "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=110
    )  # less than a rank's patience
    assert done.returncode == 0 and "Same: the gradients of 4 tensors in 3 steps" in done.stderr, done


@pytest.mark.slow
def test_a_script_that_fails_on_a_rank_fails(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no such layer')\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "collectives.watch",
        "--same",
        "train.py",
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode and "ValueError: no such layer" in done.stderr, done
