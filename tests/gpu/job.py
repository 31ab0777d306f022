"""Scripts of jobs on GPUs:   job.py NAME BACKEND"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BUSY_CYCLES = 2_000_000_000  # of the device: about a second


def ways(device):
    """Calls of every kind, each right; the device is busy when the first are made, and nobody waits for it."""
    size = dist.get_world_size()
    x = torch.ones(1000, device=device)
    dist.all_reduce(x)  # connects the ranks
    torch.cuda.synchronize()
    torch.cuda._sleep(BUSY_CYCLES)
    began = time.perf_counter()
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    if dist.get_backend() == "nccl":
        assert not work.is_completed() and time.perf_counter() - began < 0.5
    dist.all_gather_single(torch.zeros(1000 * size, device=device), x)
    torch.cuda.synchronize()
    assert work.is_completed() and x[0].item() == float(size) ** 3
    dist.barrier()


def graph(device):
    x = torch.ones(2, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(x)
    captured.replay()
    captured.replay()
    torch.cuda.synchronize()
    assert x[0].item() == float(dist.get_world_size()) ** 3
    dist.barrier()


def ddp(device):
    model = DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
    for _ in range(3):
        model(torch.ones(2, 4, device=device)).sum().backward()
    torch.cuda.synchronize()


def uneven(device):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.zeros(r + 1, device=device) for r in range(size)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank), device=device))
    torch.cuda.synchronize()
    assert [part[0].item() for part in parts] == [float(r) for r in range(size)]


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(sys.argv[2])
    globals()[sys.argv[1]](device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
