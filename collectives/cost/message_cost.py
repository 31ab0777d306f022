"""The cost of a schedule, message by message and with the standard library alone: for a page, which has no numpy.

The model is cost.py's, which computes all messages of a step at once and takes outlines of any size.
"""

from collections import Counter
from typing import Hashable, Iterable, NamedTuple

from ..algorithms.alike import similar_steps
from ..algorithms.schedule import Message, Schedule
from ..machines.topology import Machine


class _Hop(NamedTuple):
    """One message of a step: the index of its level, messages that a rank of it handles, seconds for each byte of S."""

    level: int
    handled: int
    share: float  # of S, that its busier rank sends or receives
    transfer: float
    addition: float


def seconds(s: Schedule, nbytes: float, machine: Machine) -> float:
    """Seconds of a buffer of S = nbytes by the machine's fastest protocol, as `cost(s, nbytes, machine).seconds`."""
    groups = [(len(steps), _hops(steps[0], s.cuts, machine), ring) for steps, ring in similar_steps(s)]
    return min(
        protocol.start + sum(times * _step(hops, ring, nbytes, machine, k) for times, hops, ring in groups)
        for k, protocol in enumerate(machine.protocols)
    )


def _step(hops: list[_Hop], ring: list[int] | None, nbytes: float, machine: Machine, k: int) -> float:
    """Seconds of a step by protocol k."""
    protocol, latencies = machine.protocols[k], machine.latencies
    waits = [latencies[hop.level][k] + machine.overhead * hop.handled for hop in hops]
    slopes = [max(hop.transfer / protocol.rate, hop.share / protocol.cap) for hop in hops]
    times = [wait + (slope + hop.addition) * nbytes for wait, slope, hop in zip(waits, slopes, hops)]
    if ring is None:
        return max(times)
    sums, counts = Counter(), Counter(ring)  # each rank of a ring waits for its neighbor alone: the mean counts
    for which, time in zip(ring, times):
        sums[which] += time
    return max(max(slopes) * nbytes, *(sums[which] / counts[which] for which in counts))


def _hops(step: list[Message], cuts: int, machine: Machine) -> list[_Hop]:
    levels = machine.levels
    at = [_level(m, machine) for m in step]
    shares = [len(m.chunks) / cuts for m in step]
    ends = [(m.source, m.target) for m in step]
    handled, busiest = _busiest(ends, [1] * len(step)), _busiest(ends, shares)
    added = Counter()
    for m, share in zip(step, shares):
        added[m.target] += share * m.adds
    transfer = [0.0] * len(step)

    def shared(which: list[int], loads: list[float], rate: float) -> None:
        for i, load in zip(which, loads):
            transfer[i] = max(transfer[i], load / rate)

    for port in {level.port.name: level.port for level in levels}.values():
        uses = [i for i, k in enumerate(at) if levels[k].port.name == port.name]
        shared(uses, _busiest([ends[i] for i in uses], [shares[i] for i in uses], port.duplex), port.bandwidth)
    for k, level in enumerate(levels):
        leaves, stays = ([i for i, there in enumerate(at) if fits(there)] for fits in (k.__lt__, k.__eq__))
        groups = [tuple(map(level.group, ends[i])) for i in leaves]
        shared(leaves, _busiest(groups, [shares[i] for i in leaves]), level.uplink)
        bus = Counter()
        for i in stays:
            bus[level.group(ends[i][0])] += shares[i]
        shared(stays, [bus[level.group(ends[i][0])] for i in stays], level.bus)
    additions = (added[m.target] * machine.addition for m in step)
    return list(map(_Hop, at, handled, busiest, transfer, additions))


def _level(m: Message, machine: Machine) -> int:
    """The index of the first level that holds both ranks."""
    inner = machine.levels[:-1]
    return next((k for k, level in enumerate(inner) if level.group(m.source) == level.group(m.target)), len(inner))


def _busiest(ends: Iterable[tuple[Hashable, Hashable]], loads: list[float], duplex: bool = True) -> list[float]:
    """Per message, the load that its sender sends or its receiver gets; if not duplex, both ways."""
    out, into = Counter(), Counter()
    for (source, target), load in zip(ends, loads):
        out[source] += load
        into[target] += load
    if not duplex:
        out = into = out + into
    return [max(out[source], into[target]) for source, target in ends]
