"""How many channels NCCL makes, and how fast each: its search (src/graph/search.cc) for nodes with an NVSwitch.

NCCL tries speeds from a list, the fastest first, and counts how many channels of that speed fit
through the links.  Behind a switch all GPUs are alike, so that counting is dividing.
"""

from __future__ import annotations

from typing import NamedTuple

from .gpu import Gpu

MAX_CHANNELS = 32  # MAXCHANNELS / 2
MAX_HEADS = 32  # NCCL_MAX_NVLS_ARITY
ROUNDING = 1e-6


class Channels(NamedTuple):
    count: int
    inside: float  # bytes/s of one channel, inside a node
    between: float  # and between nodes

    @property
    def bandwidth(self) -> float:
        return self.count * self.between


def ring_channels(gpu: Gpu, node: int, nodes: int, nic: float) -> Channels:
    """The channels of rings and trees: `node` GPUs in each node that take part, nic bytes/s of each one's card."""
    one_node = nodes == 1
    found = Channels(0, 0.0, 0.0)
    for speed in gpu.generation.speeds if one_node else gpu.generation.network_speeds:
        if found.count and speed < 0.49 * found.between:
            break
        if one_node:
            count = int(gpu.nvlink / speed + ROUNDING)
        else:  # a channel leaves a node through one card: one GPU of the node does not send it on by NVLink
            count = node * int(nic / speed + ROUNDING)
            if node > 1:
                count = min(count, int(gpu.nvlink * node / (node - 1) / speed + ROUNDING))
        count = min(count, MAX_CHANNELS)
        if count * speed > found.bandwidth:
            found = Channels(count, speed, speed)
    newer = gpu.generation.nvls > 0
    if found.between >= 25e9 and not (newer and found.between < 50e9 and found.count > 4):  # ncclTopoDupChannels
        count = min(2 * found.count, MAX_CHANNELS)
        speed = found.between * found.count / count
        found = Channels(count, speed, speed)
    return found


def tree_channels(ring: Channels, gpu: Gpu, node: int, nodes: int) -> Channels:
    """As many as rings have; between two nodes a channel may be up to twice as fast inside as between them."""
    if nodes != 2 or not ring.count:
        return ring
    fits = gpu.nvlink * node / max(node - 1, 1) / ring.count
    faster = [s for s in gpu.generation.network_speeds if s <= min(fits, 2 * ring.between) + ROUNDING]
    return ring._replace(inside=max(faster, default=ring.inside))


def nvls_channels(gpu: Gpu, node: int, nodes: int, nic: float) -> Channels:
    """One channel for each head, the GPU that pulls its part of the sum out of the switch: (heads + 1) loads a GPU."""
    heads = min(node, MAX_HEADS)
    speeds = gpu.generation.speeds if nodes == 1 else [s for s in gpu.generation.network_speeds if s <= nic]
    inside = max((s for s in speeds if s * (heads + 1) <= gpu.nvlink + ROUNDING), default=0.0)
    if not gpu.generation.nvls or heads < 2 or not inside:
        return Channels(0, 0.0, 0.0)
    between = inside if nodes == 1 else max(s for s in speeds if s < 2 * inside or s == inside)
    return Channels(heads, inside, between)
