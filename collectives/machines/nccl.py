"""What NCCL knows of algorithms and protocols: the constants of its own cost model that no GPU changes.

Those of a GPU are in gpus.csv.  NCCL 2.30.7 (github.com/NVIDIA/nccl, commit 5067397).  Seconds, bytes and bytes/s
here; microseconds and GB/s there.  Three figures are in the order LL, LL128, Simple where they belong to protocols,
and in the order one node, two, more where they belong to nodes.
"""

from __future__ import annotations

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
