"""A large trainer in little: a JSON config, a mesh of two dimensions, sharded layers made of parallel ones."""

import json
import os
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

CONFIG = '{"parallelism": {"data": 2, "tensor": 2}, "training": {"steps": 2}}'


@dataclass
class Parallelism:
    data: int = 1
    tensor: int = 1


@dataclass
class Job:
    parallelism: Parallelism = field(default_factory=Parallelism)
    steps: int = 1


def parsed():
    tables = json.loads(CONFIG)
    return Job(Parallelism(**tables["parallelism"]), **tables["training"])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


@record
def main():
    job = parsed()
    dist.init_process_group("cpu:gloo")
    mesh = init_device_mesh("cpu", tuple(asdict(job.parallelism).values()), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    torch.manual_seed(int(os.environ["RANK"]) // job.parallelism.tensor)
    for step in range(job.steps):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mesh["data"].get_group())
        optimizer.step()
        optimizer.zero_grad()
        print(step, mean.item().hex(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
