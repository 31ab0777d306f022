"""What run() runs on a backend with NCCL's ways: to import this is to know the backend."""

import torch
import torch.distributed as dist

from collectives.rank import tracer
from collectives.rank.device import KINDS, Streams
from tests.nccl_like import programs
from tests.nccl_like.build import build, load

device = load(build())
tracer.WAITED_FOR.clear()
KINDS["cpu"] = Streams(lambda _: device.Event(), device.capturing)


def total():
    x = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    device.synchronize()
    return dist.get_backend(), x


def play(name):
    """Run a program, until the device has done all of it."""
    result = getattr(programs, name)()
    device.synchronize()
    return result


def deadlock():
    if dist.get_rank():
        dist.all_reduce(torch.ones(2))
