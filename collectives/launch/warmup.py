"""Modules, parts of torch and pages of memory that a rank has before it begins, so that it begins at once."""

import gc
import importlib
import os
import traceback

import torch
import torch.distributed as dist

from ..log.messages import Returned
from ..rank import torch_private
from ..rank.tracer import Tracer
from .pickling import pack, unpack
from .wire import Frames, Job, frame

MAX_STDERR_BYTES = 1 << 20


def preload() -> None:
    """Initialize the parts of torch that every rank uses, so that a fork inherits them."""
    torch.set_num_threads(1)
    torch_private.fake_backend()
    if torch_private.RECORDING:
        with Tracer(0, lambda *_: None, 0.0):
            torch.zeros(1).add_(1).clone()
    freeze_gc()


def import_modules(modules: list[str]) -> None:
    """Import modules for later ranks to inherit."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # a rank that needs it raises the error itself
            traceback.print_exc()
    freeze_gc()
    if os.fstat(2).st_size > MAX_STDERR_BYTES:  # modules warn, and nobody reads this file while all is well
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)


def freeze_gc() -> None:
    """Keep the garbage collector from dirtying the pages that ranks share."""
    gc.collect()
    gc.freeze()


def warm_up(rank: int) -> None:
    """Exercise the code path of a run, in a group of one rank.

    A fork copies each page of memory when it first writes to it. These copies are most of the cost of a
    run's first call, and a rank on standby has the time.
    """
    if not (torch_private.RECORDING and torch_private.fake_backend()):
        return
    count = torch_private.world.group_count
    alone = dist.new_group([rank], backend="fake", use_local_synchronization=True)
    (job,) = Frames().feed(frame(Job(pack((dist.all_reduce, (torch.ones(1),))), None, 0.0, False, True)))
    fn, args = unpack(job.payload)
    with Tracer(rank, frame, 0.0) as tracer:
        fn(torch.ones(1), group=alone)  # inside the tracer, where all of torch takes a different path
    tracer.finish()
    frame(Returned(pack(args), (0, 0), None, []))
    dist.destroy_process_group(alone)
    torch_private.world.group_count = count  # torch 2.14 has raised it, and other ranks may have had no time for this
