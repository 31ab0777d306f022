"""a thread's gather races with the main thread's all_reduce on one group."""

from threading import Event, Thread

import torch
import torch.distributed as dist

SOURCE = "a collector of results"
CAUSE = r"(?i)(another|two|its own|from a) threads?\b"


def job(rank, n):
    turn = Event()

    def collect():
        if rank == 1:
            turn.wait()
        dist.gather_object(rank, [None] * n if rank == 0 else None, dst=0)

    thread = Thread(target=collect, daemon=True)
    thread.start()
    if rank != 1:
        thread.join()
    dist.all_reduce(torch.ones(8))
    turn.set()
    thread.join()
