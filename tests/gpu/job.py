"""Scripts of jobs on GPUs:   job.py NAME BACKEND [LIMIT]

Where there are more ranks than GPUs, ranks share one.  NCCL refuses two ranks of one host on one GPU, but takes them
for ranks of two hosts if NCCL_HOSTID says so; then all goes through sockets.
"""

import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

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
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the name since 2.13, and before
    gather(torch.zeros(1000 * size, device=device), x)
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


def absent(device):
    """Rank 1 does not come: the watchdog ends the others."""
    dist.all_reduce(torch.ones(4, device=device))
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(4, device=device))
    torch.cuda.synchronize()


def stuck(device):
    """All ranks make all calls, but on the GPU of rank 1 a kernel before the last one does not end."""
    dist.all_reduce(torch.ones(4, device=device))
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        torch.cuda._sleep(100 * BUSY_CYCLES)
    dist.all_reduce(torch.ones(4, device=device))
    torch.cuda.synchronize()


def shapes(device):
    """A call whose parts differ, which NCCL takes as it comes."""
    dist.all_reduce(torch.ones(4, device=device))
    dist.all_reduce(torch.ones(1 << 20 if dist.get_rank() else 4, device=device))
    torch.cuda.synchronize()


def not_a_number(device):
    """From the second call on, what rank 1 passes in has a NaN, made on the GPU behind work that takes a while."""
    x = torch.ones(4, device=device)
    dist.all_reduce(x)
    torch.cuda._sleep(BUSY_CYCLES // 10)
    if dist.get_rank() == 1:
        x[2] = x[1] / 0 - x[1] / 0
    dist.all_reduce(x)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    dist.barrier()
    time.sleep(2)


def profiled(device):
    """DDP under torch's profiler; each rank leaves a trace in the working folder. Rank 1 is late at each step."""
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False).to(device))
    model(torch.ones(2, 1024, device=device)).sum().backward()
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:
        for _ in range(3):
            if rank == 1:
                time.sleep(0.1)
            model(torch.ones(2, 1024, device=device)).sum().backward()
            torch.cuda.synchronize()
    profile.export_chrome_trace(str(Path.cwd() / f"trace_{rank}.json"))


def timed(device):
    """Prints the median time of DDP's steps, in ms."""
    layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=4)  # a call for each layer
    x, times = torch.ones(64, 1024, device=device), []
    for _ in range(60):
        began = time.perf_counter()
        model(x).sum().backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"{1000 * statistics.median(times[10:]):.2f} ms a step")


def main():
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
    torch.cuda.set_device(device)
    if int(os.environ["LOCAL_WORLD_SIZE"]) > gpus:
        os.environ |= {"NCCL_HOSTID": f"host of rank {os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo"}
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 600
    dist.init_process_group(sys.argv[2], timeout=timedelta(seconds=limit))
    globals()[sys.argv[1]](device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
