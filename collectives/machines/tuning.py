"""NCCL's figures that no GPU changes, its search for channels, and how it cuts a buffer into chunks.

The figures of a GPU are in gpus.csv.  NCCL 2.30.7 (github.com/NVIDIA/nccl, commit 5067397).  Seconds, bytes and bytes/s
here; microseconds and GB/s there.  Three figures are in the order LL, LL128, Simple where they belong to protocols,
and in the order one node, two, more where they belong to nodes.
"""

from math import ceil, inf
from typing import NamedTuple

from .gpu import Gpu

PROTOCOLS = ("LL", "LL128", "Simple")
SIMPLE = PROTOCOLS.index("Simple")

# --- src/graph/tuning.cc: ncclTunerConstantsDefaults ------------------------------------------

BASE_SECONDS = {  # before the first hop
    "Tree": (6.8e-6, 14.0e-6, 8.4e-6),
    "Ring": (6.6e-6, 14.0e-6, 8.4e-6),
    "PAT": (8.0e-6, 8.0e-6, 8.0e-6),
}  # of NVLS and NVLSTree 0
NVLINK_HOP_SECONDS = {
    "Tree": (0.6e-6, 1.25e-6, 4.0e-6),
    "Ring": (0.6e-6, 1.9e-6, 3.4e-6),
    "NVLS": (0.0, 0.0, 25e-6),
    "NVLSTree": (0.0, 0.0, 25e-6),
}
NETWORK_HOP_SECONDS = {
    "Tree": (5.0e-6, 8.5e-6, 14.0e-6),
    "Ring": (2.7e-6, 4.0e-6, 14.0e-6),
    "NVLS": (0.0, 0.0, 18.0e-6),
    "NVLSTree": (0.0, 0.0, 20.9e-6),
}
VERSIONS = ("2.26", "2.30")  # 2.26.2 represents versions before 2.28; unlike 2.30 it has, where the switch adds,
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
# NCCL tries speeds from a list, the fastest first, and counts how many channels of that speed fit through the links.
# Behind a switch all GPUs are alike, so that counting is dividing.

MAX_CHANNELS = 32  # MAXCHANNELS / 2
MAX_HEADS = 32  # NCCL_MAX_NVLS_ARITY
ROUNDING = 1e-6


class Channels(NamedTuple):
    count: int = 0
    inside: float = 0.0  # bytes/s of one channel, inside a node
    between: float = 0.0  # and between nodes


def ring_channels(gpu: Gpu, node: int, nodes: int, nic: float) -> Channels:
    """The channels of rings and trees: `node` GPUs in each node that take part, nic bytes/s of each one's card."""
    one_node = nodes == 1
    best = Channels()
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
        if count * speed > best.count * best.between:
            best = Channels(count, speed, speed)
    enough = gpu.generation.compute_capability >= 90 and best.between < 50e9 and best.count > 4
    if best.between >= 25e9 and not enough:  # ncclTopoDupChannels
        count = min(2 * best.count, MAX_CHANNELS)
        speed = best.between * best.count / count
        return Channels(count, speed, speed)
    return best


def bus_caps(gpu: Gpu, ring: Channels, nodes: int) -> tuple[float, float, float]:
    """Bus bandwidth in bytes/s that rings reach at most, by protocol."""
    ll = gpu.generation.ll_cap if nodes == 1 else LL_NETWORK_CAP[min(nodes, 3) - 1]
    return ll, ring.count * gpu.generation.ring_ll128, inf


def tree_speed(ring: Channels, gpu: Gpu, node: int, nodes: int) -> float:
    """Bytes/s of a tree's channel, of which there are as many as a ring's; two nodes may have up to twice a ring's."""
    if nodes != 2 or not ring.count:
        return ring.between
    fits = gpu.nvlink * node / max(node - 1, 1) / ring.count
    faster = [s for s in gpu.generation.network_speeds if s <= min(fits, 2 * ring.between) + ROUNDING]
    return max(faster, default=ring.between)


def nvls_channels(gpu: Gpu, node: int, nodes: int, nic: float) -> Channels:
    """One channel for each head, the GPU that pulls its part of the sum out of the switch: (heads + 1) loads a GPU.

    Between nodes a head's card bounds what leaves the node, and not what NVLink carries inside it (two nodes of eight
    B200 reach 718 GB/s of bus bandwidth over cards of 50).
    """
    heads = min(node, MAX_HEADS)
    speeds = gpu.generation.speeds if nodes == 1 else gpu.generation.network_speeds
    inside = max((s for s in speeds if s * (heads + 1) <= gpu.nvlink + ROUNDING), default=0.0)
    if not gpu.generation.nvls or heads < 2 or not inside:
        return Channels()
    crossing = [s for s in speeds if s <= nic and (s < 2 * inside or s == inside)]
    between = inside if nodes == 1 else max(crossing, default=0.0)
    if not between:
        return Channels()
    return Channels(heads, inside, between)


# --- chunks of a collective in the switch (NVLS) -----------------------------------------------
# A round takes one chunk of every head on every channel.  In it the stages work at the same time, each on the chunks of
# another round: scatter into the switch's buffers, reduce there, gather (src/device/all_reduce.h); between nodes each
# level of the tree, up and down, is a stage too.  So `rounds` rounds take rounds + stages - 1 turns, and each turn ends
# with a handshake.  Small buffers get small chunks, and then the handshakes show (src/enqueue.cc, calcCollChunking).
# NCCL's own estimate leaves this out: it has one latency and one bandwidth for all sizes.

KIB = 2**10
LARGEST_CHUNK_BYTES = 128 * KIB  # NCCL_NVLS_CHUNKSIZE
SMALLER_CHUNK_BYTES = 64 * KIB  # src/transport/nvls.cc: between nodes from 4 on, and on Blackwell
# (rounds, bytes): with fewer rounds than that, chunks are at most so large.
IN_A_NODE = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
BETWEEN_NODES = ((32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB))


CARD_HANDSHAKE_SECONDS = (
    25e-6  # fitted: a turn's where the cards are the limit (two nodes of 8 x B200, sweeps.csv, "vultr")
)
DEEPEST_TURNS = 5  # fitted likewise: with more rounds than that the turns hide behind the cards
FILL_SHARE = 0.55  # fitted likewise: of the pipeline, while it fills


class Chunking(NamedTuple):
    """Chunks of one collective: how large, how many at a time, through how many stages."""

    lanes: int  # chunks of a round: channels x heads
    largest: int  # bytes of the largest chunk
    stages: int
    handshake: float  # seconds a turn
    smaller: tuple[tuple[int, int], ...]  # IN_A_NODE or BETWEEN_NODES
    bandwidth: float  # S a second with the largest chunks, their handshakes in it: NCCL's own figure

    def chunk(self, nbytes: float) -> int:
        """Bytes of a chunk of a buffer of nbytes."""
        size = self.largest
        for rounds, limit in self.smaller:
            if nbytes < rounds * self.lanes * size:
                size = min(size, limit)
        return size

    def rounds(self, nbytes: float) -> int:
        return max(1, ceil(nbytes / (self.lanes * self.chunk(nbytes))))

    def seconds(self, nbytes: float) -> tuple[float, float]:
        """(handshakes and filling, transfer) in seconds."""
        whole = self.lanes * self.largest
        slope = max(1 / self.bandwidth - self.handshake / whole, 0.0)
        filling = (self.stages - 1) * slope * min(nbytes, self.lanes * self.chunk(nbytes))
        return (self.rounds(nbytes) + self.stages - 1) * self.handshake + filling, slope * nbytes


class AtCards(Chunking):
    """Chunks where the NICs are slower than the switch: they never wait, and hide most turns' handshakes."""

    __slots__ = ()

    def seconds(self, nbytes: float) -> tuple[float, float]:
        filling = (self.stages - 1) * FILL_SHARE * min(nbytes, self.lanes * self.chunk(nbytes)) / self.bandwidth
        turns = min(self.rounds(nbytes), DEEPEST_TURNS) + self.stages - 1
        return turns * self.handshake + filling, nbytes / self.bandwidth
