"""Training scripts in the styles of others:   train.py NAME

Nothing here knows of the course: this is what an engineer would have on disk.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 16


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))


def batches(count=4, workers=0):
    data = TensorDataset(torch.randn(8 * count, WIDTH), torch.randn(8 * count, WIDTH))
    return DataLoader(data, batch_size=8, num_workers=workers)


def learn(model, loader, forward=None):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for x, y in loader:
        loss = nn.functional.mse_loss((forward or model)(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss


def late():
    """Rank 2 is 0.2 s late in each of ten steps."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(network())

    def forward(x):
        time.sleep(0.2 * (dist.get_rank() == 2))
        return model(x)

    learn(model, batches(10), forward)


def ddp():
    dist.init_process_group("gloo")
    learn(nn.parallel.DistributedDataParallel(network()), batches())
    dist.destroy_process_group()


def workers():
    """Data from other processes, and nobody takes leave."""
    dist.init_process_group("gloo")
    learn(nn.parallel.DistributedDataParallel(network()), batches(workers=2))


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    learn(fully_shard(model), batches())
    dist.destroy_process_group()


def twice():
    """A group, another one in its place, and one farewell too many."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in ("first", "second"):
        store = dist.PrefixStore(name, next(iter(dist.rendezvous("env://")))[0])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        dist.all_reduce(torch.ones(4))
        dist.destroy_process_group()
    try:
        dist.destroy_process_group()
    except (AssertionError, ValueError, RuntimeError):
        pass


class GradientBuckets:
    """As picotron and nanotron do data parallelism: hooks, flat buckets, an asynchronous all_reduce for each."""

    def __init__(self, model, group):
        self.group, self.size = group, dist.get_world_size(group)
        self.parameters, self.pending = list(model.parameters()), []
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, p):
        p.grad.div_(self.size)
        self.pending.append(dist.all_reduce(p.grad, group=self.group, async_op=True))

    def wait(self):
        for work in self.pending:
            work.wait()
        self.pending.clear()


def grid():
    """A mesh of groups made by hand, a pipeline of two stages by batched messages, and buckets over the replicas."""
    dist.init_process_group("gloo")
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    dp_group, _ = dist.new_subgroups_by_enumeration([list(range(half)), list(range(half, 2 * half))])
    stage, peer = rank // half, (rank + half) % (2 * half)
    model = nn.Linear(WIDTH, WIDTH)
    buckets = GradientBuckets(model, dp_group)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, _ in batches():
        if stage == 0:
            y = model(x)
            exchange(dist.isend, y.detach(), peer)
            y.backward(exchange(dist.irecv, torch.empty_like(y), peer))
        else:
            x = exchange(dist.irecv, torch.empty(8, WIDTH), peer).requires_grad_()
            model(x).square().mean().backward()
            exchange(dist.isend, x.grad, peer)
        buckets.wait()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


def exchange(operation, tensor, peer):
    for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
        work.wait()
    return tensor


def fabric():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=int(os.environ["WORLD_SIZE"]))
    fabric.launch()
    model = network()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    for x, y in fabric.setup_dataloaders(batches()):
        fabric.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    fabric.all_gather(torch.ones(2))
    fabric.barrier()


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), batches())
    for x, y in loader:
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    accelerator.gather(torch.ones(2))
    accelerator.wait_for_everyone()
    accelerator.end_training()


def tiny():
    """Two calls, and then many small ones."""
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.broadcast(x, src=0)
    dist.barrier()
    for _ in range(int(sys.argv[2])):
        dist.all_reduce(x)
        x.fill_(1)
    dist.destroy_process_group()  # else torch 2.13 may abort at its exit, after short calls: "terminate called ..."


def steady():
    """Five calls a step; after as many steps as each argument says it leaves a file, and waits for one in return."""
    dist.init_process_group("gloo")
    rank, done = dist.get_rank(), 0
    x = torch.ones(4)
    for goal in map(int, sys.argv[2:]):
        for _ in range(done, goal):
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
            dist.broadcast(x.fill_(1), src=0)
            sending = dist.isend(x, 1 - rank)
            exchange(dist.irecv, torch.empty(4), 1 - rank)
            sending.wait()
        done = goal
        open(f"at-{goal}-{rank}", "w").close()
        while not os.path.exists(f"go-{goal}"):
            time.sleep(0.01)
    dist.destroy_process_group()


def restarted():
    """Its first attempt fails."""
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], next(iter(dist.rendezvous("env://")))[0])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(4))
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
        raise ValueError("the first attempt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("trained")
