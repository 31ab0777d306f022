"""A checkpoint that any number of ranks can load: torch.distributed.checkpoint under fully_shard (chapter 17).

torchrun --nproc-per-node 4 checkpoint.py FOLDER
torchrun --nproc-per-node 2 checkpoint.py FOLDER     # goes on where the four stopped
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn


def sharded():
    from torch.distributed.fsdp import fully_shard

    model = decoder(width=WIDTH)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.003)


def train(model, optimizer, batches):
    rank, n, losses = dist.get_rank(), dist.get_world_size(), []
    for tokens, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model(tokens.chunk(n)[rank]), targets.chunk(n)[rank])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_and_save(batches, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = sharded()
    train(model, optimizer, batches)
    weights, moments = get_state_dict(model, optimizer)  # with the same names on any number of ranks
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def load_and_train(batches, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = sharded()
    weights, moments = get_state_dict(model, optimizer)  # says what this rank wants to have
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return train(model, optimizer, batches)


WIDTH = 64


def decoder(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16))


def loss_of(y, target):
    return nn.functional.mse_loss(y, target)


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = torch.randn(4, 2, 48, 16)  # four steps, of which the first two are before the checkpoint
    if not os.path.exists(os.path.join(sys.argv[1], ".metadata")):
        train_and_save(data[:2], sys.argv[1])
    print(f"rank {rank} of {n}: losses after the checkpoint {load_and_train(data[2:], sys.argv[1])}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
