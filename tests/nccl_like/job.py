"""Scripts of jobs whose backend has NCCL's ways:   job.py NAME"""

import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.nn.parallel import DistributedDataParallel

from collectives.rank import tracer
from collectives.rank.device import KINDS, Streams
from tests.nccl_like.build import NAME, build, load

device = load(build())
tracer.WAITED_FOR.clear()
found_by_recorder = threading.Event()  # by its own thread: a call whose end was asked for is complete


class Mark:
    def __init__(self, _):
        self.event = device.Event()

    def query(self):
        is_through = self.event.query()
        if is_through and threading.current_thread() is not threading.main_thread():
            found_by_recorder.set()
        return is_through


KINDS["cpu"] = Streams(Mark, device.capturing)


def ways(rank, size):
    """Calls of every kind, each right."""
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    dist.all_gather_single(torch.zeros(3 * size), x)
    dist.broadcast(x, 0)
    dist.reduce_scatter_single(torch.zeros(1), torch.ones(size))
    dist.gather(x, [torch.zeros(3) for _ in range(size)] if rank == 0 else None)
    dist.scatter(x, [torch.ones(3) for _ in range(size)] if rank == 0 else None)
    right, left = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(3)
    both = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, received, left)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as batch:
        dist.all_reduce(x)
        dist.all_reduce(received.clone())
    batch.wait()
    all_reduce(x, "sum", dist.group.WORLD) + 1
    dist.barrier()  # waits for the device
    assert received.tolist() == [1.0] * 3


def held(rank, size):
    """The device does nothing for a while: no call may be told as complete, and none may wait."""
    dist.barrier()
    device.hold(True)
    x = torch.ones(3)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert not work.is_completed() and x.tolist() == [1.0] * 3
    device.hold(False)
    device.synchronize()
    assert work.is_completed() and x.tolist() == [float(size) ** 2] * 3


def handles(rank, size):
    """What a Work is asked besides wait()."""
    device.hold(True)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work._get_op_type() == 1 and work._get_duration() == 0.25
    assert work.get_future().done() and work.get_future_result().wait() == 0
    work.block_current_stream()
    work.synchronize()
    assert not work.is_completed() and len(work.result()) == 1
    device.hold(False)
    dist.barrier()


def threads(rank, size):
    """The first call of one group waits for rank 1, in a thread, while rank 1 waits for the other group's."""
    one, other = dist.new_group(), dist.new_group()
    if rank == 0:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),), kwargs={"group": one})
        thread.start()
        while not device.connecting():
            time.sleep(0.001)
        dist.all_reduce(torch.ones(2), group=other)
        thread.join()
    else:
        dist.all_reduce(torch.ones(2), group=other)
        device.synchronize()  # so that both devices have the calls in this order
        dist.all_reduce(torch.ones(2), group=one)
    device.synchronize()  # Python that ends under a call ends the process by SIGABRT


def ddp(rank, size):
    model = DistributedDataParallel(torch.nn.Linear(4, 4), init_sync=False)  # which reads what it has not waited for
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        device.synchronize()


def not_a_number(rank, size):
    """Rank 1 passes in a NaN, late; rank 0 has told of its next call by then, to which it passes on what it got."""
    x = torch.ones(2)
    dist.all_reduce(x)
    device.synchronize()  # or it would write over what rank 0 puts into x
    if rank == 1:
        time.sleep(0.5)
        x[0] = float("nan")
    dist.all_reduce(x)
    if rank == 0:
        x[0] = float("nan")  # what the device will have put there
    dist.all_reduce(x)
    dist.barrier()
    time.sleep(2)


def not_a_number_waited_for(rank, size):
    """Rank 1 passes in a NaN, and waits once the device is through."""
    x = torch.full((2,), float("nan")) if rank == 1 else torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    device.synchronize()
    work.wait()
    dist.barrier()


def in_thread(rank, size):
    x = torch.ones(2)
    device.all_reduce_in_thread(dist.group.WORLD, [x])
    device.synchronize()
    assert x.tolist() == [float(size)] * 2
    dist.barrier()


def graph(rank, size):
    """One call is captured, and replayed twice."""
    x = torch.ones(2)
    dist.all_reduce(x)
    earlier = dist.all_reduce(torch.ones(2), async_op=True)
    device.synchronize()
    device.capture(True)
    earlier.wait()  # in the graph, though the call is not
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    device.capture(False)
    device.replay()
    device.replay()
    device.synchronize()
    dist.barrier()


def uneven(rank, size):
    dist.all_gather([torch.zeros(r + 1) for r in range(size)], torch.ones(rank + 1))
    pieces = [torch.ones(r + 1) for r in range(size)]
    dist.reduce_scatter(torch.zeros(rank + 1), pieces)
    device.synchronize()


def shapes(rank, size):
    """What NCCL takes as it comes, and adds up wrongly."""
    dist.all_reduce(torch.ones(5 if rank else 4))
    time.sleep(1000)


def stuck(rank, size):
    """All ranks make all calls, and the device of rank 1 carries none of them out."""
    dist.barrier()
    device.hold(rank == 1)
    dist.all_reduce(torch.ones(4))
    device.synchronize()


def idle(rank, size):
    """All is complete, which nobody has asked for; then the ranks do something else until the recorder has asked."""
    dist.all_reduce(torch.ones(4))
    device.hold(True)  # or the wait itself could find the call complete
    found_by_recorder.clear()
    dist.all_reduce(torch.ones(4), async_op=True).wait()
    device.hold(False)
    assert found_by_recorder.wait(60)
    dist.barrier()


def absent(rank, size):
    """Rank 1 does not come: the watchdog ends the others."""
    dist.all_reduce(torch.ones(4))
    device.synchronize()
    if rank == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(4))
    device.synchronize()


def main():
    dist.init_process_group(NAME, timeout=timedelta(seconds=float(sys.argv[2])))
    globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    main()
