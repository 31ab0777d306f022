"""plan(): every way to divide a model over a cluster that fits, the fastest first, and what the others lose by."""

from itertools import product
from math import log
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from ..format import align, duration, size
from ..frontend import show
from ..lazy import Later
from ..machines.topology import Machine
from .communication import data_calls, data_messages, network
from .division import KINDS, RECOMPUTE, Division
from .memory import MARGIN, MIXED, Bytes, activations, states
from .shape import Shape
from .software import LATEST, Program, program_named
from .step import LEAST_TOKENS, Inside, Step, inside, step, updating, usable

MICROBATCHES = (1, 2, 4, 8)
FIRST, MAX_ROWS = 5, 12
TIE_RATIO = 1.02  # the plan errs by more
HEAD = ("data", "tensor", "pipe", "ctx", "exp", "ZeRO", "mb", " recompute", "memory", "step", "its MFU", "production")
OPTIONAL_COLUMNS = ("ctx", "exp", "mb")  # columns that are left out where all are 1


class Plans(list):
    """Steps that fit in memory, the fastest first: for each choice of degrees, with parameters sharded and without, the
    one with the best shards, microbatch, chunks and recomputation.  If times agree within SAME, plans
    without warnings come first, then plans that mix fewer kinds of parallelism.

    .first: five that differ in their degrees.  .mixtures: the first of each mixture of kinds of parallelism.
    .tried: possible divisions.  .too_large: the ones that don't fit.  .least: mixture -> the one of them with least
    memory, for mixtures that never fit.  .smallest: the one of all of them with least, or None.
    """

    def __init__(self, steps: Iterable[Step], tried: int, too_large: int, least: Iterable[Step]) -> None:
        steps = list(steps)
        fastest = min((s.time for s in steps), default=1.0)
        super().__init__(sorted(steps, key=lambda s: _order(s, fastest)))
        self.tried, self.too_large = tried, too_large
        self.mixtures = _first_of_each(self, lambda s: s.division.kinds)
        self.first = _first_of_each(self, lambda s: tuple(getattr(s.division, kind) for kind in KINDS))[:FIRST]
        self.shown = self.mixtures[:MAX_ROWS]  # in the picture
        fit = {s.division.kinds for s in self}
        smallest = sorted(least, key=lambda s: s.needed)
        self.smallest = smallest[0] if smallest else None
        self.least = {s.division.kinds: s for s in smallest if s.division.kinds not in fit}

    def __repr__(self) -> str:
        if not self:
            fewest = self.smallest and f"; {self.smallest.division} needs least, {size(self.smallest.needed)}"
            return f"none of {self.tried:,} divisions fits with {MARGIN:.0%} to spare{fewest or ''}"
        first = self[0]
        batch = f"{first.batch:,} sequences of {first.model.length:,} tokens"
        room = f"do not fit into {size(first.capacity)} with {MARGIN:.0%} to spare"
        lines = [f"{first.model.name}, {batch}, {first.machine.name}"]
        lines += [f"  {self.too_large:,} of {self.tried:,} divisions {room}. The first {len(self.first)}:"]
        lines.append(_table(self.first))
        lines += [f"  warning: {words}" for words in first.warnings]
        others = [s for s in self.mixtures if s not in self.first][:MAX_ROWS]
        lines += ["  Why others lose, the best of each other mixture:"] * bool(others)
        lines += [f"    {duration(s.time):>7}  {s.division.short}: {loss_words(s, first)}" for s in others]
        lines += ["  Of these mixtures none fits; what would need least:"] * bool(self.least)
        lines += [f"    {s.needed / 2**30:>3.0f} GiB  {s.division.short}" for s in list(self.least.values())[:FIRST]]
        return "\n".join(lines)

    draw = Later(".plan_charts", "draw_plans")

    def _ipython_display_(self) -> None:
        show(self.draw() if self else None, repr(self))


def loss_words(s: Step, first: Step) -> str:
    """The parts in which a step is slower than the first one: '+1.2 s bubble, +300 ms tensor'."""
    if s.time < first.time * TIE_RATIO:
        more = len(s.division.kinds) > len(first.division.kinds)
        why = ", with a warning" if s.warnings else ", with more kinds to set up" * more
        return f"as fast within {TIE_RATIO - 1:.0%}{why}"
    longer = {part: seconds - first.seconds[part] for part, seconds in s.seconds.items()}
    parts = sorted((part for part in longer if longer[part] > 0.002 * first.time), key=longer.get, reverse=True)[:2]
    again = " for recomputing" * (RECOMPUTE.index(s.division.recompute) > RECOMPUTE.index(first.division.recompute))
    return ", ".join(f"+{duration(longer[part])} {part}{again * (part == 'compute')}" for part in parts)


def _first_of_each(steps: Iterable[Step], key: Callable[[Step], Any]) -> list[Step]:
    """The first of all steps that have the same key."""
    found: dict[Any, Step] = {}
    for s in steps:
        found.setdefault(key(s), s)
    return list(found.values())


def _table(steps: Iterable[Step]) -> str:
    rows = [dict(zip(HEAD, HEAD)), *map(_row, steps)]
    shown = [name for name in HEAD if name not in OPTIONAL_COLUMNS or any(row[name] != "1" for row in rows[1:])]
    right = [k for k, name in enumerate(shown) if name != " recompute"]
    return align([[row[name] for name in shown] for row in rows], right, indent="    ")


def _row(s: Step) -> dict[str, str]:
    d = s.division
    pipe = f"{d.pipeline} x {d.chunks}".removesuffix(" x 1")
    zero = f"{d.shard}{f'/{d.shards}' * (d.copies > 1)}{' once' * d.gathered_once}"
    degrees = (*map(str, (d.data, d.tensor, pipe, d.context, d.experts, zero, d.microbatch)), f" {d.recompute}")
    figures = f"{s.memory.total / 2**30:.0f} GiB", duration(s.time), f"{s.mfu:.0%}", duration(s.production.median)
    return dict(zip(HEAD, (*degrees, *figures)))


def _order(s: Step, fastest: float) -> tuple:
    return int(log(s.time / fastest) / log(TIE_RATIO)), bool(s.warnings), len(s.division.kinds), s.time


def plan(
    model: Shape,
    machine: Machine,
    batch: int,
    *,
    without: Sequence[str] = (),
    shards: Sequence[int] = (1, 2, 3),
    program: str | Program = LATEST,
    bytes_: Bytes = MIXED,
    capacity: float | None = None,
) -> Plans:
    """The Plans of a model on a cluster: the divisions that fit into its memory, the fastest first.

    batch: sequences per step.  without: kinds of parallelism to leave out.  shards: the stages of ZeRO to try.
    program, bytes_, capacity: as `step` takes them.
    Tried are powers of two for tensor, context and experts; tensor ranks stay in a node; a context rank has at least
    LEAST_TOKENS of a sequence, as all published runs have; copies of shards over a node, four nodes, 16, ...
    Raises ValueError for an unknown kind or program, or a machine whose GPUs there are no figures for.
    """
    if unknown := sorted(set(without) - set(KINDS)):
        raise ValueError(f"kinds of parallelism are {', '.join(KINDS)}, not {', '.join(unknown)}.")
    search = _Search(model, machine, batch, program_named(program), bytes_, usable(machine, capacity) / (1 + MARGIN))
    for base in _bases(model, machine, batch, without):
        search.divide(base, shards)

    def price(division: Division) -> Step:
        how = dict(program=program, bytes_=bytes_, capacity=capacity)
        return step(model, division, batch, machine, **how)

    least = (price(division) for _, division in search.least.values())
    return Plans(map(price, search.best.values()), search.tried, search.too_large, least)


class _Variant(NamedTuple):
    """A replica's step with some chunks, microbatch and recomputation.  kept: bytes of activations, by stage."""

    division: Division
    within: Inside
    kept: tuple[float, ...]


class _Search:
    """The best variant of each choice of degrees, with parameters sharded and without.

    Seconds are of a replica's step and of its data ranks' messages, bytes of activations and of states: each is worked
    out once, and added.
    """

    def __init__(
        self, model: Shape, machine: Machine, batch: int, program: Program, bytes_: Bytes, room: float
    ) -> None:
        self.model, self.machine, self.batch, self.program, self.bytes_ = model, machine, batch, program, bytes_
        self.room, self.network = room, network(machine)
        self.best: dict[tuple, Division] = {}
        self.tried = self.too_large = 0
        self.least: dict[tuple, tuple[float, Division]] = {}  # mixture -> bytes, of what is too large

    def divide(self, base: Division, shards: Sequence[int]) -> None:
        """Try all variants of a base, and for each all ways to shard it."""
        variants = sorted(self._variants(base), key=lambda variant: variant.within.time)
        by_chunks: dict[int, list[_Variant]] = {}
        for variant in variants:
            by_chunks.setdefault(variant.division.chunks, []).append(variant)
        fastest = {True: float("inf"), False: float("inf")}  # with parameters sharded, and without
        for sharding in _shardings(base, shards, self.machine):
            sharded = sharding["shard"] == 3
            best, least = fastest[sharded], None
            for chunks, these in by_chunks.items():
                divided = base.with_(chunks=chunks, **sharding)
                if divided.obstacle(self.model, self.batch):
                    continue
                held = [sum(states(self.model, divided, self.bytes_, k)) for k in range(len(these[0].kept))]
                seconds, kinds = None, divided.kinds
                for variant in these:
                    self.tried += 1
                    nbytes = max(map(sum, zip(held, variant.kept)))
                    if nbytes > self.room:
                        self.too_large += 1
                        if kinds not in self.least or nbytes < self.least[kinds][0]:
                            self.least[kinds] = nbytes, variant.division.with_(**sharding)
                    elif variant.within.time < best:
                        if seconds is None:
                            seconds = self._across(divided)
                        if (time := variant.within.time + seconds(variant)) < best:
                            best, least = time, variant
            if least:
                fastest[sharded] = best
                self.best[base, sharded] = least.division.with_(**sharding)

    def _across(self, divided: Division):
        """A function of a variant: the seconds of its data ranks and of its update, under this sharding."""
        calls, overlap = data_calls(self.model, divided, self.network, self.bytes_), self.program.overlap

        def seconds(variant: _Variant) -> float:
            within = variant.within
            update = updating(self.model, divided, within.compute.bandwidth)
            return update + data_messages(divided, calls, overlap, within.microbatches, within.compute).exposed

        return seconds

    def _variants(self, base: Division) -> Iterator[_Variant]:
        recompute = ("none", "pointwise", "mlp", "full") if self.program.flash else ("none", "selective", "full")
        stages = range(min(2, base.pipeline))
        for chunks, microbatch in product(_chunks(self.model, base.pipeline), MICROBATCHES):
            division = base.with_(chunks=chunks, microbatch=microbatch)
            if division.obstacle(self.model, self.batch):
                continue
            for what in recompute:
                d = division.with_(recompute=what)
                kept = (activations(self.model, d, self.batch, k, self.program.flash, self.bytes_) for k in stages)
                within = inside(self.model, d, d.microbatches(self.batch), self.machine, self.program, self.bytes_)
                yield _Variant(d, within, tuple(kept))


def _bases(model: Shape, machine: Machine, batch: int, without: Sequence[str]) -> Iterator[Division]:
    """Degrees of tensor, context, pipeline, experts, and what is left for data."""
    gpus, node = machine.gpus.count, machine.gpus.node
    contexts = [c for c in _powers(gpus) if c == 1 or model.length / c >= LEAST_TOKENS]
    pipelines = [k for k in range(1, min(gpus, model.layers) + 1) if gpus % k == 0]
    experts = _powers(model.experts or 1)
    for tensor, context, pipeline, shared in product(_powers(node), contexts, pipelines, experts):
        if gpus % (tensor * context * pipeline):
            continue
        division = Division(gpus // (tensor * context * pipeline), tensor, pipeline, context, experts=shared)
        if not set(division.kinds) & set(without) and not division.obstacle(model, batch):
            yield division


def _shardings(base: Division, stages: Sequence[int], machine: Machine) -> Iterator[dict]:
    """Ways to shard: the stage, over how many, and when parameters are gathered."""
    replicas = base.replicas
    if replicas == 1:
        yield dict(shard=min(stages), copies=1, gather="microbatch")
        return
    groups, ranks = [replicas], max(1, machine.gpus.node // base.tensor)  # of a node
    while 1 < ranks < replicas:
        if replicas % ranks == 0:
            groups.append(ranks)
        ranks *= 4
    for stage, shards in product(stages, groups):
        for gather in ("microbatch", "step") if stage == 3 else ("microbatch",):
            yield dict(shard=stage, copies=replicas // shards, gather=gather)


def _chunks(model: Shape, pipeline: int) -> list[int]:
    """Stages per rank to try: one, two, four, and one per layer."""
    layers = -(-model.layers // pipeline)
    return sorted({c for c in (1, 2, 4, layers) if layers % c == 0}) if pipeline > 1 else [1]


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length()) if most % 2**k == 0]
