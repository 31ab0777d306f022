"""Programs that are right on gloo.  HANG: those that hang on NCCL; RIGHT: those that are right there, too."""

import torch
import torch.distributed as dist


def place():
    return dist.get_rank(), dist.get_world_size()


def wait(*works):
    for work in works:
        work.wait()


def batch(target=None, source=None):
    """Send to a rank and receive from one, in a batch."""
    calls = [] if target is None else [dist.P2POp(dist.isend, torch.ones(2), target)]
    calls += [] if source is None else [dist.P2POp(dist.irecv, torch.zeros(2), source)]
    wait(*dist.batch_isend_irecv(calls))


# --- these hang on NCCL -------------------------------------------------------------------


def swap():
    rank, _ = place()
    wait(dist.isend(torch.ones(2), 1 - rank), dist.irecv(torch.zeros(2), 1 - rank))


def ring():
    rank, size = place()
    wait(dist.isend(torch.ones(2), (rank + 1) % size), dist.irecv(torch.zeros(2), (rank - 1) % size))


def crossed_groups():
    groups = [dist.new_group(), dist.new_group()]
    wait(*(dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in groups[:: 1 - 2 * dist.get_rank()]))


def half_a_batch():
    if dist.get_rank():
        batch(source=0)
    else:
        dist.send(torch.ones(2), 1)


def two_in_flight():
    """A pipeline: the first stage is one forward ahead, the second one answers at once."""
    x = torch.ones(2)
    if dist.get_rank() == 0:
        sent = [dist.isend(x, 1), dist.isend(x, 1)]
        dist.recv(torch.zeros(2), 1)
        wait(*sent)
    else:
        dist.recv(torch.zeros(2), 0)
        answer = dist.isend(x, 0)
        dist.recv(torch.zeros(2), 0)
        answer.wait()


def batch_without_all():
    """The first call of the group, which rank 2 does not make."""
    rank, _ = place()
    if rank < 2:
        batch(1 - rank, 1 - rank)


def send_across_a_barrier():
    if dist.get_rank() == 0:
        sent = dist.isend(torch.ones(2), 1)
        dist.barrier()
        sent.wait()
    else:
        dist.barrier()
        dist.recv(torch.zeros(2), 0)


# --- these are right on NCCL --------------------------------------------------------------


def batched_ring():
    rank, size = place()
    for _ in range(2):
        batch((rank + 1) % size, (rank - 1) % size)


def even_and_odd():
    rank, size = place()
    right, left = (rank + 1) % size, (rank - 1) % size
    if rank % 2:
        dist.recv(torch.zeros(2), left)
        dist.send(torch.ones(2), right)
    else:
        dist.send(torch.ones(2), right)
        dist.recv(torch.zeros(2), left)


def swap_in_order():
    if dist.get_rank():
        wait(dist.irecv(torch.zeros(2), 0), dist.isend(torch.ones(2), 0))
    else:
        wait(dist.isend(torch.ones(2), 1), dist.irecv(torch.zeros(2), 1))


def ring_once_connected():
    """Pairs of ranks have streams of their own, so that nobody waits for anybody's send."""
    even_and_odd()
    ring()


def mesh():
    rank, _ = place()
    rows, columns = ([dist.new_group(ranks) for ranks in pairs] for pairs in (([0, 1], [2, 3]), ([0, 2], [1, 3])))
    x = torch.ones(2)
    for _ in range(2):
        one = dist.all_reduce(x, group=rows[rank // 2], async_op=True)
        other = dist.all_reduce(torch.ones(2), group=columns[rank % 2], async_op=True)
        wait(other, one)
        dist.barrier()


def batch_of_some():
    """Once all have made the group's first call, two of them may exchange messages."""
    rank, _ = place()
    dist.all_reduce(torch.ones(2))
    if rank < 2:
        batch(1 - rank, 1 - rank)


def pipeline():
    """Messages and gradients in turn."""
    rank, size = place()
    for _ in range(3):
        if rank:
            dist.recv(torch.zeros(2), rank - 1)
        if rank < size - 1:
            dist.send(torch.ones(2), rank + 1)
        dist.all_reduce(torch.ones(2), async_op=True).wait()


def tags():
    """Both arrive, and on NCCL each in the other's place."""
    one, two = torch.zeros(1), torch.zeros(1)
    if dist.get_rank() == 0:
        wait(dist.isend(one + 1, 1, tag=1), dist.isend(two + 2, 1, tag=2))
    else:
        wait(dist.irecv(two, 0, tag=2), dist.irecv(one, 0, tag=1))
    return one, two


HANG = {"swap": 2, "ring": 3, "crossed_groups": 2, "half_a_batch": 2, "two_in_flight": 2, "batch_without_all": 3}
HANG |= {"send_across_a_barrier": 2}
RIGHT = {"batched_ring": 4, "even_and_odd": 4, "swap_in_order": 2, "ring_once_connected": 4, "mesh": 4}
RIGHT |= {"batch_of_some": 3, "pipeline": 3, "tags": 2}
