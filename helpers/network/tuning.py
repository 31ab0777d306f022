"""What NCCL knows of GPUs, links and protocols: the constants of its own cost model.

NCCL 2.30.7 (github.com/NVIDIA/nccl, commit 5067397); each block names its file.  Seconds, bytes
and bytes/s here; microseconds and GB/s there.  Three figures are in the order LL, LL128, Simple
where they belong to protocols, and in the order one node, two, more where they belong to nodes.
"""

from __future__ import annotations

from typing import NamedTuple

PROTOCOLS = ("LL", "LL128", "Simple")

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
LL_RATE, LL128_RATE = 0.5, 0.92  # of the bandwidth, what is payload: 4 of 8 bytes; 120 of 128, and a little less
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


class Generation(NamedTuple):
    """GPUs of one compute capability, as NCCL tells them apart."""

    link: float  # bytes/s of one NVLink, each way: src/graph/topo.h, SM80_NVLINK_BW and the like
    ll_cap: float  # llMaxBws inside a node: bus bandwidth that LL reaches
    ring_ll128: float  # perChMaxRingLL128Bws: of one channel
    tree_ll128: tuple[float, ...]  # perChMaxTreeLL128Bws, for one node, two, more
    tree: tuple[float, ...]  # perChMaxTreeBws
    nvls_tree: tuple[float, ...]  # perChMaxNVLSTreeBws
    nvls: float  # nvlsEfficiency: of the bandwidth, what the switch's adders reach; 0: it has none
    nvls_channels: tuple[int, ...]  # src/transport/nvls.cc: one node, two, more
    speeds: tuple[float, ...]  # src/graph/search.cc, speedArrayIntra: channels may have these, in one node
    network_speeds: tuple[float, ...]  # speedArrayInter: likewise, between nodes


def _gb(*values: float) -> tuple[float, ...]:
    return tuple(v * 1e9 for v in values)


AMPERE = Generation(
    20.0e9, 87.7e9, 20e9, _gb(20, 20, 20), _gb(24, 23.6, 17.8), _gb(0, 0, 0), 0.0, (0, 0, 0),
    _gb(40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    _gb(48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
)  # fmt: skip
HOPPER = Generation(
    20.6e9, 141e9, 36.7e9, _gb(36.7, 36.7, 29), _gb(38.7, 41.4, 36), _gb(0, 57.7, 45.5), 0.85, (16, 16, 16),
    _gb(60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    _gb(48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
)  # fmt: skip
BLACKWELL = Generation(
    40.1e9, 282e9, 40e9, _gb(55.6, 31.67, 20), _gb(70, 42.8, 24), _gb(0, 96, 80), 0.74, (24, 32, 24),
    _gb(90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    _gb(96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
)  # fmt: skip


class Gpu(NamedTuple):
    generation: Generation
    links: int  # NVLinks of a GPU that lead to the switch: NVIDIA's data sheets
    x86: bool = True  # the host's processor: NCCL corrects NVLSTree on Blackwell only there

    @property
    def nvlink(self) -> float:
        """Bytes/s of all its NVLinks, each way, after the links' own headers (a fifth: NVIDIA/nccl-tests#212)."""
        return self.links * self.generation.link


GPUS = {
    "A100": Gpu(AMPERE, 12),
    "H100": Gpu(HOPPER, 18),
    "H200": Gpu(HOPPER, 18),
    "B200": Gpu(BLACKWELL, 18),
    "GB200": Gpu(BLACKWELL, 18, x86=False),
}


def gpu(name: str) -> Gpu:
    """The figures of a GPU by its name.  Raises ValueError for one that there are no figures for."""
    if name not in GPUS:
        raise ValueError(f"no figures for {name!r}, only for {', '.join(GPUS)}.")
    return GPUS[name]
