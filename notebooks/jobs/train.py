"""Trains a small model with DDP: on GPUs with NCCL, on CPUs with gloo.

    torchrun --nproc-per-node 4 train.py --steps 1000 --checkpoint checkpoint.pt

SIGTERM, sent to torchrun or to any one rank, ends it with a checkpoint, from which the next start goes on.
"""

import argparse
import os
import signal
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="on a disk that all hosts see")
options = parser.parse_args()

signals = []  # first of all, since a signal may come while torch connects
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # differs: this rank's GPU, on its own host,
    torch.cuda.set_device(device)  # differs: chosen before anything is put on a GPU,
    dist.init_process_group("nccl", device_id=device)  # differs: and NCCL meets the other ranks here and now
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

x = torch.full((1,), float(rank), device=device)
dist.all_reduce(x)
assert x.item() == world_size * (world_size - 1) / 2, f"the sum of all ranks is {x.item()}"
print(f"rank {rank} of {world_size}: {device} of {socket.gethostname()}, the sum is right", flush=True)

torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1).to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
steps, stop = 0, False
options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
if options.checkpoint.exists():
    saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    steps = saved["steps"]

while steps < options.steps and not stop:
    torch.manual_seed(steps * world_size + rank)  # a batch of its own for each rank and step
    x = torch.randn(32, 16, device=device)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    signaled = torch.tensor(float(len(signals)), device=device)
    dist.all_reduce(signaled, dist.ReduceOp.MAX)  # one rank's signal counts for all: no rank stops alone
    stop = signaled.item() > 0
    if rank == 0 and steps % 20 == 0:
        print(f"step {steps}, loss {loss.item():.4f}", flush=True)

if rank == 0:
    new = options.checkpoint.with_suffix(".new")
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, new)
    new.replace(options.checkpoint)  # so that a checkpoint is whole, or not there
    print(f"saved after step {steps}", flush=True)
dist.barrier()  # a launcher may end all hosts as soon as one is done
dist.destroy_process_group()
