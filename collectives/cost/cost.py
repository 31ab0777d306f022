"""The cost of a schedule on any machine: seconds, and their parts.

The model is α-β with contention.  All messages of a step start together; each takes
    latency + overhead of its ranks' messages + the slowest thing it shares + its addition,
where a port, uplink or bus takes (bytes of all messages of this step through it) / bandwidth.
The step takes as long as its slowest message, and the next begins after it.

Only in a step repeated around a ring, or around several, each rank waits for its neighbor alone, so differing hops are
paid once per round: a step takes the mean of its ring's hops, but never less than its slowest link needs for the bytes.
NCCL's own choice on GPUs is priced by tuner.py.
"""

from collections import namedtuple

import numpy as np

from ..algorithms import Schedule
from ..algorithms.outline import outline
from ..algorithms.rounds import Outline, Phase
from ..machines.gpu import gpu as gpu_of
from ..machines.topology import Machine
from .result import Cost, check_bytes

# Seconds of a step as a straight line over the buffer's bytes, two of them per byte; limit: the slowest thing.
StepTime = namedtuple("StepTime", ("latency", "transfer", "addition", "limit"))


class Price:
    """A schedule or outline on a machine; `price(nbytes)` is the Cost of a buffer of that size, at once.

    Raises ValueError if the machine has fewer ranks.
    """

    def __init__(self, what: Schedule | Outline, machine: Machine) -> None:
        if what.world_size > machine.most_ranks:
            raise ValueError(f"{machine.name} has {machine.most_ranks} ranks, and the algorithm {what.world_size}.")
        self.what, self.machine = what if isinstance(what, Outline) else outline(what), machine
        # The repetitions of each phase; per protocol its lines, of which the largest counts.
        self.phases = [(phase.times, _lines(phase, machine, what.world_size)) for phase in self.what]
        self.steps = sum(times for times, _ in self.phases)

    def __call__(self, nbytes: float, protocol: str | None = None) -> Cost:
        """The Cost of S = nbytes by a protocol, or the fastest.  Raises ValueError for an unknown one, or S below 0."""
        check_bytes(nbytes)
        names = [p.name for p in self.machine.protocols]
        if protocol not in (None, *names):
            raise ValueError(f"{self.machine.name} has no protocol {protocol!r}, only {', '.join(names)}.")
        costs = (self._by(k, nbytes) for k, name in enumerate(names) if protocol in (None, name))
        return min(costs, key=lambda c: c.seconds)

    def _by(self, k: int, nbytes: float) -> Cost:
        what, how = self.what, self.machine.protocols[k]
        parts = [how.start, 0.0, 0.0, 0.0]
        limits: dict[str, float] = {}
        for times, lines in self.phases:
            line = max(lines[k], key=lambda line: line.latency + (line.transfer + line.addition) * nbytes)
            parts[1] += times * line.latency
            parts[2] += times * line.transfer * nbytes
            parts[3] += times * line.addition * nbytes
            limits[line.limit] = limits.get(line.limit, 0.0) + times * line.transfer * nbytes
        return Cost(repr(what), self.machine.name, what.collective, what.world_size, nbytes, how.name, self.steps,
                    float(sum(parts)), *map(float, parts), limits)  # fmt: skip


price = Price  # as one asks for it: price(ring_all_reduce(8), rails(1))(2**30)


def cost(what: Schedule | Outline, nbytes: float, machine: Machine, protocol: str | None = None) -> Cost:
    """Seconds that a collective of S = nbytes takes on this machine, and their parts.

    S is the whole buffer: for all_gather a rank's result, for reduce_scatter and all_to_all its input.
    """
    return price(what, machine)(nbytes, protocol)


def _lines(phase: Phase, machine: Machine, n: int) -> list[list[StepTime]]:
    """Per protocol, the lines of which the largest is the time of one step of this phase."""
    source, target, share = phase.source, phase.target, phase.share
    level = machine.level_of(source, target)
    transfer, limit = _transfer(phase, machine, level, n)
    addition = np.bincount(target, share * phase.adds, n)[target] * machine.addition
    handled = _busiest(source, target, None, n) if machine.overhead else np.ones(len(source), int)
    busiest, latencies = _busiest(source, target, share, n), np.array(machine.latencies)
    per_protocol = []
    for k, protocol in enumerate(machine.protocols):
        hop, wire = latencies[level, k] + machine.overhead * handled, transfer / protocol.rate
        slope = np.maximum(wire, busiest / protocol.cap)
        parts, limits = [hop, slope, addition], np.where(slope > wire, f"protocol {protocol.name}", limit)
        if phase.ring is None:
            lines, kind = [], level * (handled.max() + 1) + handled
        else:
            slowest = np.argmax(slope)
            lines = [StepTime(0.0, float(slope[slowest]), 0.0, limits[slowest])]
            parts = [np.bincount(phase.ring, part) / np.bincount(phase.ring) for part in parts]  # a ring's means
            kind = np.unique(np.round(parts[0], 15), return_inverse=True)[1]  # rings with the same mix of hops
            limits = np.full(len(kind), limits[slowest], object)
        slope = parts[1] + parts[2]
        for alike in (np.flatnonzero(kind == k) for k in np.flatnonzero(np.bincount(kind))):
            i = alike[np.argmax(slope[alike])]  # of parallel lines the top one
            lines.append(StepTime(*(float(part[i]) for part in parts), limits[i]))
        per_protocol.append(lines)
    return per_protocol


def _busiest(source: np.ndarray, target: np.ndarray, load: np.ndarray | None, n: int, duplex=True) -> np.ndarray:
    """Per message, the load (None: the number) that its sender sends or its receiver gets; if not duplex, both ways."""
    out, into = np.bincount(source, load, n), np.bincount(target, load, n)
    if not duplex:
        out = into = out + into
    return np.maximum(out[source], into[target])


def _transfer(phase: Phase, machine: Machine, level: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Per message, the seconds per byte of S on the slowest thing that it shares, and the name of that."""
    source, target, share = phase.source, phase.target, phase.share
    slowest, limit = np.zeros(len(source)), np.full(len(source), "nothing", object)

    def shared(name: str, where: np.ndarray, seconds: np.ndarray) -> None:
        more = np.zeros(len(source))
        more[where] = seconds
        limit[more > slowest] = name
        np.maximum(slowest, more, out=slowest)

    for port in {here.port.name: here.port for here in machine.levels}.values():
        uses = np.array([here.port.name == port.name for here in machine.levels])[level]
        shared(port.name, uses, _busiest(source[uses], target[uses], share[uses], n, port.duplex) / port.bandwidth)
    for k, here in enumerate(machine.levels):
        if np.isfinite(here.uplink):
            leaves = level > k
            groups = here.group(source[leaves]), here.group(target[leaves])
            shared(f"{here.name} uplink", leaves, _busiest(*groups, share[leaves], n) / here.uplink)
        if np.isfinite(here.bus):
            stays = level == k
            g = here.group(source[stays])
            shared(f"{here.name} bus", stays, np.bincount(g, share[stays], n)[g] / here.bus)
    return slowest, limit


UTILIZATION = 0.4  # of the peak: Llama 3 405B on 8,192 to 16,384 H100 reaches 38 to 43% (arXiv 2407.21783, table 4)


def training_flops(parameters: float, tokens: float) -> float:
    """Floating point operations of a training step: 2 a parameter and token forward, 4 backward (arXiv 2001.08361).

    Without attention's own products, which count where sequences are long.
    """
    return 6 * parameters * tokens


def compute_seconds(flops: float, gpu: str = "H100", utilization: float = UTILIZATION) -> float:
    """Seconds that one GPU takes for `flops` floating point operations in bf16: as much of a collective can hide.

    utilization: the share of its peak that it reaches, 0 to 1.  Raises ValueError outside that, or for an unknown peak.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"a utilization is more than 0 and at most 1, not {utilization}.")
    return flops / (gpu_of(gpu).value("peak", "compute_seconds()") * utilization)
