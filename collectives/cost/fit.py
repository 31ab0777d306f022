"""α and β from measurements, and the machine that they make."""

import time
from typing import TYPE_CHECKING, Iterable, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from ..machines.topology import Machine

SIZES = tuple(4**k for k in range(2, 13))  # bytes, 16 B to 16 MiB
COLD = 2**25  # bytes: more than a core's share of the cache


class Fit(NamedTuple):
    """seconds = latency + bytes / bandwidth."""

    latency: float  # α, seconds
    bandwidth: float  # 1/β, bytes/s
    error: float  # median of |fitted / measured - 1|

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


def fit(measurements: Iterable[tuple[float, float]]) -> Fit:
    """The line that is closest to (bytes, seconds) pairs, by least squares of the relative errors; no α or β below 0.

    Raises ValueError for fewer than two sizes, or a time that is not positive.
    """
    sizes, seconds = np.array(list(measurements), float).reshape(-1, 2).T
    if len(np.unique(sizes)) < 2:
        raise ValueError("a line needs measurements of two sizes at least.")
    if seconds.min() <= 0:
        raise ValueError("every measured time must be more than 0 seconds.")
    scale, ones = sizes.max(), np.ones(len(sizes))
    rows = np.stack([1 / seconds, sizes / scale / seconds], 1)
    (latency, slope), *_ = np.linalg.lstsq(rows, ones, rcond=None)
    if latency < 0:
        latency, slope = 0.0, rows[:, 1] @ ones / (rows[:, 1] @ rows[:, 1])
    elif slope <= 0:
        latency, slope = rows[:, 0] @ ones / (rows[:, 0] @ rows[:, 0]), 0.0
    bandwidth = scale / slope if slope > 0 else np.inf
    error = float(np.median(np.abs((latency + sizes / bandwidth) / seconds - 1)))
    return Fit(float(latency), float(bandwidth), error)


def ping_pong(sizes: tuple[int, ...] = SIZES, repeats: int = 20) -> list[tuple[int, float]] | None:
    """A rank function: ranks 0 and 1 send each other every size to and fro.

    Returns (bytes, seconds one way) on rank 0, the fastest of `repeats` round trips, halved; None on the others.  The
    sizes take turns: what disturbs the machine for a while then costs each of them some trips, and none of them all.
    """
    rank, best = dist.get_rank(), dict.fromkeys(sizes, float("inf"))
    buffers = {nbytes: torch.zeros(nbytes, dtype=torch.uint8) for nbytes in sizes}
    for _ in range(repeats):
        for nbytes, x in buffers.items():
            start = time.perf_counter()
            if rank == 0:
                dist.send(x, 1)
                dist.recv(x, 1)
            elif rank == 1:
                dist.recv(x, 0)
                dist.send(x, 0)
            best[nbytes] = min(best[nbytes], time.perf_counter() - start)
    return [(nbytes, seconds / 2) for nbytes, seconds in best.items()] if rank == 0 else None


def exchange(sizes: tuple[int, ...] = SIZES, repeats: int = 20) -> list[tuple[int, float]]:
    """A rank function: every rank sends every size to the next one and receives from the one before, all at once.

    Returns (bytes, seconds), the fastest of `repeats`, each of the slowest rank.  The sizes take turns.  Each time
    another part of two large buffers is sent and filled: the same part again would be in the processor's cache.
    """
    rank, n, best = dist.get_rank(), dist.get_world_size(), dict.fromkeys(sizes, float("inf"))
    room = max(2 * max(sizes), COLD)
    out, into = torch.ones(2, room, dtype=torch.uint8)
    place = 0
    for _ in range(repeats):
        for nbytes in sizes:
            place = place + nbytes if place + 2 * nbytes <= room else 0
            x, y = out[place : place + nbytes], into[place : place + nbytes]
            dist.barrier()
            start = time.perf_counter()
            both = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            taken = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            best[nbytes] = min(best[nbytes], taken.item())
    return list(best.items())


def loopback(pair: Fit, crowd: Fit, ranks: int, addition: float = 0.0) -> "Machine":
    """This machine, as measured: ranks are processes that share its cores and its memory.

    pair: of one message at a time (ping_pong on 2 ranks).  crowd: of messages that all ranks send at the same time
    (exchange on `ranks` ranks).  addition: seconds to add a byte.
    """
    from ..machines.topology import Level, Machine, Port  # ranks measure, and need no machine

    port = Port("socket", max(pair.bandwidth, crowd.bandwidth))
    level = Level("loopback", ranks, crowd.latency, port, bus=crowd.bandwidth * ranks)
    return Machine("this machine", (level,), addition=addition, source="fitted to measurements")
