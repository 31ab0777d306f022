"""Pipeline schedules of others as the same data: torch.distributed.pipelining's, and the one that a run carried out."""

import contextlib
import io
from collections import Counter
from itertools import groupby
from typing import Any, Iterator

from ...rank import torch_private
from .pipeline import Action, Pipeline


def from_torch(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Pipeline:
    """The order of one of torch.distributed.pipelining's schedules.

    name: torch's name: "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
    "DualPipeV".  chunks: stages per rank; None for torch's default.  Not for "1F1B": the visualizer of torch 2.13 used
    here returns an order for the last rank that its Schedule1F1B does not execute; see `recorded`.

    An action that does a forward and a backward in one, as DualPipeV's, comes out as one after the other.
    """
    if name.lower() == "1f1b":
        raise ValueError(
            "torch 2.13 lists a different order for 1F1B than its Schedule1F1B executes: watch a run of it."
        )
    with contextlib.redirect_stdout(io.StringIO()):
        orders = torch_private.pipeline_orders(name, ranks, microbatches, chunks)
    return Pipeline([list(_compute_actions(order)) for order in orders], name)


def _compute_actions(order: list) -> Iterator[Action]:
    for a in filter(None, order):
        if a.sub_actions:
            yield from _compute_actions(a.sub_actions)
        elif a.is_compute_op:
            yield Action(a.stage_index, a.computation_type.value, a.microbatch_index)


def recorded(seen: Any, microbatches: int | None = None, name: str = "the run") -> Pipeline:
    """The schedule that a run carried out.  seen: its record from collectives.train.watch.

    Layers that follow each other on one rank are a stage; stages are counted along the model.  The k-th forward of a
    stage is taken to be of microbatch k, and the k-th backward as well.
    microbatches: to use, the last ones; before its first step torch tries every stage once, to learn shapes.
    Raises ValueError for a run without modules that computed forward and backward, and for backwards in halves.
    """
    orders = [  # a rank's (kind, layer)
        [(f.phase[0].upper(), f.layer) for f in frames if f.phase in ("forward", "backward")] for frames in seen.frames
    ]
    owner = {layer: rank for rank, order in enumerate(orders) for _, layer in order}
    stages = [list(layers) for _, layers in groupby(sorted(owner, key=_depth), owner.get)]
    # A stage's forward is done with its last layer; its backward comes to its first layer last.
    does = {("F", layers[-1]): (number, "F") for number, layers in enumerate(stages)}
    does |= {("B", layers[0]): (number, "B") for number, layers in enumerate(stages)}
    rows = []
    for order in orders:
        done = [does[moment] for moment in order if moment in does]
        times = Counter(done)
        for (number, kind), count in times.items():
            if kind == "B" and count > times[number, "F"]:
                raise ValueError(
                    f"stage {number} went backward {count} times for {times[number, 'F']} forwards: in halves, as "
                    "in zero bubble, or in pieces. Which is which cannot be read from a run; from_torch() has "
                    "torch's orders."
                )
        microbatch = {what: (microbatches or count) - count for what, count in times.items()}  # below 0: a trial
        row = []
        for what in done:
            if microbatch[what] >= 0:
                row.append(Action(*what, microbatch[what]))
            microbatch[what] += 1
        rows.append(row)
    return Pipeline(rows, name)


def _depth(layer: str) -> tuple[int, int]:
    """A layer's place in collectives.train's decoder: embed, block0, block1, ..., head."""
    if layer.startswith("block"):
        return 1, int(layer.removeprefix("block"))
    return (0, 0) if layer == "embed" else (2, 0)
