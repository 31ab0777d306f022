"""The model of chapters 11 to 17, and what is seen of ranks that train it: bytes held, slices, calls by phase."""

import copy
import io
import subprocess
import sys
from fractions import Fraction

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex
from PIL import Image

from collectives.draw.canvas import WIDTH, colour, pale
from collectives.format import span
from collectives.train import Activations, Calls, Film, Owns, causal_work, compare, nbytes, overlap, watch
from collectives.train.layout import Layout, _by_layer
from collectives.train.observer import FilmFrame, Piece
from collectives.train.overlap import BARE, HIDDEN_FILL
from collectives.train.placement import cut_words
from collectives.train.watched import locate
from helpers import run
from helpers.model import adam, batch, book, decode, decoder, difference, initialise, loss_of, one_process, sgd, write
from tests.kernels import kernels

# --- ways of training, each as a chapter would write it ----------------------------------


def data_parallel(model, batches, lr=0.1):
    rank, n = dist.get_rank(), dist.get_world_size()
    momenta = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    losses, gradients = [], []
    for tokens, targets in batches:
        loss = loss_of(model(tokens.tensor_split(n)[rank]), targets.tensor_split(n)[rank])
        model.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
            sgd(p, p.grad, momenta[name], lr=lr)
        dist.all_reduce(loss.detach())
        losses.append(loss.item() / n)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    return dict(losses=losses, steps=gradients, optimizer=momenta)


def sharded(model, batches):
    from torch.distributed.fsdp import fully_shard

    rank, n = dist.get_rank(), dist.get_world_size()
    mesh = torch.distributed.init_device_mesh("cpu", (n,))
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for tokens, targets in batches:
        loss = loss_of(model(tokens.chunk(n)[rank]), targets.chunk(n)[rank])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def tensor_parallel(model, batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    for block in (model.block0, model.block1):
        for part, columns, row in ((block.attention, "qkv", "o"), (block.mlp, ["up"], "down")):
            for linear, dim in [(getattr(part, name), 0) for name in columns] + [(getattr(part, row), 1)]:
                linear.weight = torch.nn.Parameter(linear.weight.detach().chunk(n, dim)[rank].clone())
            part.register_forward_pre_hook(lambda module, args: Copy.apply(*args))
            part.register_forward_hook(lambda module, args, out: Sum.apply(out))
    losses = []
    for tokens, targets in batches:
        loss = loss_of(model(tokens), targets)
        loss.backward()
        losses.append(loss.item())
    return losses


def pipeline(batches, microbatches=4):
    """1F1B, two stages."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = decoder(layers=2)
    stage = model[2 * rank : 2 * rank + 2]
    del model
    kept, sent, losses = [], [], []
    for tokens, targets in batches:
        tokens, targets = tokens.chunk(microbatches), targets.chunk(microbatches)

        def forward(k):
            x = tokens[k] if rank == 0 else torch.empty(*tokens[k].shape, 64)
            if rank > 0:
                dist.recv(x, src=rank - 1)
                x.requires_grad_()
            y = stage(x)
            if rank < last:
                sent.append(dist.isend(y.detach(), dst=rank + 1))
            else:
                y = loss_of(y, targets[k]) / microbatches
                losses.append(y.item())
            kept.append((x, y))

        def backward():
            x, y = kept.pop(0)
            gradient = None
            if rank < last:
                gradient = torch.empty_like(y)
                dist.recv(gradient, src=rank + 1)
            y.backward(gradient)
            if rank > 0:
                sent.append(dist.isend(x.grad, dst=rank - 1))

        ahead = last - rank
        for k in range(ahead):
            forward(k)
        for k in range(ahead, microbatches):
            forward(k)
            backward()
        for _ in range(ahead):
            backward()
        for work in sent:
            work.wait()
    return sum(losses)


MODEL, BYTES = decoder(), nbytes(decoder().parameters())
BATCHES = [batch(k) for k in range(2)]


# --- the model and its book ---------------------------------------------------------------


def test_the_loss_goes_down():
    losses = one_process(MODEL, [batch(k) for k in range(30)], adam, lr=0.01).losses
    assert losses[0] > 5 and max(losses[-3:]) < 3.2


def test_parameters_depend_on_seed_and_name_not_on_what_else_there_is():
    whole, stage = decoder(layers=3), decoder(layers=3)[2:4]
    for p in stage.parameters():
        p.data.fill_(9)
    initialise(stage)
    assert list(stage.state_dict()) == [name for name in whole.state_dict() if name.startswith(("block1", "block2"))]
    assert (
        difference(dict(stage.named_parameters()), {k: dict(whole.named_parameters())[k] for k in stage.state_dict()})
        == 0
    )
    assert difference(dict(whole.named_parameters()), dict(decoder(layers=3, seed=1).named_parameters())) > 0.1
    assert not torch.equal(whole.block0.mlp.up.weight, whole.block1.mlp.up.weight)


def test_a_batch_depends_on_its_step_alone():
    tokens, targets = batch(3)
    assert torch.equal(tokens[:, 1:], targets[:, :-1]) and tokens.shape == targets.shape == (16, 64)
    assert torch.equal(batch(3)[0], tokens) and not torch.equal(batch(4)[0], tokens)
    assert decode(tokens[0]) in decode(book())


def test_variants_of_the_model():
    tokens = batch(0)[0]
    model = decoder(layers=3, kv_heads=2, bias=True, tied=True, dropout=0.5)
    assert model.block0.attention.k.weight.shape == (16, 64) and model.head.out.weight is model.embed.weight
    assert model(tokens).shape == (16, 64, 128)
    assert not torch.equal(model(tokens), model(tokens)) and torch.equal(model.eval()(tokens), model(tokens))
    assert write(MODEL, "Alice", count=5) == write(MODEL, "Alice", count=5)
    with pytest.raises(ValueError, match="8 heads cannot share 3"):
        decoder(kv_heads=3)
    with pytest.raises(ValueError, match="even whole number"):
        decoder(width=24)


def test_the_past_alone_decides():
    tokens = batch(0)[0].clone()
    before = MODEL(tokens)
    tokens[:, 40:] = 65
    assert torch.equal(MODEL(tokens)[:, :40], before[:, :40])


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (sgd, lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9)),
        (adam, lambda ps: torch.optim.Adam(ps, lr=0.003)),
    ],
)
def test_optimizers_are_torchs_bit_for_bit(ours, theirs):
    model, want = copy.deepcopy(MODEL), one_process(MODEL, BATCHES, ours)
    optimizer, threads = theirs(model.parameters()), torch.get_num_threads()
    torch.set_num_threads(1)  # as in one_process: with more, some processors add in another order
    try:
        for tokens, targets in BATCHES:
            optimizer.zero_grad()
            loss_of(model(tokens), targets).backward()
            optimizer.step()
    finally:
        torch.set_num_threads(threads)
    assert difference(dict(model.named_parameters()), want.parameters) == 0


def test_difference_refuses_what_cannot_be_compared():
    a = {"w": torch.zeros(2), "v": [1.0, 2.0]}
    assert difference(a, {"w": torch.tensor([0.0, 0.5]), "v": [1.0, 2.0]}) == 0.5
    with pytest.raises(ValueError, match="only one of the two has v"):
        difference({"w": a["w"]}, a)
    with pytest.raises(ValueError, match=r"\['w'\]: shape \[3\] against \[2\]"):
        difference({**a, "w": torch.zeros(3)}, a)
    assert difference([float("nan")], [0.0]) != difference([0.0], [0.0])


# --- memory -------------------------------------------------------------------------------


def test_bytes_are_those_of_storages():
    x = torch.zeros(100)
    assert nbytes(x[:10], [x[5:], {"a": x}]) == 400  # one storage, seen four times
    assert nbytes(torch.empty(100, device="meta")) == 0
    assert nbytes(MODEL) == BYTES + 2 * 64 * 4 * 4  # and the two tables of angles
    assert BYTES == 460_032


def test_activations_are_counted_as_they_come_and_go():
    linear, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    with Activations() as kept:
        loss = torch.tanh(linear(x)).sum()
        assert kept.nbytes == 2 * 4 * 8 * 4  # x and tanh's result; not the weight
        loss.backward()
        assert kept.nbytes == 0 and kept.peak == 256


def test_a_checkpoint_keeps_the_inputs_of_layers():
    from torch.utils.checkpoint import checkpoint

    tokens = batch(0)[0]
    with Activations(MODEL.parameters()) as kept:
        x = MODEL.embed(tokens)
        for block in (MODEL.block0, MODEL.block1):
            x = checkpoint(block, x, use_reentrant=False)
        assert kept.nbytes == nbytes(tokens) + 2 * 16 * 64 * 64 * 4
        del x
    assert kept.nbytes == 0


# --- watching -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen():
    """One watched run of each kind."""
    return {
        "data": watch(data_parallel, MODEL, BATCHES, world_size=3),
        "sharded": watch(sharded, MODEL, BATCHES, world_size=2),
        "tensor": watch(tensor_parallel, MODEL, BATCHES[:1], world_size=4),
        "pipeline": watch(pipeline, BATCHES[:1], world_size=2),
    }


def test_watching_changes_nothing(seen):
    plain = run(tensor_parallel, MODEL, BATCHES[:1], world_size=4)
    assert plain.results == seen["tensor"].results
    ops = [[(e.op, e.nbytes, e.within, e.line.number) for e in events] for events in plain.events]
    assert ops == [[(e.op, e.nbytes, e.within, e.line.number) for e in events] for events in seen["tensor"].events]
    assert seen["tensor"].run.name == "tensor_parallel"


def test_ranks_together_train_as_one_process(seen):
    alone = one_process(MODEL, [(x[:15], y[:15]) for x, y in BATCHES])  # three ranks share 15 rows evenly
    even = run(data_parallel, MODEL, [(x[:15], y[:15]) for x, y in BATCHES], world_size=3)
    for got in even.results:
        assert difference(got["losses"], alone.losses) < 1e-5
        assert difference(got["steps"], alone.gradients) < 1e-6
    alone = one_process(MODEL, BATCHES[:1])
    assert difference(seen["tensor"].results, [alone.losses] * 4) < 1e-5
    assert difference(seen["pipeline"].results[1], alone.losses[0]) < 1e-5


def test_every_call_has_its_phase_and_layer(seen):
    for watched in seen.values():
        assert [len(marks) for marks in watched.marks] == [len(events) for events in watched.events]
    phases = {name: [mark.phase for mark in watched.marks[0]] for name, watched in seen.items()}
    assert phases["data"] == ["update"] * 20 * 2
    assert phases["tensor"] == ["forward"] * 4 + ["backward"] * 4
    assert [mark.where for mark in seen["tensor"].marks[0]][::2] == [
        "block0",
        "block1",
        "block1.mlp.up",
        "block0.mlp.up",
    ]
    layers = [mark.where for mark in seen["sharded"].marks[0] if mark.step == 1]
    assert layers[:4] == ["embed", "block0", "block1", "head"]
    assert layers[4:7] == ["head", "block1", "head"]  # block1 is gathered before head's gradient has been reduced
    assert [mark.step for mark in seen["sharded"].marks[0]] == [0] * 12 + [1] * 12


def test_a_receive_belongs_to_what_it_is_for(seen):
    marks = [(e.op, mark.phase) for e, mark in zip(seen["pipeline"].events[1], seen["pipeline"].marks[1])]
    assert marks == [("recv", "forward"), ("send", "backward")] * 4
    assert {(e.op, m.phase) for e, m in zip(seen["pipeline"].events[0], seen["pipeline"].marks[0])} == {
        ("send", "forward"), ("recv", "backward"),
    }  # fmt: skip


def test_bytes_sent_are_the_formulas_exactly(seen):
    calls = seen["data"].calls(step=0)
    assert calls.sent(phase="update", op="all_reduce SUM") == Fraction(4, 3) * (BYTES + 4)
    calls = seen["sharded"].calls(step=1)
    assert calls.sent(phase="forward") == BYTES // 2 and calls.total_sent == [3 * BYTES // 2] * 2
    assert calls.by("phase") == {("forward",): ([4] * 2, [BYTES // 2] * 2), ("backward",): ([8] * 2, [BYTES] * 2)}
    assert seen["tensor"].calls().total_sent == [8 * 2 * 3 * 16 * 64 * 64] * 4
    assert seen["pipeline"].calls().total_sent == [16 * 64 * 64 * 4] * 2


def test_layers_alike_share_a_row(seen):
    rows = {(row.phase, row.op, tuple(row.layers)): row for row in seen["sharded"].calls(step=0).rows}
    row = rows["forward", "all_gather_single", ("block0", "block1")]
    assert row.calls == [2, 2] and row.nbytes == (98_560, 98_560) and row.group == "2 ranks"
    text = repr(seen["sharded"].calls(step=0))
    assert "backward  all_gather_single" in text and "block0, block1" in text and text.endswith("690,048")


def test_two_runs_side_by_side(seen):
    first, second = seen["sharded"].calls(step=0), seen["sharded"].calls(step=1)
    assert compare(first, second).same and "same" in repr(compare(first, second))
    other = compare(seen["data"].calls(step=0), seen["data"].calls())
    assert not other.same
    mixed = repr(compare(seen["tensor"].calls(), first, ("by hand", "DDP")))
    assert "only by hand" in mixed and "only DDP" in mixed
    both = compare(first, seen["sharded"].calls(), by=("op", "group"))
    assert [key for key, *_ in both.lines] == [
        ("all_gather_single", "2 ranks"),
        ("reduce_scatter_single AVG", "2 ranks"),
    ]
    assert both.draw().text == repr(both) and both.lines[0][1:3] == ([8, 8], [BYTES, BYTES])


def test_what_a_rank_holds_at_most(seen):
    block, head = nbytes(MODEL.block0.parameters()), nbytes(MODEL.head.parameters())
    for peaks in seen["data"].peaks:
        assert (peaks["parameters"], peaks["gradients"], peaks["optimizer"]) == (BYTES, BYTES, BYTES)
    for peaks in seen["sharded"].peaks:
        assert peaks["parameters"] == BYTES // 2 + block  # the shards and a whole layer
        assert peaks["gradients"] == BYTES // 2 and peaks["optimizer"] == BYTES + 4 * 19  # and 19 steps
    assert [peaks["gradients"] for peaks in seen["pipeline"].peaks] == [BYTES - block - head, block + head]
    with Activations(MODEL.parameters()) as kept:  # of one microbatch
        y = MODEL[:2](BATCHES[0][0][:4])
    # 1F1B: two are under way on the first stage; the tokens of all lie in one storage.
    assert seen["pipeline"].peaks[0]["activations"] == 2 * kept.nbytes - nbytes(BATCHES[0][0])
    del y


def test_film_of_sharded_layers(seen):
    for frames in seen["sharded"].frames:
        forward = [frame for frame in frames if frame.step == 0 and frame.phase in ("forward", "backward")]
        assert [frame.layer for frame in forward] == [
            "embed",
            "block0",
            "block1",
            "head",
            "head",
            "block1",
            "block0",
            "embed",
        ]
        for frame in forward:
            assert frame.whole == {frame.layer: seen["sharded"].layers[frame.layer]}
            assert sum(frame.sharded.values()) == BYTES // 2
        kept = [sum(frame.activations.values()) for frame in forward]
        assert kept == kept[::-1] and kept[0] < kept[1] < kept[2] < kept[3]
    text = repr(seen["sharded"].film())
    assert text.count("\n") == 10 and "ranks 0, 1: bytes held" in text and "295,680*" in text


def test_pieces_are_found_where_they_lie(seen):
    def at(watched, rank, name, kind="parameters"):
        return next((p.start, p.shape) for p in watched.pieces[rank] if (p.name, p.kind) == (name, kind))

    assert at(seen["tensor"], 2, "block1.mlp.up.weight") == ((128, 0), (64, 64))
    assert at(seen["tensor"], 2, "block1.mlp.down.weight") == ((0, 128), (64, 64))
    assert at(seen["tensor"], 2, "block1.mlp.down.weight", "gradients") == ((0, 128), (64, 64))
    assert at(seen["sharded"], 1, "embed.weight", "optimizer") == ((64, 0), (64, 64))
    assert at(seen["pipeline"], 1, "head.out.weight") == ((0, 0), (128, 64))
    assert not any(p.name.startswith("head") for p in seen["pipeline"].pieces[0])
    text = repr(seen["tensor"].owns("parameters"))
    assert "columns in 4" in text and "rows in 4" in text and "whole on each" in text


def test_values_tell_where_a_piece_lies_whatever_the_order_of_ranks():
    def backwards(linear):
        mine = dist.get_world_size() - 1 - dist.get_rank()
        linear.weight = torch.nn.Parameter(linear.weight.detach().chunk(2)[mine].clone())
        linear(torch.ones(3))

    watched = watch(backwards, torch.nn.Linear(3, 4, bias=False), world_size=2)
    assert [p.start for mine in watched.pieces for p in mine] == [(2, 0), (0, 0)]
    assert "rows in 2: ranks 1, 0" in repr(watched.owns())


def test_pieces_that_a_function_returns():
    def flat_shards():
        rank = dist.get_rank()
        return dict(
            parameters={"flat": torch.ones(3)}, optimizer={"flat": [torch.ones(3)] * 2}, shapes={"flat": (6,)}, r=rank
        )

    watched = watch(flat_shards, world_size=2)
    assert [p.start for mine in watched.pieces for p in mine] == [(0,)] * 3 + [(3,)] * 3
    assert watched.peaks[0]["optimizer"] == 12  # one tensor, listed twice
    assert "elements in 2" in repr(watched.owns()) and watched.results[1]["r"] == 1


def test_a_layer_whose_memory_is_given_back_counts_while_it_is_whole():
    def by_hand(model):  # its layer as a view of a flat tensor that is gathered for its forward only
        layer, rank, n = model[0], dist.get_rank(), dist.get_world_size()
        flat = torch.zeros(layer.weight.numel())
        layer.weight.data = flat.view_as(layer.weight)
        shard = flat.chunk(n)[rank].clone()
        flat.untyped_storage().resize_(0)

        def gather(*_):
            flat.untyped_storage().resize_(flat.nbytes)
            dist.all_gather_single(flat, shard)

        layer.register_forward_pre_hook(gather)
        model(torch.ones(8))
        flat.untyped_storage().resize_(0)
        return dict(parameters={"flat": shard}, shapes={"flat": (len(flat),)})

    watched = watch(by_hand, torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False)), world_size=2)
    assert watched.peaks[0]["parameters"] == 64 + 128  # its own half beside the whole
    assert [(frame.held("0"), frame.shards) for frame in watched.frames[0]] == [(128, 64)]
    assert {(p.name, p.start) for mine in watched.pieces for p in mine} == {("flat", (0,)), ("flat", (16,))}


def test_whole_gradients_that_fully_shard_keeps_between_microbatches_count():
    def accumulate(model, parts):
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        for part in model:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.set_requires_gradient_sync(False)
        for tokens, targets in parts:
            loss_of(model(tokens), targets).backward()

    model = decoder()
    watched = watch(accumulate, model, [batch(0), batch(1)], world_size=2)
    assert watched.peaks[0]["gradients"] == nbytes(model.parameters())


def test_a_sharded_decoder_computes_in_bfloat16():
    def mixed(model):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)),
                    mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))  # fmt: skip
        return model(batch(0)[0]).dtype

    assert run(mixed, decoder(), world_size=2).results == [torch.bfloat16] * 2


def test_parameters_that_are_views_of_a_returned_tensor_are_shown_as_that():
    def flat(model):
        whole = torch.zeros(32)
        model.weight.data = whole.view(4, 8)
        model(torch.ones(8))
        return dict(parameters={"flat": whole}, shapes={"flat": (32,)})

    watched = watch(flat, torch.nn.Linear(8, 4, bias=False), world_size=2)
    assert watched.peaks[0]["parameters"] == 128
    assert {p.name for mine in watched.pieces for p in mine} == {"flat"}


def test_partial_gradients_are_named():
    held = [(rank, Piece("gradients", "w", (4,), (0,), (4,), 16, partial=True)) for rank in range(2)]
    assert (
        cut_words(held, 2) == cut_words(held + held, 2) == "partial sums on 0, 1"
    )  # an optimizer has two states of a name


def piece(start, shape, whole=(8, 6), kind="parameters", name="layer.w"):
    size = 4
    for n in shape:
        size *= n
    return Piece(kind, name, whole, start, shape, size)


@pytest.mark.parametrize(
    "pieces, words",
    [
        ([piece((0, 0), (8, 6))] * 4, "whole on each"),
        ([None, piece((0, 0), (8, 6)), None, None], "whole on 1"),
        ([piece((2 * r, 0), (2, 6)) for r in range(4)], "rows in 4"),
        ([piece((2 * r, 0), (2, 6)) for r in (1, 0, 3, 2)], "rows in 4: ranks 1, 0, 3, 2"),
        ([piece((0, 3 * (r % 2)), (8, 3)) for r in range(4)], "columns in 2, each on 2 ranks"),
        ([piece((0, 0), (3, 6)), piece((3, 0), (3, 6)), piece((6, 0), (2, 6)), None], "rows in 3 (3, 3, 2)"),
        ([piece((0, 0), (2, 6)), piece((4, 0), (2, 6)), None, None], "rows in 2, 4 of 8 held"),
        ([piece((4 * (r // 2), 3 * (r % 2)), (4, 3)) for r in range(4)], "0: [0:4, 0:3]; 1: [0:4, 3:6]; 2: [4:8, 0:3]; 3: [4:8, 3:6]"),
    ],
)  # fmt: skip
def test_a_cut_in_words(pieces, words):
    assert cut_words([(rank, p) for rank, p in enumerate(pieces) if p], 4) == words


def test_a_piece_is_located_by_its_values():
    whole = torch.arange(48.0).reshape(8, 6)
    assert locate(whole[2:4], whole) == [(2, 0)]
    assert locate(whole[4:, 1:3], whole) == [(4, 1)]
    assert locate(torch.zeros(2, 6), whole) == []
    assert len(locate(torch.ones(2), torch.ones(8))) == 7


def test_ranks_in_words():
    assert span([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7, 8"


# --- pictures -----------------------------------------------------------------------------


@pytest.mark.parametrize("layers, ranks", [(2, 2), (2, 8), (16, 8)])
def test_pictures_fit_the_page(layers, ranks):
    names = {name: p for name, p in decoder(layers=layers).named_parameters()}
    pieces = [
        [
            piece((p.shape[0] // ranks * r, *(0,) * (p.dim() - 1)), (p.shape[0] // ranks, *p.shape[1:]), tuple(p.shape), kind, name)
            for name, p in names.items() for kind in ("parameters", "optimizer")
        ]
        for r in range(ranks)
    ]  # fmt: skip
    owns = Owns(pieces)
    picture = owns.draw()
    assert picture.pixels[0] <= WIDTH + 40 and picture.pixels[1] < 1000
    assert owns.draw().png() == picture.png() and picture.text == repr(owns)
    sizes = {f"block{k}": 1000 for k in range(layers)}
    frames = [
        [
            FilmFrame(0, phase, k, {k: 500}, {k: 1000}, 0, {k: 64 * r}, 0)
            for phase in ("forward", "backward")
            for k in sizes
        ]
        for r in range(ranks)
    ]
    assert Film(frames, sizes).draw().pixels[0] <= WIDTH + 40


def words_of(view):
    return [a.words for a in view.draw().artists if hasattr(a, "words")]


def test_a_film_shows_gradients_and_shards_where_there_are_any():
    def film(*gradients, shards=0):
        moments = enumerate(gradients)
        frames = [FilmFrame(0, "backward", f"b{k}", {}, {"b0": 9}, n, {"b0": 7}, 0, shards) for k, n in moments]
        return Film([frames], {"b0": 9})

    assert {"gradients", "up to 500 B", "activations", "up to 7 B"} <= set(words_of(film(0, 500)))
    assert not {"gradients", "shards"} & {*words_of(film(0, 0)), *repr(film(0, 0)).split()}
    assert {"shards", "up to 300 B"} <= set(words_of(film(0, shards=300))) and " 300 " in repr(film(0, shards=300))


def test_columns_of_layers_and_narrow_tensors_are_named(seen):
    assert "layers" in words_of(seen["sharded"].calls()) and "layers" not in words_of(seen["data"].calls())
    (named,) = [words for words in words_of(seen["tensor"].owns("parameters")) if "narrow" in words]
    assert named.endswith("; narrow: norm1, norm2, norm")
    assert not any("narrow" in words for words in words_of(Owns([[piece((0, 0), (8, 6))]])))


def test_a_replica_is_hatched_and_a_shard_is_not():
    one, other = piece((0, 0), (4, 6)), piece((4, 0), (4, 6))
    lines = [len(Owns([[one], [p]]).draw().artists) for p in (one, other)]
    assert lines[0] > lines[1]


def test_nothing_to_show_is_said():
    with pytest.raises(ValueError, match="give watch\\(\\) the model"):
        watch(lambda: dist.barrier(), world_size=2).owns()
    with pytest.raises(ValueError, match="no moments"):
        Film([[]], {})
    with pytest.raises(TypeError, match="not 'train'"):
        watch("train")
    assert "total" in repr(watch(lambda: None, world_size=1))


# --- the cost of the first run ------------------------------------------------------------


def test_importing_the_package_imports_neither_torch_nor_pictures():
    code = "import sys, collectives.train; print([m for m in ('torch', 'matplotlib', 'IPython') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.slow
def test_ranks_of_a_notebook_find_the_heavy_modules_loaded():
    ask = "print(run(lambda: 'torch._dynamo' in __import__('sys').modules).results)"
    with kernels(1) as (kernel,):
        # Four ranks are on standby from the first import on: without the modules, so others must take their place.
        assert kernel.text(f"from helpers import run\nimport collectives.train\n{ask}") == "[True, True, True, True]\n"
        (server,) = kernel.process.children()
        server.kill()
        kernel.until(lambda: server.status() == psutil.STATUS_ZOMBIE)
        assert kernel.text(ask) == "[True, True, True, True]\n"  # the next server knows too


def without_the_second_block(model, tokens):
    model.block1 = torch.nn.Identity()
    model(tokens).sum().backward()


def test_what_a_program_drops_of_its_model_is_no_longer_held():
    dropped = watch(without_the_second_block, MODEL, BATCHES[0][0], world_size=1)
    assert dropped.peaks[0]["parameters"] == BYTES - nbytes(MODEL.block1.parameters())
    assert not any("block1" in piece.name for piece in dropped.pieces[0])


def round_the_ring():
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = torch.zeros(2), torch.zeros(2)
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def test_messages_round_a_ring_are_alike():
    rows = Calls(run(round_the_ring, world_size=3)).rows
    assert {(row.op, row.group) for row in rows} == {("send", "to rank + 1"), ("recv", "from rank - 1")}
    assert all(row.calls == [1, 1, 1] for row in rows)


def test_tensors_that_a_rank_has_whole_are_stripes_of_their_layer():
    full, sizes = [(0.0, 0.0, 1.0, 1.0)], {"mlp.norm": 2, "mlp.expert0": 3, "mlp.expert1": 3}
    held = [{"mlp.norm": full, f"mlp.expert{rank}": full} for rank in range(2)]
    (first, second) = _by_layer(Layout(["parameters"], held, sizes)).held
    assert first == {"mlp": [(0.0, 0.0, 1.0, 0.25), (0.0, 0.25, 1.0, 0.375)]}
    assert second == {"mlp": [(0.0, 0.0, 1.0, 0.25), (0.0, 0.625, 1.0, 0.375)]}


# --- what overlaps ------------------------------------------------------------------------


def test_what_travels_while_nothing_is_computed_is_not_hidden():
    backward = [("backward", "head", 5.0, 6.0), ("backward", "embed", 6.0, 7.0)]
    seen = overlap({
        "one": [*backward, ("link", "all", 7.0, 8.5)],
        "two": [*backward, ("link", "first", 6.0, 6.5), ("link", "last", 6.5, 7.25)],
        "hidden": [*backward, ("link", "first", 6.0, 6.5)],
        "between": [("link", "head", 3.0, 5.5), *backward, ("backward", "late", 7.5, 8.0), ("link", "all", 6.5, 7.75)],
    })  # fmt: skip
    bare = [(seen.seconds(name), seen.bare(name)) for name in seen.panels]
    assert bare == [(3.5, 1.5), (2.25, 0.25), (2.0, 0.0), (5.0, 2.5)]
    picture = seen.draw()
    assert picture.text == repr(seen) and "2 in 1250 ms" in picture.text and "2 in 3750 ms" in picture.text
    tints = [to_hex(a.get_facecolor()) for a in picture.artists if hasattr(a, "get_path")]
    # "two": its first is hidden, its last half hidden; "between": both before and after, and between two backwards
    # and the legend has each once
    assert tints.count(HIDDEN_FILL) == 2 + 1 + 3 + 1 and tints.count(BARE) == 1 + 1 + 2 + 1
    assert picture.pixels[0] <= WIDTH + 40


@pytest.mark.parametrize("panel", [[], [("link", "all", 1.0, 2.0)]])
def test_a_panel_in_which_nothing_is_computed_is_refused(panel):
    with pytest.raises(ValueError, match="a span or more"):
        overlap({"right": [("backward", "head", 0.0, 1.0)], "wrong": panel})


# --- causal attention ---------------------------------------------------------------------


def test_the_area_of_a_colour_is_the_work_of_its_rank():
    work = causal_work({"in a row": [range(8), range(8, 16)], "striped": [range(0, 16, 2), torch.arange(1, 16, 2)]})
    assert work.pairs("in a row") == [[36, 0], [36, 64]] and work.pairs("striped") == [[36, 28], [36, 36]]
    assert repr(work).splitlines()[2].split() == ["1", "36", "64", "100"]
    pixels = np.asarray(Image.open(io.BytesIO(work.draw().png())).convert("RGB"))
    seen = [  # of the second hop, which no bar has
        (pixels == [int(tint[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum()
        for tint in (pale(colour(rank), 0.35) for rank in range(2))
    ]
    assert seen[0] / seen[1] == pytest.approx(28 / 100, rel=0.05)


@pytest.mark.parametrize("places", [[], [[0, 2]], [[0, 1], [1]]])
def test_a_layout_gives_each_position_to_one_rank(places):
    with pytest.raises(ValueError, match="each position, 0 to the last, to one rank"):
        causal_work({"odd": places})
