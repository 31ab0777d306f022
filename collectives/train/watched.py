"""`watch()`: a run with each rank's memory, and the phase of training in which it made each call.

from collectives.train import watch
seen = watch(train, model, batches, world_size=4)          # train is plain torch, as for run()
seen.owns()       # the slices that each rank holds
seen.film()       # and when
seen.calls()      # the recorded calls by phase, layer and operation, with bytes
"""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Callable, Sequence

import torch
import torch.nn as nn

from ..launch.run import run
from ..outcome.run import Run
from .film import Film
from .observer import STATES, FilmFrame, Observation, PhaseMark, Piece, observed
from .shards import Owns, memory_table
from .summary import Calls


class Watched:
    """A run with the observations in its ranks.

    .run .results .events: as run() gives them.  .marks: per rank, a PhaseMark for each event.  .frames: per rank, what
    it held at each layer's forward and backward.  .pieces: per rank, what it held at the end.  .peaks: per rank,
    the most bytes of each kind that it held at any sampled moment (activations: at any moment).
    """

    def __init__(self, run: Run, wholes: dict[str, torch.Tensor]) -> None:
        seen: list[Observation] = run.results
        self.run = replace(run, results=[o.result for o in seen])
        self.results, self.events = self.run.results, self.run.events
        self.marks: list[list[PhaseMark]] = [o.marks for o in seen]
        self.frames: list[list[FilmFrame]] = [o.frames for o in seen]
        self.pieces: list[list[Piece]] = [_placed(o.pieces, rank, wholes) for rank, o in enumerate(seen)]
        _in_order(self.pieces)
        self.peaks: list[dict[str, int]] = [o.peaks for o in seen]
        self.layers: dict[str, int] = {k: size for o in seen for k, size in o.layers.items()}  # bytes, whole

    def calls(self, step: int | None = None) -> Calls:
        """The recorded calls, summarized.  step: only one step's, from 0 (PhaseMark.step)."""
        return Calls(self.run, self.marks, step)

    def owns(self, *kinds: str) -> Owns:
        """Each rank's slices of tensors at the end.  kinds: "parameters", "gradients", "optimizer"; all by default."""
        return Owns(self.pieces, self.peaks, kinds, self.run.name)

    def film(self, step: int | str | None = None, ranks: Sequence[int] | None = None) -> Film:
        """The ranks' memory over one step, the last by default; see film.Film."""
        return Film(self.frames, self.layers, step, ranks, self.run.name)

    def memory(self) -> str:
        """Bytes by kind and rank, as a table."""
        return memory_table(self.peaks)

    def __repr__(self) -> str:
        return f"{self.memory()}\n\n{self.calls()!r}"

    def _ipython_display_(self) -> None:
        if any(piece.kind in STATES for held in self.pieces for piece in held):
            self.owns()._ipython_display_()
        self.calls()._ipython_display_()


def watch(fn: Callable[..., Any], *args: Any, **options: Any) -> Watched:
    """Run `fn(*args)` on every rank as run() does, and observe each rank's memory meanwhile.

    fn: as for run(): plain torch, that knows nothing of this.  Give it the model as an argument, so that the
        pieces of it which the ranks make can be found in it.
    options: of run(), and keyword arguments of fn.

    Observed are parameters, buffers and gradients of modules that are called; states of torch.optim
    optimizers; all that autograd keeps for backward.  Other tensors count if fn returns them in a dict under
    one of the names in observer.KINDS: dict(parameters={"w": w}, optimizer={"w": [m, v]}).
    Observing costs a few milliseconds a layer; do not time what you watch.  torch.compile compiles nothing meanwhile,
        so that hooks see each layer.
    """
    if not callable(fn):
        raise TypeError(f"watch() needs a function to run on every rank, not {fn!r}. Pass the function itself.")
    modules = [v for v in (*args, *options.values()) if isinstance(v, nn.Module)]
    wholes = {name: p.detach() for module in modules for name, p in module.named_parameters()}
    return Watched(run(observed(fn), *args, **options), wholes)


# --- the place of a piece -----------------------------------------------------------------


def _placed(pieces: list[Piece], rank: int, wholes: dict[str, torch.Tensor]) -> list[Piece]:
    """The pieces with the place of each; a piece that was cut by hand is found by its values."""
    first: dict[str, Piece] = {}  # of each name; later ones, such as gradients, have its place
    located = []
    for piece in pieces:
        if piece.start is None and piece.name in wholes:
            if piece.name not in first:
                first[piece.name] = _by_values(piece, rank, wholes[piece.name])
            if first[piece.name].shape == piece.shape:
                piece = piece._replace(whole=first[piece.name].whole, start=first[piece.name].start)
        located.append(piece._replace(first=None))
    return located


def _by_values(piece: Piece, rank: int, whole: torch.Tensor) -> Piece:
    """The piece with the place in the whole tensor at which its first values are found, if there is one."""
    first = piece.first
    if first is None:
        return piece
    if first.dim() != whole.dim():
        whole, first = whole.flatten(), first.flatten()
    starts = locate(first, whole)
    if not starts:
        return piece
    # Many places in a tensor of ones: then the place that its rank has when all cut evenly.
    even = [rank % max(1, w // s) * s for s, w in zip(first.shape, whole.shape)]
    likely = min(starts, key=lambda start: sum(abs(a - b) for a, b in zip(start, even)))
    return piece._replace(whole=tuple(whole.shape), start=likely)


def locate(piece: torch.Tensor, whole: torch.Tensor) -> list[tuple[int, ...]]:
    """All indices of a tensor's elements at which these values begin; both tensors have as many dimensions."""
    if piece.dim() != whole.dim() or not piece.numel() or any(p > w for p, w in zip(piece.shape, whole.shape)):
        return []
    room = tuple(slice(0, w - p + 1) for p, w in zip(piece.shape, whole.shape))
    corners = (whole[room] == piece[(0,) * piece.dim()]).nonzero().tolist()
    return [
        tuple(at) for at in corners
        if torch.equal(whole[tuple(slice(a, a + p) for a, p in zip(at, piece.shape))], piece)
    ]  # fmt: skip


def _in_order(pieces: list[list[Piece]]) -> None:
    """Place pieces of unknown place that fill a tensor evenly along one dimension in the order of the ranks."""
    of: dict[tuple, list[tuple[int, int]]] = defaultdict(list)
    for rank, held in enumerate(pieces):
        count: Counter[tuple[str, str]] = Counter()
        for k, p in enumerate(held):
            count[p.kind, p.name] += 1  # an optimizer has several of one name
            if p.start is None:
                of[p.kind, p.name, count[p.kind, p.name]].append((rank, k))
    for at in of.values():
        parts = [pieces[rank][k] for rank, k in at]
        whole = parts[0].whole
        if any(len(p.shape) != len(whole) for p in parts):
            continue
        cut = {d for p in parts for d, n in enumerate(whole) if p.shape[d] != n}
        if len(cut) == 1 and sum(p.shape[d := min(cut)] for p in parts) == whole[d]:
            start = [0] * len(whole)
            for (rank, k), p in zip(at, parts):
                pieces[rank][k] = p._replace(start=tuple(start))
                start[d] += p.shape[d]
