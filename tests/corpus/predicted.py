"""What the ranks of test_predict.py do.  Ranks import this module: so it imports little."""

import torch
import torch.distributed as dist


def share_from_last():
    x = torch.full((3,), 10.0 * dist.get_rank())
    dist.broadcast(x, src=dist.get_world_size() - 1)
    print("I hold", x.tolist())
    return x


def add_up(root=0):
    x = torch.tensor([1, 2]) * 10 ** dist.get_rank()
    dist.reduce(x, dst=root)


def largest():
    dist.all_reduce(torch.tensor([2 + dist.get_rank()]), op=dist.ReduceOp.MAX)


def collect():
    x = torch.tensor([10 * dist.get_rank() + 5])
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(x, parts, dst=0)


def scattered_sums():
    x = torch.arange(3) + 100 * dist.get_rank()
    dist.reduce_scatter_single(torch.zeros(1, dtype=x.dtype), x)


def exchange():
    x = torch.arange(3) + 100 * dist.get_rank()
    dist.all_to_all_single(torch.zeros_like(x), x)


def hot():
    dist.broadcast(torch.tensor([5 * (dist.get_rank() == 1)]), src=0)


def aliased():
    dist.all_gather([torch.zeros(1)] * dist.get_world_size(), torch.tensor([1.0 * dist.get_rank()]))


def two_sums():
    sums = [torch.tensor([k + dist.get_rank()]) for k in (0, 100)]
    for x in sums:
        dist.all_reduce(x)
    return sums


def overflowing():
    dist.all_reduce(torch.tensor([200], dtype=torch.uint8))


def leftovers():
    x = torch.tensor([2 ** dist.get_rank()])
    dist.reduce(x, dst=0)
    return x.item()


def impatient():
    x = torch.full((2,), 7.0 * dist.get_rank())
    dist.all_reduce(x, async_op=True)
    dist.barrier()


def ring():
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.tensor([0])
    sending = dist.isend(torch.tensor([10 * rank]), (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    sending.wait()
    return got.item()


def deserted():
    x = torch.zeros(2)
    if dist.get_rank() == 0:
        dist.broadcast(x, src=0)
    return x


def disagree():
    dist.broadcast(torch.zeros(2), src=dist.get_rank())


def fail():
    if dist.get_rank() == 1:
        raise KeyError("lost")


def squares():
    return dist.get_rank() ** 2
