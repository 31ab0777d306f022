"""What the recorder of collectives.watch costs a training step:

torchrun --nproc-per-node 2 -m collectives.watch tests/bench/recorded.py [--fsdp] [--values] [--width 128]

Blocks of steps with the recorder at work and without it take turns in the same processes, so that whatever
else the machine does meets both alike.  Prints the median step of each, in ms, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from collectives.rank import kernel
from helpers.model.decoder import VOCABULARY, batch, decoder, initialise, loss_of

BLOCK = 5  # steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=30)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = initialise(decoder(width=options.width, layers=options.layers))
    if options.fsdp:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recorder, times = kernel.recorder, {True: [], False: []}
    for block in range(options.blocks + 2):
        recorded = block % 2 == 0
        kernel.recorder = recorder if recorded else None
        for k in range(BLOCK):
            dist.barrier()
            begun = time.perf_counter()
            x, y = batch(block * BLOCK + k)
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if block > 1:
                times[recorded].append(time.perf_counter() - begun)
    kernel.recorder = recorder
    if dist.get_rank() == 0:
        with_, without = (statistics.median(times[recorded]) * 1000 for recorded in (True, False))
        parameters = sum(p.numel() for p in model.parameters())
        print(
            f"{VOCABULARY=} {parameters:,} parameters: {with_:.2f} ms recorded, {without:.2f} ms not: {with_ / without:.3f}"
        )
    dist.destroy_process_group()


main()
