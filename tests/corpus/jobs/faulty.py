"""Training scripts that go wrong, each in its own way:   faulty.py NAME

Nothing here knows of the course: this is what an engineer would have on disk.
"""

import contextlib
import ctypes
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def steps(count=3):
    for _ in range(count):
        dist.all_reduce(torch.ones(4))


def deadlock(rank):
    steps()
    if rank == 2:
        dist.recv(torch.ones(4), 1)
    dist.all_reduce(torch.ones(4))


def shapes(rank):
    steps()
    dist.all_reduce(torch.ones(5 if rank == 2 else 4))


def killed(rank):
    steps()
    if rank == int(sys.argv[2]):
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def forks(rank):
    """Each rank has a child that ends early; rank 1's second child outlives it."""
    steps()
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    steps()
    if rank == 1:
        if os.fork() == 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nowhere, standard)
            time.sleep(30)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def raises(rank):
    steps()
    if rank == 1:
        raise ValueError("no such layer")
    dist.barrier()


def early(rank):
    """Rank 0 is done before the others."""
    steps()
    if rank:
        dist.all_reduce(torch.ones(4))


def leaves(rank):
    """Rank 0 makes one call fewer, and takes its connections with it. What becomes of the others' error is asked for."""
    steps()
    try:
        if rank:
            steps(1)
    except RuntimeError as error:
        if sys.argv[2] == "renamed":
            raise ValueError("training failed") from error
        if sys.argv[2] == "raised":
            raise
        time.sleep(1)  # what it does without the others
        sys.exit(1)
    dist.destroy_process_group()


def drops(rank):
    """Rank 0 lets go of what it sends, and rank 1 is late for it."""
    steps()
    if rank == 0:
        dist.isend(torch.ones(4), 1)
    elif rank == 1:
        time.sleep(1)
        dist.recv(torch.empty(4), 0)


def drops_by_luck(rank):
    """The same, but the receiver comes first."""
    if rank == 1:
        arriving = [dist.irecv(torch.empty(4), 0) for _ in range(2)]
    dist.barrier()
    for _ in range(2 * (rank == 0)):
        dist.isend(torch.ones(4), 1)
    if rank == 1:
        for work in arriving:
            work.wait()
    dist.barrier()


def loses(rank):
    """Sums a copy of a transposed tensor, which nothing keeps."""
    x = torch.ones(2, 3).t()
    for _ in range(3):
        dist.all_reduce(x.contiguous())


def sleeper(rank):
    """Rank 2 waits for something else before the call."""
    steps()
    if rank == 2:
        data_that_never_comes()
    dist.all_reduce(torch.ones(4))


def data_that_never_comes():
    time.sleep(1000)


def model():
    torch.manual_seed(0)
    return nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))


def trained(count, net=None):
    net = net or model()
    for _ in range(count):
        net(torch.randn(4, 8)).sum().backward()
    return net


def stops_early(rank):
    """Rank 2 has fewer batches than the others, and DDP waits in C++."""
    trained(3 if rank == 2 else 6)


def no_sync_on_one(rank):
    """Rank 1 leaves one step out."""
    net = trained(2)
    with net.no_sync() if rank == 1 else contextlib.nullcontext():
        trained(1, net)
    trained(2, net)


def shows_its_error(rank):
    """Rank 1 dies, and others tell what DDP makes of it."""
    net = trained(2)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        trained(1, net)
    except RuntimeError as error:
        sys.stdout.write(f"SAID {error!r}\n")
        raise


def destroyed_early(rank):
    """Rank 1 takes leave of its group, and has other things to do."""
    net = trained(3)
    if rank == 1:
        del net
        dist.destroy_process_group()
        time.sleep(4)
    else:
        trained(2, net)


def exits(rank):
    """Rank 1 ends in the way that is asked for."""
    steps()
    if rank == 1:
        time.sleep(0.3)
        ENDS[sys.argv[2]]()
    dist.all_reduce(torch.ones(4))


ENDS = {
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "cleanly": lambda: os._exit(0),
}


def over(rank):
    """All calls are made, and every rank leaves the quick way."""
    steps()
    dist.barrier()
    os._exit(0)


def dtype_differs(rank):
    """gloo aborts, in a thread of its own."""
    steps()
    dist.all_reduce(torch.ones(4, dtype=torch.bfloat16 if rank == 1 else torch.float32))


def message_too_long(rank):
    if rank < 2:
        dist.send(torch.ones(8), 1) if rank == 0 else dist.recv(torch.ones(4), 0)
    dist.all_reduce(torch.ones(4))


def gathers_other_shapes(rank):
    steps()
    dist.all_gather([torch.empty(4) for _ in range(dist.get_world_size())], torch.ones(8 if rank == 2 else 4))


def caught(rank):
    """A message that may not come, in a group that gives up soon; all end well."""
    pair = dist.new_group(timeout=datetime.timedelta(seconds=1))
    steps()
    if rank == 0:
        with contextlib.suppress(RuntimeError):
            dist.recv(torch.ones(4), 1, group=pair)
    dist.barrier()


def other_groups(rank):
    """Rank 0 makes another group than the others do, and nobody finds its members."""
    steps()
    ranks = [0, 3] if rank == 0 else [1, 2, 3]
    dist.barrier(group=dist.new_group(ranks, timeout=datetime.timedelta(seconds=5)))
    raise RuntimeError("by chance they all found somebody")


def other_names(rank):
    """Ranks 0 and 2 are in one group more, and that number is in the name of the group of all."""
    steps()
    if rank in (0, 2):
        dist.new_group([0, 2], use_local_synchronization=True)
    dist.new_group(timeout=datetime.timedelta(seconds=5), use_local_synchronization=True)


def member_elsewhere(rank):
    """The group that ranks 0 to 2 make alone waits for rank 1."""
    steps()
    if rank in (0, 2):
        dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=8), use_local_synchronization=True)
    data_that_never_comes()


def worlds(rank):
    """Two worlds of two ranks each, which do different things and end well."""
    dist.destroy_process_group()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(f"world {rank // 2}", dist.TCPStore(host, port, is_master=False))
    dist.init_process_group("gloo", store=store, rank=rank % 2, world_size=2)
    steps(3 + rank // 2)
    dist.broadcast(torch.ones(4 + rank // 2), 0, group=dist.new_group([0, 1] if rank < 2 else None))
    time.sleep(rank % 2)
    dist.barrier()


def hides(rank):
    """A call in a `finally` hides an error from the log."""
    steps()
    try:
        if rank == 1:
            raise RuntimeError("out of memory on this card")
        dist.all_reduce(torch.ones(4))
    finally:
        dist.barrier()


def skips(rank):
    """A rank handles its error, and goes on with the next step."""
    for step in range(3):
        loss = None if rank == 1 and step == 1 else torch.ones(4)
        try:
            dist.all_reduce(loss)
        except TypeError:
            continue


def evaluates():
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4))


def parts(rank):
    """Rank 0 does more than the others in the second step, which shows at the end."""
    for step in range(4):
        if step == 1 and rank == 0:
            evaluates()
        dist.all_reduce(torch.ones(4))


def no_number(rank):
    """From its second gradient on, rank 2 has a NaN. Before, ranks have one only where a broadcast will write."""
    dist.broadcast(torch.full((4,), 1.0 if rank == 0 else float("nan")), 0)
    gradient = torch.ones(4)
    for step in range(3):
        if rank == 2 and step == 1:
            gradient[1] = float("nan")
        dist.all_reduce(gradient)
    time.sleep(1)


def drifts(rank):
    """From its fourth step on, rank 2 has a parameter that no other has."""
    weight, own = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.full((2,), float(rank)))
    optimizer, apart = torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([own], lr=0.1)
    for step in range(6):
        weight.grad, own.grad = torch.full((4,), float(rank)), torch.ones(2)
        dist.all_reduce(weight.grad)
        if rank == 2 and step == 3:
            weight.grad[1] += 1
        optimizer.step()
        apart.step()


def never_alike(rank):
    """Gradients are averaged, and each rank has drawn its own weights."""
    torch.manual_seed(rank)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


def divided(rank):
    """Each rank has parameters of its own, and a gradient of its own."""
    weight = torch.nn.Parameter(torch.full((2,), float(rank)))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.grad = torch.full((2,), float(rank))
        dist.all_reduce(torch.ones(1))
        optimizer.step()


def forever(rank):
    steps()
    open(f"at-{rank}", "w").close()
    time.sleep(1000)


def main():
    if sys.argv[1] == "never_comes" and os.environ["RANK"] == "3":
        data_that_never_comes()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    if sys.argv[1] != "never_comes":
        globals()[sys.argv[1]](dist.get_rank())


if __name__ == "__main__":
    main()
