"""item() of a DTensor's norm is this rank's part."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

SOURCE = "a log of norms"
CAUSE = r"full_tensor"
SAME = True


def job(rank, n):
    mesh = init_device_mesh("cpu", (n,))
    shards = DTensor.from_local(torch.tensor([3.0 + rank]), mesh, [Shard(0)])
    return shards.norm().item()
