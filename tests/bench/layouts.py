"""What the recorder of collectives.watch costs a training step, in eight ways to divide a model:

    python -m tests.bench.layouts [LAYOUT ...] [--hidden 16 256] [--turns 8]

Four ranks train a small decoder.  Turns of a few steps with the recorder and without it alternate in the same processes,
so that whatever else the machine does meets both alike; without it, it's taken out of torch whole.  Prints for each
layout the median step without it and, as the median over turns, what a step with it takes in its place: by the clock, by
the processor time of the ranks, and by theirs with the collector's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS, LAYERS, SEQUENCE, HEADS, MICROBATCHES = 4, 10, 64, 4, 4
STEPS = 3  # of a turn
HERTZ = os.sysconf("SC_CLK_TCK")


class Degrees(NamedTuple):
    """How many ranks share the data, the tensors, the layers and the sequence."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1


LAYOUTS = {
    "dp 4": Degrees(dp=4),
    "tp 4": Degrees(tp=4),
    "pp 4": Degrees(pp=4),
    "cp 4": Degrees(cp=4),
    "tp 2 cp 2": Degrees(tp=2, cp=2),
    "dp 2 pp 2": Degrees(dp=2, pp=2),
    "DDP": None,
    "FSDP2": None,
}


# --- what is sent -------------------------------------------------------------------------


class Copied(torch.autograd.Function):
    """Before a layer whose columns are shared: gradients are summed."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """After a layer whose rows are shared: outputs are summed."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


def passed_round(tensors: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """What the rank before has of these, while the next one gets this rank's."""
    ranks = dist.get_process_group_ranks(group)
    here = ranks.index(dist.get_rank())
    after, before = ranks[(here + 1) % len(ranks)], ranks[here - 1]
    got = [torch.empty_like(t) for t in tensors]
    sent = [dist.P2POp(dist.isend, t, after, group) for t in tensors]
    for work in dist.batch_isend_irecv(sent + [dist.P2POp(dist.irecv, t, before, group) for t in got]):
        work.wait()
    return got


class RingAttention(torch.autograd.Function):
    """Attention of this rank's queries over the keys and values of all, which go round."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
        size, scale = dist.get_world_size(group), q.shape[-1] ** -0.5
        there, out, total = [k, v], None, None
        for step in range(size):
            scores = q @ there[0].transpose(-1, -2) * scale
            sums = scores.logsumexp(-1, keepdim=True)
            part = (scores - sums).exp() @ there[1]
            if out is None:
                out, total = part, sums
            else:
                both = torch.logaddexp(total, sums)
                out, total = out * (total - both).exp() + part * (sums - both).exp(), both
            if step + 1 < size:
                there = passed_round(there, group)
        ctx.save_for_backward(q, k, v, out, total)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, out, total = ctx.saved_tensors
        size, scale, shared = dist.get_world_size(ctx.group), q.shape[-1] ** -0.5, (grad * out).sum(-1, keepdim=True)
        there = [k, v, torch.zeros_like(k), torch.zeros_like(v)]
        dq = torch.zeros_like(q)
        for _ in range(size):
            k, v, dk, dv = there
            weights = (q @ k.transpose(-1, -2) * scale - total).exp()
            dscores = weights * (grad @ v.transpose(-1, -2) - shared) * scale
            dq += dscores @ k
            dk, dv = dk + dscores.transpose(-1, -2) @ q, dv + weights.transpose(-1, -2) @ grad
            there = passed_round([k, v, dk, dv], ctx.group)
        return dq, there[2], there[3], None


# --- the model ----------------------------------------------------------------------------


class Layer(nn.Module):
    """Attention and two linear layers, of which this rank has its part.  tp, cp: groups; None: of one rank."""

    def __init__(self, hidden: int, tp: dist.ProcessGroup | None, cp: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.parts = 1 if tp is None else dist.get_world_size(tp)
        self.tp, self.cp, width = tp, cp, hidden // self.parts
        self.qkv, self.out = nn.Linear(hidden, 3 * width, False), nn.Linear(width, hidden, False)
        self.up, self.down = nn.Linear(hidden, 4 * width, False), nn.Linear(4 * width, hidden, False)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = self.qkv(self._copied(self.norms[0](x))).view(batch, length, 3, HEADS // self.parts, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4).contiguous()
        if self.cp is None:
            seen = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            seen = RingAttention.apply(q, k, v, self.cp)
        x = x + self._summed(self.out(seen.transpose(1, 2).reshape(batch, length, -1)))
        return x + self._summed(self.down(torch.relu(self.up(self._copied(self.norms[1](x))))))

    def _copied(self, x: Tensor) -> Tensor:
        return x if self.tp is None else Copied.apply(x, self.tp)

    def _summed(self, x: Tensor) -> Tensor:
        return x if self.tp is None else Summed.apply(x, self.tp)


def groups(degrees: Degrees) -> dict[str, dist.ProcessGroup | None]:
    """This rank's groups, by kind; "grads": those that add up gradients."""
    grid = torch.arange(RANKS).reshape(degrees)  # dp, tp, pp, cp
    mine = {}
    for kind, axes in {"tp": (1,), "pp": (2,), "cp": (3,), "grads": (0, 3)}.items():
        rest = [axis for axis in range(4) if axis not in axes]
        size = math.prod(degrees[axis] for axis in axes)
        for ranks in grid.permute(*rest, *axes).reshape(-1, size).tolist():
            group = dist.new_group(ranks) if len(ranks) > 1 else None
            if dist.get_rank() in ranks:
                mine[kind] = group
    return mine


def divided(degrees: Degrees, hidden: int) -> Callable[[], None]:
    """A training step with the model divided so."""
    mine = groups(degrees)
    pp, stages = mine["pp"], degrees.pp
    stage = 0 if pp is None else dist.get_rank(pp)
    peers = [0] if pp is None else dist.get_process_group_ranks(pp)
    count = LAYERS // stages + (stage < LAYERS % stages)
    layers = nn.Sequential(*(Layer(hidden, mine["tp"], mine["cp"]) for _ in range(count)))
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-3)
    length, microbatches = SEQUENCE // degrees.cp, MICROBATCHES if stages > 1 else 1

    def moved(kind: Callable, tensor: Tensor, to: int) -> Tensor:
        for work in dist.batch_isend_irecv([dist.P2POp(kind, tensor, peers[to], pp)]):
            work.wait()
        return tensor

    def forward() -> tuple[Tensor, Tensor]:
        x = torch.randn(2, length, hidden)
        if stage > 0:
            x = moved(dist.irecv, x, stage - 1)
        y = layers(x.requires_grad_())
        if stage + 1 < stages:
            moved(dist.isend, y.detach(), stage + 1)
        return x, y

    def backward(x: Tensor, y: Tensor) -> None:
        if stage + 1 == stages:
            y.square().mean().backward()
        else:
            y.backward(moved(dist.irecv, torch.empty_like(y), stage + 1))
        if stage > 0:
            moved(dist.isend, x.grad, stage - 1)

    def step() -> None:
        for x, y in [forward() for _ in range(microbatches)]:
            backward(x, y)
        if mine["grads"] is not None:
            flat = [torch.cat([p.grad.flatten() for p in layer.parameters()]) for layer in layers]
            for work in [dist.all_reduce(t, group=mine["grads"], async_op=True) for t in flat]:
                work.wait()
        optimizer.step()
        optimizer.zero_grad()

    return step


def torchs_own(name: str, hidden: int) -> Callable[[], None]:
    """A training step under DistributedDataParallel or fully_shard."""
    model = nn.Sequential(*(Layer(hidden, None, None) for _ in range(LAYERS)))
    if name == "DDP":
        model = DistributedDataParallel(model)
    else:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        model(torch.randn(2, SEQUENCE, hidden)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- by turns -----------------------------------------------------------------------------


def processor_seconds(process: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def turn(step: Callable[[], None]) -> list[float]:
    """Seconds of some steps, by the clock in the median, and by the processor time of all ranks on average."""
    taken, used = [], time.process_time()
    for _ in range(STEPS):
        dist.barrier()
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    of_all = torch.tensor([time.process_time() - used], dtype=torch.float64)
    dist.all_reduce(of_all)
    return [statistics.median(taken), of_all.item() / STEPS]


def measure(layout: str, hidden: int, turns: int, collector: int) -> str:
    """A row of the table."""
    from collectives.rank import kernel

    degrees = LAYOUTS[layout]
    step = torchs_own(layout, hidden) if degrees is None else divided(degrees, hidden)
    tracer = kernel.recorder.__self__
    turn(step)
    calls = tracer.calls
    times: list[tuple[list[float], list[float]]] = []
    before = processor_seconds(collector)
    for k in range(turns):
        recorded = turn(step)
        tracer.__exit__()
        kernel.uninstall()
        plain = turn(step)
        tracer.__enter__()
        times.append((recorded, plain))
    calls = (tracer.calls - calls) / turns / STEPS
    of_collector = (processor_seconds(collector) - before) / turns / STEPS
    clock = sorted(recorded[0] / plain[0] for recorded, plain in times)
    used = statistics.median(recorded[1] / plain[1] for recorded, plain in times)
    with_it = statistics.median((recorded[1] + of_collector) / plain[1] for recorded, plain in times)
    quarters = f"[{clock[len(clock) // 4]:.2f}, {clock[-1 - len(clock) // 4]:.2f}]"
    plain = statistics.median(plain[0] for _, plain in times) * 1000
    return (
        f"{layout:10} {hidden:6} {calls:10.0f} {plain:12.1f} {statistics.median(clock):8.2f} {quarters:13} {used:10.2f} "
        f"{with_it:15.2f} {os.getloadavg()[0]:5.0f}"
    )


def train(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    collector = json.loads(Path(options.record, "about.json").read_text())["collector"]
    head = "layout     hidden calls/step  ms unrecorded    clock  (quartiles)    processor  with collector  load"
    for hidden in options.hidden:
        for layout in options.layouts:
            row = measure(layout, hidden, options.turns, collector)
            if dist.get_rank() == 0:
                print(head + "\n" + row if head else row, flush=True)
                head = ""
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("layouts", nargs="*", default=list(LAYOUTS), metavar="LAYOUT", help=", ".join(LAYOUTS))
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        return train(options)
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.join(folder, "record")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
        watch = ["-m", "collectives.watch", "--record", record, __file__]
        done = subprocess.run([*launcher, *watch, *sys.argv[1:], "--record", record])
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
