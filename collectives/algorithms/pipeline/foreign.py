"""Pipeline schedules of others as the same data: torch.distributed.pipelining's, and the one that a run carried out."""

import contextlib
import io
from collections import Counter, defaultdict
from typing import Any, Iterator

from ...rank import torch_private
from .model import Action, Pipeline


def from_torch(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Pipeline:
    """The order that one of torch.distributed.pipelining's schedules lays down.

    name: as torch has it: "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble",
    "DualPipeV".  chunks: stages a rank; None for torch's default.  Not for "1F1B": the visualizer of torch 2.13 that
    is asked here gives the last rank an order that its Schedule1F1B does not execute; see `recorded`.

    An action that does a forward and a backward in one, as DualPipeV's, comes out as one after the other.
    """
    if name.lower() == "1f1b":
        raise ValueError("torch 2.13 lists another order for 1F1B than its Schedule1F1B executes: watch a run of it.")
    with contextlib.redirect_stdout(io.StringIO()):
        orders = torch_private.pipeline_orders(name, ranks, microbatches, chunks)
    return Pipeline([list(_computed(order)) for order in orders], name)


def _computed(order: list) -> Iterator[Action]:
    for a in order:
        if a is None:
            continue
        if a.sub_actions:
            yield from _computed(a.sub_actions)
        elif a.is_compute_op:
            yield Action(a.stage_index, a.computation_type.value, a.microbatch_index)


def recorded(seen: Any, microbatches: int | None = None, name: str = "the run") -> Pipeline:
    """The schedule that a run carried out.  seen: what collectives.train.watch saw of it.

    Layers that follow each other on one rank are a stage; stages are counted along the model.  The k-th forward of a
    stage is taken to be of microbatch k, and the k-th backward as well.
    microbatches: only the last so many of each; before its first step torch tries every stage once, to learn shapes.
    Raises ValueError for a run without modules that computed forward and backward, and for backwards in halves.
    """
    order: dict[int, list[tuple[str, str]]] = {  # rank -> (kind, layer), in order
        rank: [(f.phase[0].upper(), f.layer) for f in frames if f.phase in ("forward", "backward")]
        for rank, frames in enumerate(seen.frames)
    }
    stage = _stages({rank: {layer for _, layer in moments} for rank, moments in order.items()})
    rows = []
    for moments in order.values():
        # A stage's forward is done with its last layer; its backward comes to its first layer last.
        done = [(stage[layer][0], kind) for kind, layer in moments if layer == stage[layer][2 if kind == "F" else 1]]
        _whole_backwards(Counter(done))
        skip = {what: count - (microbatches or count) for what, count in Counter(done).items()}
        times: dict[tuple[int, str], int] = defaultdict(int)
        row = []
        for what in done:
            microbatch = times[what] - skip[what]
            times[what] += 1
            if microbatch >= 0:
                row.append(Action(*what, microbatch))
        rows.append(row)
    return Pipeline(rows, name)


def _whole_backwards(counts: Counter) -> None:
    for (number, kind), times in counts.items():
        if kind == "B" and times > counts[number, "F"]:
            raise ValueError(
                f"stage {number} went backward {times} times for {counts[number, 'F']} forwards: in halves, as in zero "
                "bubble, or in pieces. Which is which cannot be read from a run; from_torch() has torch's orders."
            )


def _stages(of_rank: dict[int, set[str]]) -> dict[str, tuple[int, str, str]]:
    """layer -> (its stage, the stage's first layer, the stage's last)."""
    owner = {layer: rank for rank, mine in of_rank.items() for layer in mine}
    runs: list[list[str]] = []
    for layer in sorted(owner, key=_depth):
        if runs and owner[runs[-1][-1]] == owner[layer]:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return {layer: (number, run[0], run[-1]) for number, run in enumerate(runs) for layer in run}


def _depth(layer: str) -> tuple[int, int]:
    """Where a layer of collectives.train's decoder stands: embed, block0, block1, ..., head."""
    if layer.startswith("block"):
        return 1, int(layer.removeprefix("block"))
    return (0, 0) if layer == "embed" else (2, 0)
