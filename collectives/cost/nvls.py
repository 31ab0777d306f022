"""What a collective in the switch (NVLS) takes: NCCL cuts the buffer into chunks and passes them down a pipeline.

A round takes one chunk of every head on every channel.  In it the stages work at the same time,
each on the chunks of another round: scatter into the switch's buffers, reduce there, gather
(src/device/all_reduce.h); between nodes each level of the tree, up and down, is a stage too.  So
`rounds` rounds take rounds + stages - 1 turns, and each turn ends with a handshake.  Small
buffers get small chunks, and then the handshakes show (src/enqueue.cc, calcCollChunking).

NCCL's own estimate leaves this out: it has one latency and one bandwidth for all sizes.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from ..machines.tuning import NETWORK_HOP_SECONDS, NVLINK_HOP_SECONDS, SIMPLE

KIB = 2**10
LARGEST_CHUNK_BYTES = 128 * KIB  # NCCL_NVLS_CHUNKSIZE
SMALLER_CHUNK_BYTES = 64 * KIB  # src/transport/nvls.cc: between nodes from 4 on, and on Blackwell
HANDSHAKE_SECONDS = NVLINK_HOP_SECONDS["Tree"][SIMPLE]
NETWORK_HANDSHAKE_SECONDS = NETWORK_HOP_SECONDS["NVLS"][SIMPLE]


class Chunking(NamedTuple):
    """Chunks of one collective: how large, how many at a time, through how many stages."""

    lanes: int  # chunks of a round: channels x heads
    largest: int  # bytes of the largest chunk
    stages: int
    handshake: float  # seconds a turn
    smaller: tuple[tuple[int, int], ...]  # (rounds, bytes): with fewer rounds than that, chunks are at most so large
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
        rounds = self.rounds(nbytes)
        filling = (self.stages - 1) * slope * min(nbytes, self.lanes * self.chunk(nbytes))
        return (rounds + self.stages - 1) * self.handshake + filling, slope * nbytes


def in_one_node(channels: int, heads: int, bandwidth: float) -> Chunking:
    """Scatter, reduce, gather."""
    smaller = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB))
    return Chunking(channels * heads, LARGEST_CHUNK_BYTES, 3, HANDSHAKE_SECONDS, smaller, bandwidth)


def between_nodes(channels: int, heads: int, levels: int, largest: int, bandwidth: float) -> Chunking:
    """Each level of the tree up and down at the network's pace; scatter and gather, on NVLink, are one turn of that."""
    smaller = ((32, 256 * KIB), (16, 128 * KIB), (4, 64 * KIB), (1, 32 * KIB))
    return Chunking(channels * heads, largest, 1 + 2 * levels, NETWORK_HANDSHAKE_SECONDS, smaller, bandwidth)


def in_switch_seconds(nbytes: float, n: int, bandwidth: float) -> float:
    """The least time of an all_reduce whose sums the switch makes: S (1 + 1/N) bytes each way of each link.

    Each rank lets the switch read its whole buffer and gets back the sum of its N-th (S and
    S/N), then sends that sum once and gets every sum (S/N and S).  A ring has 2 (N-1)/N S: this
    is why NVLS's bus bandwidth may exceed the wire's.
    """
    return nbytes * (1 + 1 / n) / bandwidth
