"""What recording costs steps that are made of many small calls, on 4 ranks:

    python -m tests.bench.messages [ROUNDS]

Recorded runs and others take turns, so that whatever else the machine does meets both alike.  The time of a
step is the median rank's; the processor time is that of all ranks, and hardly depends on the machine's load.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from typing import Callable

import torch
import torch.distributed as dist
from torch import nn

from helpers import run

RANKS, STEPS, HEADS, SIZE = 4, 60, 8, 8


def exchange(x: torch.Tensor) -> tuple[torch.Tensor, list[dist.Work]]:
    """Send a tensor to the right neighbour, while the left one's comes."""
    rank, n, arriving = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    send, receive = dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, arriving, (rank - 1) % n)
    return arriving, dist.batch_isend_irecv([send, receive])


def wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def ring_attention(tokens: int) -> Callable[[], None]:
    """Forward and backward pass of ring attention without a mask, by hand, with `tokens` a rank."""
    n, scale = dist.get_world_size(), SIZE**-0.5
    q, k, v, do = torch.randn(4, 2, HEADS, tokens, SIZE)

    def step():
        kv, o, lse = torch.stack([k, v]), torch.zeros_like(q), torch.full_like(q[..., :1], -1e30)
        for hop in range(n):
            arriving, works = exchange(kv) if hop < n - 1 else (kv, [])
            scores = q @ kv[0].mT * scale
            part = scores.logsumexp(-1, keepdim=True)
            both = torch.logaddexp(lse, part)
            o, lse = o * (lse - both).exp() + ((scores - part).exp() @ kv[1]) * (part - both).exp(), both
            wait(works)
            kv = arriving
        inner, kv, dq = (do * o).sum(-1, keepdim=True), torch.stack([k, v]), torch.zeros_like(q)
        dkv = torch.zeros_like(kv)
        for hop in range(n):
            arriving, works = exchange(kv) if hop < n - 1 else (kv, [])
            p = (q @ kv[0].mT * scale - lse).exp()
            ds = p * (do @ kv[1].mT - inner) * scale
            dq += ds @ kv[0]
            dkv += torch.stack([ds.mT @ q, p.mT @ do])
            dkv, others = exchange(dkv)
            wait(others + works)
            kv = arriving

    return step


def exchanges() -> Callable[[], None]:
    x = torch.ones(256)

    def step():
        for _ in range(30):
            _, works = exchange(x)
            wait(works)

    return step


def pipeline() -> Callable[[], None]:
    """A step of torch's 1F1B: 16 microbatches through small stages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, n, width = dist.get_rank(), dist.get_world_size(), 128
    layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    stage = PipelineStage(layers, rank, n, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 16, loss_fn=nn.functional.mse_loss)
    x, y = torch.randn(2, 16 * 32, width)

    def step():
        schedule.step(*[x] if rank == 0 else [], target=y if rank == n - 1 else None)

    return step


def all_reduces(async_op: bool) -> Callable[[], None]:
    xs = torch.ones(50, 16).unbind()

    def step():
        works = [dist.all_reduce(x, async_op=async_op) for x in xs]
        wait([work for work in works if work])

    return step


def timed(make: Callable[[], Callable[[], None]]) -> tuple[float, float]:
    """Seconds of the median step, and of this process's processor time for each."""
    step, times = make(), []
    step()
    dist.barrier()
    before = time.process_time()
    for _ in range(STEPS):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return statistics.median(times), (time.process_time() - before) / STEPS


STEPS_OF = {
    "ring attention, 64 tokens a rank": functools.partial(ring_attention, 64),
    "ring attention, 256 tokens a rank": functools.partial(ring_attention, 256),
    "1F1B, 16 microbatches": pipeline,
    "30 exchanges in a ring, 1 kB": exchanges,
    "50 all_reduces, 64 B": functools.partial(all_reduces, False),
    "50 all_reduces under way at once": functools.partial(all_reduces, True),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(f"{'':<36}{'plain':>9}{'recorded':>10}{'':>7}{'processor':>12}{'':>7}")
    for words, make in STEPS_OF.items():
        seen = {False: [], True: []}
        for _ in range(rounds):
            for record in seen:
                results = run(timed, make, world_size=RANKS, record=record).results
                seen[record].append((statistics.median(s for s, _ in results), sum(p for _, p in results)))
        (plain, used), (recorded, more) = ([statistics.median(x) * 1e3 for x in zip(*seen[r])] for r in seen)
        print(
            f"{words:<36}{plain:>6.1f} ms{recorded:>7.1f} ms{recorded / plain:>6.2f}x"
            f"{used:>6.1f} ->{more:>6.1f} ms{more / used:>6.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
