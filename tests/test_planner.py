"""The planner: against papers' formulas, counted runs, schedules that are simulated, and published training runs."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.distributed as dist

from collectives.algorithms.pipeline import interleaved, one_f_one_b
from collectives.cost.planner import (
    ALLOCATED,
    FLOAT32,
    GOAL,
    RUNS,
    SHAPES,
    Division,
    Overlap,
    Shape,
    check,
    cluster,
    memory,
    plan,
    shape,
    step,
)
from collectives.draw.canvas import PALETTE
from collectives.machines import gpu as gpu_of
from collectives.machines import rails
from collectives.train import nbytes, watch
from helpers import run
from helpers.model import batch, decoder, loss_of
from helpers.views.planner import planner
from tests import reading
from tests.moving import Moved

GPT = [s for s in SHAPES.values() if s.name.startswith("GPT")]


# --- the model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    {
        "MPT 7B": 6_658_859_008,  # llm-foundry's README counts these
        "MPT 13B": 12_853_954_560,
        "MPT 30B": 29_975_214_080,
        "MPT 70B": 64_862_437_376,
        "Llama 2 70B": 68_976_648_192,  # as their config.json makes them
        "Llama 3 8B": 8_030_261_248,
        "Llama 3 70B": 70_553_706_496,
        "Llama 3 405B": 405_853_388_800,
    }.items(),
)
def test_parameters_are_exact(name, parameters):
    assert shape(name).parameters == parameters


def test_parameters_are_those_of_megatrons_table():
    billions = [1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0]  # Narayanan et al. 2021, table 1
    table = [r.model.parameters / 1e9 for r in RUNS[:10]]
    assert [round(p, 1) for p in table] == billions


def test_a_models_own_parameters_are_counted():
    s = Shape("decoder", 2, 64, 8, 128, 64, kv_heads=2, biases=False, tied=False)
    assert s.parameters == sum(p.numel() for p in decoder(kv_heads=2).parameters())


@pytest.mark.parametrize("s", GPT, ids=lambda s: s.name)
def test_flops_are_the_papers(s):
    layers, h, length, v = s.layers, s.hidden, s.length, s.vocabulary
    whole = 96 * length * layers * h**2 * (1 + length / (6 * h) + v / (16 * layers * h))  # Narayanan et al., equation 3
    assert s.recomputed_flops() * length == pytest.approx(whole, rel=1e-12)
    model = 72 * length * layers * h**2 * (1 + length / (6 * h) + v / (12 * layers * h))  # Korthikanti et al., A
    assert s.flops() * length == pytest.approx(model, rel=1e-12)


def test_flops_are_those_that_nvidia_counts():
    for name, flops in (("Llama 3 8B", 4.74e14), ("Nemotron-4 15B", 3.85e14), ("Nemotron-4 340B", 8.62124e15)):
        assert shape(name).flops() * shape(name).length == pytest.approx(flops, rel=1e-3)


# --- memory -------------------------------------------------------------------------------


def test_activations_are_the_papers():
    """Korthikanti et al. 2022, table 2: one layer, a tensor-parallel group of eight."""
    s = shape("GPT 175B").with_(layers=1)
    h, a, length, t, b = s.hidden, s.heads, s.length, 8, 2
    sbh = length * b * h
    logits = 4 * length * b * s.vocabulary / t

    def kept(sequence, recompute, flash=False):
        division = Division(1, t, sequence=sequence, microbatch=b, recompute=recompute)
        return memory(s, division, b, flash=flash).activations - logits

    assert kept(False, "none") == sbh * (10 + 24 / t + 5 * a * length / (h * t))
    assert kept(True, "none") == sbh / t * (34 + 5 * a * length / h)
    assert kept(True, "selective") == kept(True, "none", flash=True) == 34 * sbh / t
    assert kept(False, "full") == 2 * sbh + kept(False, "none")  # its input, and the layer that is computed again


def test_a_pipeline_keeps_what_its_schedule_keeps():
    s = shape("GPT 1T").with_(layers=16)
    one = memory(s, Division(pipeline=16, recompute="full"), 64).activations
    for ranks, chunks, made in ((4, 1, one_f_one_b(4, 16)), (4, 2, interleaved(4, 16, 2))):
        division = Division(pipeline=ranks, chunks=chunks, recompute="full")
        held = memory(s, division, 16).activations
        layer = 2 * s.length * s.hidden
        extra = one - 16 * layer  # of the layer that is computed again
        assert (held - extra) / (layer * s.layers / ranks) == pytest.approx(max(made.count().peaks))
        counted = made.count()
        priced = step(s, division, 16, cluster("A100", ranks))
        waited = priced.seconds["bubble"] / (priced.seconds["compute"] + priced.seconds["tensor"])
        assert waited == pytest.approx(counted.of_work) == pytest.approx((ranks - 1) / (chunks * 16))


@pytest.mark.parametrize("log", ALLOCATED, ids=lambda log: log.what)
def test_memory_is_what_nvidias_logs_say(log):
    held = log.predict()
    assert held.states == pytest.approx(log.between, rel=0.01)
    assert held.total == pytest.approx(log.most, rel=GOAL)


def by_hand(model, stage):
    """One step of Adam on a model whose state, and gradients from stage 2 on, the ranks share out."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parameters = list(model.parameters())
    tokens, targets = batch(0)
    loss_of(model(tokens.chunk(n)[rank]), targets.chunk(n)[rank]).backward()
    gradient = torch.cat([p.grad.flatten() for p in parameters])
    model.zero_grad()
    if stage >= 2:
        share = torch.empty(gradient.numel() // n)
        dist.reduce_scatter_single(share, gradient)
        gradient = share
    else:
        dist.all_reduce(gradient)
    states = [torch.zeros(gradient.numel() // (n if stage == 1 else 1)) for _ in range(2)]
    return nbytes(parameters), nbytes(gradient), nbytes(states)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_memory_is_what_ranks_hold(stage):
    s, n = Shape("decoder", 2, 64, 8, 128, 64, biases=False, tied=False), 4
    held = memory(s, Division(data=n, shard=stage), 2 * n, FLOAT32)
    assert (
        run(by_hand, decoder(), stage, world_size=n).results == [(held.parameters, held.gradients, held.optimizer)] * n
    )


def fully_sharded(model):
    from torch.distributed.fsdp import fully_shard

    rank, n = dist.get_rank(), dist.get_world_size()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    tokens, targets = batch(0)
    loss_of(model(tokens.chunk(n)[rank]), targets.chunk(n)[rank]).backward()
    optimizer.step()
    return nbytes(model), nbytes([p.grad for p in model.parameters()]), nbytes(optimizer) - 4 * len(optimizer.state)


def test_memory_and_bytes_are_those_of_fully_shard():
    s, n, model = Shape("decoder", 2, 64, 8, 128, 64, biases=False, tied=False), 4, decoder()
    priced = step(s, Division(data=n, shard=3, microbatch=2), 2 * n, cluster("H100", n), bytes_=FLOAT32)
    seen = watch(fully_sharded, model, world_size=n)
    held = priced.memory
    buffers = sum(b.nbytes for b in model.buffers())  # tables of angles, which are no parameters
    assert seen.results == [(held.parameters + buffers, held.gradients, held.optimizer)] * n
    assert seen.calls().total_sent == [priced.sent["data"]] * n


# --- seconds ------------------------------------------------------------------------------


def test_seconds_are_made_of_their_parts():
    s, machine = shape("Llama 3 70B"), cluster("H100", 64)
    here = step(s, Division(2, 4, 4, 2, chunks=5), 128, machine)
    assert here.time == sum(here.seconds.values()) and here.tokens * here.time * 64 == 128 * s.length
    shared = step(s, Division(2, 4, 4, 2, chunks=5), 128, machine, overlap=Overlap(tensor=1))
    assert shared.seconds["tensor"] == 0 and shared.time < here.time
    waiting = step(s, Division(2, 4, 4, 2, chunks=5), 128, machine, overlap=Overlap(0, 0, 0, 0))
    assert waiting.seconds["context"] > 0 and waiting.seconds["pipeline"] > 0 and waiting.time > here.time
    assert waiting.sent == here.sent
    again = step(s, Division(2, 4, 4, 2, chunks=5, recompute="full"), 128, machine)
    attention = 1.25 < again.seconds["compute"] / here.seconds["compute"] <= 4 / 3
    assert attention and again.memory.activations < here.memory.activations / 5


def test_the_published_runs_are_predicted():
    table = check()
    assert len(table) == len(RUNS) == 89 and sum(not row.counts for row in table) == 8
    assert table.median < GOAL
    assert all(table.of(gpu).median < GOAL for gpu in ("A100", "H100"))
    text = repr(table)
    assert all(str(k) in text for k in ("12,288", "16,384", "GPT 1T"))
    assert text.count("\n") > len(table)


def test_what_is_published_is_consistent():
    for row in RUNS:
        machine = row.machine.gpus
        assert row.division.gpus == machine.node * machine.nodes, row
    llama = [r for r in RUNS if "2407.21783" in r.source]
    assert {r.batch * r.model.length for r in llama} == {2**24}  # "16M" tokens
    megascale = {r.division.gpus: r for r in RUNS if r.what == "175B, MegaScale"}
    for gpus, mfu in ((256, 0.653), (12288, 0.552)):
        r = megascale[gpus]
        counted = r.model.flops() * r.model.length * r.batch / (r.seconds * gpus) / 312e12
        assert counted == pytest.approx(mfu, abs=0.012)
    selective = [r for r in RUNS if "2205.05198" in r.source and r.division.recompute == "selective"]
    for r, mfu in zip(selective, (0.415, 0.514, 0.560, 0.563)):  # NVIDIA/Megatron-LM, README.md
        counted = r.model.flops() * r.model.length * r.batch / (r.seconds * r.division.gpus) / 312e12
        assert counted == pytest.approx(mfu, abs=0.002), r.what


def test_the_fitted_figures_are_the_best(monkeypatch):
    from importlib import import_module

    module = import_module("collectives.cost.planner.step")
    fitted = [r for r in RUNS if r.role]

    def error(gpu, products, passes=module.PASSES):
        monkeypatch.setattr(module, "PASSES", passes)
        return sum(math.log(r.predict(products).time / r.seconds) ** 2 for r in fitted if r.machine.gpus.name == gpu)

    a100, h100 = (gpu_of(name).value("products", "this test") for name in ("A100", "H100"))
    passes = module.PASSES
    around = [error("A100", a100 + x, passes + y) for x in (-0.01, 0, 0.01) for y in (-0.25, 0, 0.25)]
    assert min(around) == around[4]
    around = [error("H100", h100 + x, passes) for x in (-0.01, 0, 0.01)]
    assert min(around) == around[1]


# --- what cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("division", "batch", "reason"),
    [
        (Division(tensor=3), 8, "tensor 3 must divide the 64 heads"),
        (Division(tensor=8, data=3), 8, "data x microbatch, 3, must divide the batch of 8"),
        (Division(pipeline=3), 8, "pipeline x chunks, 3, must divide the 80 layers"),
        (Division(pipeline=4, chunks=5), 6, "pipeline 4 must divide the 6 microbatches"),
        (Division(chunks=2), 8, "chunks are stages of a pipeline rank"),
        (Division(context=3), 8, "2 x context, 6, must divide the sequence of 8192"),
        (Division(shard=4), 8, "a stage of ZeRO, 0 to 3, not 4"),
        (Division(recompute="half"), 8, "recompute is one of none, selective, full"),
        (Division(data=0), 8, "data is 1 or more, not 0"),
        (Division(tensor=0), 8, "tensor is 1 or more, not 0"),
        (Division(data=3, microbatch=2), 8, "must divide the batch"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_reason(division, batch, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        memory(shape("Llama 3 70B"), division, batch)


def test_clusters_that_do_not_fit_are_refused():
    s = shape("Llama 3 8B")
    with pytest.raises(ValueError, match="is 4, and 8 x H100 has 8 GPUs: the product must be"):
        step(s, Division(data=4), 8, cluster("H100", 8))
    with pytest.raises(ValueError, match="8 must divide 12"):
        cluster("H100", 12)
    with pytest.raises(ValueError, match="no shape of 'GPT-5'"):
        shape("GPT-5")
    with pytest.raises(ValueError, match="4 heads must divide the hidden size, 6"):
        Shape("odd", 1, 6, 4, 10, 8)
    with pytest.raises(ValueError, match="not experts"):
        plan(s, cluster("H100", 8), 8, without=("experts",))
    from collectives.cost import loopback
    from collectives.cost.fit import Fit

    line = Fit(1e-5, 1e9, 0.0)
    with pytest.raises(ValueError, match="take cluster"):
        plan(s, loopback(line, line, 8), 8)


# --- the plan and the player --------------------------------------------------------------


def test_a_plan_is_all_that_fits_the_fastest_first():
    ways = plan(shape("Llama 3 405B"), rails(1024), 2048, without=("context",))
    times = [float(f"{s.time:.3g}") for s in ways]
    assert all(s.fits for s in ways) and times == sorted(times)
    first = ways[0].division
    assert (first.data, first.tensor, first.pipeline) == (64, 8, 16) and first.recompute == "none"  # as Llama 3's
    assert len({s.division.kinds for s in ways.mixtures}) == len(ways.mixtures)
    assert "64      8    16 x 8" in repr(ways) and ways.draw().pixels[0] > 800


def test_where_nothing_fits_the_plan_says_so():
    ways = plan(shape("GPT 1T"), cluster("A100", 64), 512)
    assert not ways and "none of" in repr(ways) and "needs least" in repr(ways)


@pytest.mark.parametrize("tensor, says", [(8, []), (1, ["does not fit"])])
def test_what_does_not_fit_is_said_in_words_and_in_no_ranks_colour(tensor, says):
    one = step(shape("Llama 3 70B"), Division(data=64 // tensor, tensor=tensor, pipeline=4), 512, cluster("A100", 256))
    shapes = reading.drawn(one.draw())
    assert one.fits != bool(says) and [word.text for word in shapes.words if "fit" in word.text] == says
    tints = {word.ink for word in shapes.words} | {stroke.tint for stroke in shapes.strokes}
    assert not {box.fill for box in shapes.boxes} & {*PALETTE} and not tints & {*PALETTE}


def test_the_player_follows_its_controls():
    played = planner(shape("Llama 3 70B"), Division(16, 8, 4, chunks=5), 512)
    before = played.step
    moved = Moved(played.widget())
    assert set(moved.controls) == {
        "data",
        "tensor",
        "pipeline",
        "context",
        "chunks",
        "microbatch",
        "shard",
        "recompute",
    }
    now = moved.move(recompute="recompute full")
    assert played.step.division.recompute == "full" and played.step.time > before.time
    assert played.step.memory.activations < before.memory.activations
    assert "512 GPUs" in now["words"] and "before: 512 GPUs" in now["words"]
    now = moved.move(pipeline="18")
    assert "must divide the 80 layers" in now["words"] and played.step.division.pipeline == 4
    assert "bubble" in moved.move(pipeline="4")["words"]
    picture, words = played.unattended()
    assert words == repr(played) and "recompute full" in words and picture.pixels[0] > 800
