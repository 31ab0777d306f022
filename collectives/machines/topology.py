"""A machine as data: how long a message takes between two ranks, and what they share on the way.

Seconds, bytes, bytes per second.  Ranks are numbered node by node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from .networks import Network

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Port:
    """One rank's connection to a network: an NVLink interface, its own NIC."""

    name: str
    bandwidth: float  # bytes/s; each way if duplex, both ways together if not
    duplex: bool = True


@dataclass(frozen=True)
class Level:
    """Ranks that reach each other without leaving a group: a node, a switch, a whole cluster.

    With rails, the i-th of every `rails` ranks are joined, as are the network cards of a rail-optimized cluster: card i
    of every node at switch i.  Two nodes of four, size 8, rails 4, make four groups of two:

            switch    0     1     2     3
                      |     |     |     |
            node 0    0     1     2     3
                      |     |     |     |
            node 1    4     5     6     7
    """

    name: str
    size: int  # ranks in a group; with rails, in all groups that share their nodes
    latency: float | tuple[float, ...]  # seconds of the smallest message, by any protocol or by each of the machine's
    port: Port  # through which a rank's messages at this level go; levels may share one
    rails: int = 1
    uplink: float = inf  # bytes/s, each way, between one group of this level and everything outside it
    bus: float = inf  # bytes/s of all messages together that stay in one group of this level: a shared medium

    def group(self, rank: np.ndarray) -> np.ndarray:
        """The number of the group that each rank is in."""
        return rank // self.size * self.rails + rank % self.rails


@dataclass(frozen=True)
class Protocol:
    """One way in which a library moves bytes."""

    name: str
    start: float = 0.0  # seconds of a collective before its first step
    rate: float = 1.0  # of the bandwidth, what is left for payload
    cap: float = inf  # bytes/s that a rank sends or receives at most by it, whatever its ports could carry


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine, as NCCL has to know them; ranks are numbered node by node."""

    name: str
    node: int  # how many of them NVLink joins
    nodes: int = 1
    nic: float = 0.0  # bytes/s of each one's network card as sold, each way
    algorithms: tuple[str, ...] = ()  # that may be used between nodes; empty for all
    protocols: tuple[str, ...] = ()  # likewise
    inside: Network | None = None  # within a node; None for NCCL's own figures alone, without a band
    between: Network | None = None  # likewise, between nodes

    @property
    def count(self) -> int:
        return self.node * self.nodes

    def runs(self, algorithm: str, protocol: str) -> bool:
        """Whether the network lets NCCL use this combination between nodes."""
        return algorithm in (self.algorithms or (algorithm,)) and protocol in (self.protocols or (protocol,))


@dataclass(frozen=True)
class Machine:
    """Levels from the inside out; a message goes through the first that holds both its ranks."""

    name: str
    levels: tuple[Level, ...]
    protocols: tuple[Protocol, ...] = (Protocol("plain"),)  # the cheapest is taken, as NCCL does
    overhead: float = 0.0  # seconds that each message of a step costs a rank, one after the other
    addition: float = 0.0  # seconds to add one received byte to one's own (γ)
    source: str = ""  # of the figures
    gpus: Gpus | None = None  # for machines that NCCL runs on; None where it does not, or is not described
    with_ = replace  # a machine like this one but for the fields named

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError("a machine needs at least one level.")
        for level, latencies in zip(self.levels, self.latencies):
            if len(latencies) != len(self.protocols):
                counts = f"{len(latencies)} latencies for {len(self.protocols)} protocols"
                raise ValueError(f"level {level.name} has {counts}: give one number, or one for each.")
            bandwidths = level.port.bandwidth, level.uplink, level.bus
            if min(latencies) < 0 or min(bandwidths) <= 0 or level.size % level.rails:
                allowed = "latencies are 0 or more, bandwidths more than 0, and rails divide its size."
                raise ValueError(f"level {level.name}: {allowed}")
        sizes = [level.size for level in self.levels]
        if any(outer % inner for inner, outer in zip(sizes, sizes[1:])):
            raise ValueError(f"each level's size must be a multiple of the one inside it, not {sizes}.")

    @property
    def most_ranks(self) -> int:
        return self.levels[-1].size

    @property
    def latencies(self) -> list[tuple[float, ...]]:
        """Seconds, per level and protocol."""
        each = (level.latency for level in self.levels)
        return [latency if isinstance(latency, tuple) else (latency,) * len(self.protocols) for latency in each]

    def level_of(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """For each message, the index of the first level that holds both its ranks."""
        import numpy as np  # which a page has not, see cost/message_cost.py

        together = [level.group(source) == level.group(target) for level in self.levels[:-1]]
        return np.argmax([*together, np.ones(len(source), bool)], axis=0)


def flat(latency: float, bandwidth: float, addition: float = 0.0, duplex: bool = True, name: str = "flat") -> Machine:
    """The textbook's machine: α = latency and β = 1 / bandwidth between any two ranks, γ = addition."""
    return Machine(name, (Level("network", 1 << 30, latency, Port("port", bandwidth, duplex)),), addition=addition)
