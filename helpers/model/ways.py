"""`Ways`: one training step divided in many ways, each compared with one process; the messages and memory of each.

    from helpers.model import Ways

    ways = Ways(one_process(model, [batch], adam), model)
    ways.record("DDP", ddp, {"dp": 8})     # ddp is a rank's step: dict(loss=, gradients=, optimizer=)
    ways.table("DDP")                      # calls, bytes sent and held
    ways.panels("DDP")                     # which share of each layer a rank has

A mesh names the dimensions in which the ranks are laid out, {"dp": 2, "pp": 2, "tp": 2}, the last one fastest.  dp: data
parallel, copies; fs: fully sharded; tp, sp: tensor parallel without and with sequence parallelism; pp: pipeline;
cp: context; ep: experts.
"""

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import nn

from collectives.draw.canvas import SOFT, TRAY, Canvas, Picture, colour
from collectives.log.event import Event
from collectives.train import Calls, Watched, watch
from collectives.train.view import View

from .training import Training, difference

Mesh = Mapping[str, int]  # dimension -> the number of ranks along it
TRAFFIC, MEMORY = ("weights", "gradients", "activations"), ("parameters", "gradients", "optimizer", "activations")
HEADS = "calls", "msgs", "weights", "grads", "activ.", "params", "grads", "optim.", "activ."
WIDE = 6, 5, 8, 6, 7, 7, 6, 7, 7  # of the table's columns
CLOSE = 1e-5  # how near a loss and a gradient have to be to one process's


# --- gradients of many ranks, compared with one process -----------------------------------


def _join(pieces: Sequence[torch.Tensor | None], dim: str, shape: Sequence[int]) -> torch.Tensor | None:
    """The tensor that the ranks along a dimension hold together: pieces joined, copies that agree once, or NaN."""
    pieces = [piece for piece in pieces if piece is not None]  # None: of another stage, or another expert
    if not pieces:
        return None
    short = [d for d in range(len(shape)) if pieces[0].shape[d] < shape[d]]
    if dim == "fs":  # fully_shard cuts by rows
        return torch.cat(pieces)
    if dim in ("tp", "sp") and short:
        return torch.cat(pieces, short[0])
    alike = all(difference(piece, pieces[0]) < CLOSE / 10 for piece in pieces)
    return pieces[0] if alike else torch.full_like(pieces[0], torch.nan)


def put_together(results: Sequence[Mapping], mesh: Mesh, name: str, shape: Sequence[int]) -> torch.Tensor:
    """The whole gradient of the parameter `name`, of that shape, from the ranks' pieces; NaN where copies differ."""
    places = itertools.product(*map(range, mesh.values()))
    held = {at: result["gradients"].get(name) for at, result in zip(places, results)}
    for k, dim in sorted(enumerate(mesh), key=lambda dims: dims[1] != "fs"):  # cut last, joined first
        rows = defaultdict(list)
        for at, piece in held.items():
            rows[at[:k] + (0,) + at[k + 1 :]].append(piece)
        held = {at: _join(pieces, dim, shape) for at, pieces in rows.items()}
    (whole,) = held.values()
    return whole


def mean_loss(results: Sequence[Mapping]) -> float:
    """The mean of the losses of all ranks that have one: in a pipeline, the last stage's."""
    losses = [result["loss"] for result in results if result["loss"] is not None]
    return sum(losses) / len(losses)


def wrong_gradients(results: Sequence[Mapping], mesh: Mesh, want: Training) -> list[str]:
    """Names of the parameters whose gradient, put together, is further than 1e-5 from one process's."""
    right = want.gradients[0].items()
    return [name for name, g in right if not difference(put_together(results, mesh, name, g.shape), g) < CLOSE]


# --- the messages -------------------------------------------------------------------------


def _dimension(event: Event, mesh: Mesh) -> str:
    """The mesh dimension along which a call goes."""
    message = event.rank, event.dst if event.op == "send" else event.src
    here, there = message if event.is_message else event.group[:2]
    sizes = list(mesh.values())
    return next(dim for k, dim in enumerate(mesh) if math.prod(sizes[k + 1 :]) == abs(there - here))


def _kind(event: Event, phase: str, mesh: Mesh) -> str:
    """Whether a call sends weights, gradients or activations (with which their own gradients count)."""
    dim = _dimension(event, mesh)
    if dim == "fs":
        return "weights" if event.op.startswith("all_gather") else "gradients"
    return "gradients" if dim == "dp" or phase == "update" else "activations"


# --- the ways -----------------------------------------------------------------------------


class Ways:
    """Ways to take one step of a model, recorded, by name.

    want: the step of one process, with which each way is compared.  model: the whole one.
    """

    def __init__(self, want: Training, model: nn.Module) -> None:
        self.want, self.model = want, model
        self._ways: dict[str, tuple[Watched, Mesh, nn.Module]] = {}

    def __iter__(self):
        return iter(self._ways)

    def record(
        self,
        name: str,
        fn: Callable,
        mesh: Mesh,
        *args: Any,
        want: Training | None = None,
        model: nn.Module | None = None,
    ) -> None:
        """Run `fn(*args)` on the ranks of `mesh` and keep the record.

        fn returns dict(loss=float or None, gradients={name: tensor}, ...).  want, model: if it trains a model
        other than the rest.  Raises AssertionError unless loss and gradients are one process's, to 1e-5.
        """
        want, seen = want or self.want, watch(fn, *args, world_size=math.prod(mesh.values()))
        assert abs(mean_loss(seen.results) - want.losses[0]) < CLOSE, f"{name}: another loss than one process's"
        wrong = wrong_gradients(seen.results, mesh, want)
        assert not wrong, f"{name}: gradients that are not one process's: {', '.join(wrong)}"
        self._ways[name] = seen, mesh, model or self.model

    def sent(self, name: str, what: str) -> list[int]:
        """Bytes that each rank sends of "weights", "gradients" or "activations"."""
        seen, mesh, _ = self._ways[name]
        events = [
            [e for e, m in zip(*both) if m.phase != "setup" and _kind(e, m.phase, mesh) == what]
            for both in zip(seen.events, seen.marks)
        ]
        return Calls(replace(seen.run, events=events)).total_sent

    def _row(self, name: str) -> list[float]:
        seen, _, _ = self._ways[name]
        most = max(seen.peaks, key=lambda peak: sum(peak[k] for k in MEMORY))
        events = [[e for e, m in zip(*both) if m.phase != "setup"] for both in zip(seen.events, seen.marks)]
        messages = max(sum(e.op == "send" for e in mine) for mine in events)
        calls = max(sum(not e.is_message for e in mine) for mine in events)
        return [calls, messages, *(max(self.sent(name, k)) for k in TRAFFIC), *(most[k] for k in MEMORY)]

    def table(self, *names: str) -> None:
        """Print a line for each way: calls and messages of a rank, kB that it sends, and the most that it holds."""
        print(f"{'kB per rank':<16}{'':11}{'sent':>8}{'':13}{'held':>7}")
        print(f"{'':<16}" + "".join(f"{head:>{wide}}" for head, wide in zip(HEADS, WIDE)))
        for name in names:
            calls, messages, *amounts = self._row(name)
            cells = [f"{calls:,}", f"{messages:,}"] + [f"{float(n) / 1000:,.0f}" for n in amounts]
            print(f"{name:<16}" + "".join(f"{'.' if c == '0' else c:>{wide}}" for c, wide in zip(cells, WIDE)))

    def shares(self, name: str) -> list[list[float]]:
        """[rank][layer]: the rank's share of the layer's parameters, from 0 to 1."""
        seen, _, model = self._ways[name]
        sizes = {layer: sum(p.numel() for p in part.parameters()) for layer, part in model.named_children()}
        return [
            [
                sum(g.numel() for name, g in result["gradients"].items() if name.partition(".")[0] == layer) / size
                for layer, size in sizes.items()
            ]
            for result in seen.results
        ]

    def panels(self, *names: str) -> "Panels":
        """A panel for each of these ways: each rank's shares of the layers."""
        return Panels([(name, self._ways[name][1], self.shares(name)) for name in names])


class Panels(View):
    """A panel for each way: a line is a rank, a column a layer, and filled is the rank's share of the layer.

    ways: name, mesh, [rank][layer] shares.
    """

    def __init__(self, ways: Sequence[tuple[str, Mesh, list[list[float]]]]) -> None:
        self.ways = ways

    def __repr__(self) -> str:
        lines = ["share of a block's parameters that a rank has"]
        for name, _, shares in self.ways:
            blocks = [of[1:-1] for of in shares]
            lines.append(f"{name:<18}{max(map(max, blocks)):>7.1%}, on {sum(of[0] > 0 for of in blocks)} ranks")
        return "\n".join(lines)

    def draw(self) -> Picture:
        what = f"Picture: which share of each layer a rank has, {len(self.ways)} ways"
        return Picture([self._panel(*way) for way in self.ways], repr(self), what)

    @staticmethod
    def _panel(name: str, mesh: Mesh, shares: list[list[float]]) -> Canvas:
        sketch = Canvas()
        sketch.text(0, 8, name, 13, align="left", bold=True)
        for k, layer in enumerate(["embed", *range(len(shares[0]) - 2), "head"]):
            sketch.text(25 * k + 11.5, 24, str(layer), 8, SOFT)
        places = itertools.product(*map(range, mesh.values()))
        for rank, (of, at) in enumerate(zip(shares, places)):
            for k, share in enumerate(of):
                ends = k in (0, len(of) - 1)  # embedding and head: only fully_shard cuts them
                start, piece = 0.0, 1.0
                for dim, place in sorted(zip(mesh, at), key=lambda dims: dims[0] == "fs"):
                    if dim == "fs" or dim in ("tp", "sp", "ep") and not ends:
                        piece /= mesh[dim]
                        start += place * piece
                x, y = 25 * k, 32 + 13 * rank
                sketch.box(x, y, 23, 11, TRAY, radius=0)
                if share:
                    sketch.box(x + 23 * min(start, 1 - share), y, 23 * share, 11, colour(rank), radius=0)
        return sketch
