"""NCCL's figures that no GPU changes, and its search for channels: how many it makes, and how fast each.

The figures of a GPU are in gpus.csv.  NCCL 2.30.7 (github.com/NVIDIA/nccl, commit 5067397).  Seconds, bytes and bytes/s
here; microseconds and GB/s there.  Three figures are in the order LL, LL128, Simple where they belong to protocols,
and in the order one node, two, more where they belong to nodes.
"""

from __future__ import annotations

from typing import NamedTuple

from .gpu import Gpu

PROTOCOLS = ("LL", "LL128", "Simple")
SIMPLE = PROTOCOLS.index("Simple")

# --- src/graph/tuning.cc: ncclTunerConstantsDefaults ------------------------------------------

BASE_SECONDS = {  # before the first hop
    "Tree": (6.8e-6, 14.0e-6, 8.4e-6),
    "Ring": (6.6e-6, 14.0e-6, 8.4e-6),
    "PAT": (8.0e-6, 8.0e-6, 8.0e-6),
    "NVLS": (0.0, 0.0, 0.0),
    "NVLSTree": (0.0, 0.0, 0.0),
}
NVLINK_HOP_SECONDS = {
    "Tree": (0.6e-6, 1.25e-6, 4.0e-6),
    "Ring": (0.6e-6, 1.9e-6, 3.4e-6),
    "NVLS": (0.0, 0.0, 25e-6),
    "NVLSTree": (0.0, 0.0, 25e-6),
}
NETWORK_HOP_SECONDS = {
    "Tree": (5.0e-6, 8.5e-6, 14.0e-6),
    "Ring": (2.7e-6, 4.0e-6, 14.0e-6),
    "PAT": (0.0, 0.0, 14.0e-6),
    "NVLS": (0.0, 0.0, 18.0e-6),
    "NVLSTree": (0.0, 0.0, 20.9e-6),
}
VERSIONS = ("2.26", "2.30")  # 2.26.2 stands for what is older than 2.28; other than 2.30 it has, where the switch adds,
OLD_NVLS_TREE_HOP_SECONDS = 14.0e-6
OLD_NVLS_RATE = 5 / 6  # of the bandwidth, for every number of ranks
POST_SECONDS = 1e-6  # getNetOverhead: the processor hands a message to a network card (Intel's; 2 µs on AMD's)
RATES = (0.5, 0.92, 1.0)  # of the bandwidth, what is payload: 4 of 8 bytes; 120 of 128, and a little less; all
CARD_RATE = 48 / 50  # of a card's bandwidth: the fastest channels for 100, 200, 400 and 800 Gb/s (speedArrayInter)
TREE_RATE, TREE_LL_RATE, PAT_RATE = 0.92, 1 / 3.8, 0.75
TREE_LL128_RATE = (7 / 9, 120 / 128)  # one node, several
LL_NETWORK_CAP = (39.0e9, 39.0e9, 20.4e9)  # llMaxBws between nodes with Intel processors
PLATEAU = 1.4  # ncclTopoGetAlgoTime: latency of the Simple ring's all_reduce between nodes, from Ampere on
PAT_STEP_SECONDS = 2.8e-6  # of each rank
TREE_CORRECTION = {  # treeCorrectionFactor: of a tree's bandwidth, for 64 B, 128 B, ... 512 MiB
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip

# --- src/graph/search.cc: channels of nodes with an NVSwitch -----------------------------------
#
# NCCL tries speeds from a list, the fastest first, and counts how many channels of that speed fit through the links.
# Behind a switch all GPUs are alike, so that counting is dividing.

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
    best = Channels(0, 0.0, 0.0)
    for speed in gpu.generation.speeds if one_node else gpu.generation.network_speeds:
        if best.count and speed < 0.49 * best.between:
            break
        if one_node:
            count = int(gpu.nvlink / speed + ROUNDING)
        else:  # a channel leaves a node through one card: one GPU of the node does not send it on by NVLink
            count = node * int(nic / speed + ROUNDING)
            if node > 1:
                count = min(count, int(gpu.nvlink * node / (node - 1) / speed + ROUNDING))
        count = min(count, MAX_CHANNELS)
        if count * speed > best.bandwidth:
            best = Channels(count, speed, speed)
    capability = gpu.generation.compute_capability
    if best.between >= 25e9 and not (
        capability >= 90 and best.between < 50e9 and best.count > 4
    ):  # ncclTopoDupChannels
        count = min(2 * best.count, MAX_CHANNELS)
        speed = best.between * best.count / count
        best = Channels(count, speed, speed)
    return best


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
