"""Hangs made for real with gloo, each of which leaves a flight-recorder dump of every rank: torchrun ... hangs.py KIND FOLDER.

A thread of each rank writes its dump once the rank's last call is in the record, and then the process ends.  Nothing
here waits for a time to pass: ranks that must come later wait for a key in the store.
"""

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])


def recorded() -> dict:
    return pickle.loads(torch._C._distributed_c10d._dump_fr_trace())


def leave(calls: int) -> None:
    """Write the dump as soon as so many calls are in it, tell the others, and end the process once all have."""
    while len(recorded().get("entries", [])) < calls:
        time.sleep(0.005)
    data = torch._C._distributed_c10d._dump_fr_trace()
    (FOLDER / f"rank_{dist.get_rank()}").write_bytes(data)
    if KIND != "network":  # whose store is out of reach
        store.add("written", 1)


def dump_when(calls: int) -> threading.Thread:
    thread = threading.Thread(target=leave, args=(calls,), daemon=True)
    thread.start()
    return thread


def end(writers: int, frozen: int | None) -> None:
    while store.add("written", 0) < writers:
        time.sleep(0.01)
    if frozen:
        os.kill(frozen, signal.SIGKILL)
    os._exit(0)


def step(x: torch.Tensor, group=None) -> None:
    dist.all_reduce(x, group=group)


def evaluate(x: torch.Tensor, group=None) -> None:
    dist.all_reduce(x, group=group)


def absent() -> None:
    """Rank 2 does something else in place of its third call."""
    for _ in range(2):
        step(torch.ones(4))
    dump_when(2 if rank == 2 else 3)
    end_soon(size)
    if rank != 2:
        evaluate(torch.ones(8))


def two_groups() -> None:
    """Rank 3 is missing in its row; rank 2 waits for it there, and rank 0 for rank 2 in its column."""
    rows = [dist.new_group([0, 1], group_desc="tp"), dist.new_group([2, 3], group_desc="tp")]
    columns = [dist.new_group([0, 2], group_desc="dp"), dist.new_group([1, 3], group_desc="dp")]
    row, column = rows[rank // 2], columns[rank % 2]
    for _ in range(2):
        step(torch.ones(4), row)
        step(torch.ones(16), column)
    dump_when({0: 6, 1: 6, 2: 5, 3: 4}[rank])
    end_soon(size)
    if rank == 3:
        return
    step(torch.ones(4), row)
    step(torch.ones(16), column)


def mismatch() -> None:
    """Rank 1 broadcasts where the others sum."""
    for _ in range(2):
        step(torch.ones(4))
    dump_when(3)
    end_soon(size)
    if rank == 1:
        dist.broadcast(torch.ones(4), src=1)
        threading.Event().wait()
    evaluate(torch.ones(4))


def kernel() -> None:
    """What works for rank 2 stops once its third call is queued: its threads are frozen, its main thread with them."""
    for _ in range(2):
        step(torch.ones(4))
    if rank == 2:
        work = dist.all_reduce(torch.ones(8), async_op=True)  # noqa: F841
        leave(3)
        store.set("frozen", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    frozen = int(store.get("frozen"))
    dump_when(3)
    end_soon(size, frozen if rank == 0 else None)
    evaluate(torch.ones(8))


def order() -> None:
    """Ranks 0 and 1 use two groups in different orders."""
    first, second = dist.new_group(group_desc="first"), dist.new_group(group_desc="second")
    step(torch.ones(4), first)
    dump_when(2)
    end_soon(size)
    for group in (first, second) if rank % 2 else (second, first):
        step(torch.ones(4), group)


def left_out() -> None:
    """Rank 1 skips a batch, so that its later calls meet the others' earlier ones."""
    dump_when(9 if rank == 1 else 10)
    end_soon(size)
    for batch in range(5):
        if not (rank == 1 and batch == 2):
            step(torch.ones(4))
        evaluate(torch.ones(4))


def network() -> None:
    """The cable is pulled before the third call, which all make."""
    for _ in range(2):
        step(torch.ones(4))
    (FOLDER / f"ready_{rank}").touch()
    while not (FOLDER / "unplugged").exists():
        time.sleep(0.01)
    dump_when(3)
    evaluate(torch.ones(8))


def end_soon(writers: int, frozen: int | None = None) -> None:
    """frozen: a process that cannot end itself."""
    threading.Thread(target=end, args=(writers, frozen), daemon=True).start()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    globals()[KIND]()
    threading.Event().wait()
