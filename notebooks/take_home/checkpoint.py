"""A checkpoint that any number of ranks can load: torch.distributed.checkpoint under fully_shard (chapter 17).

torchrun --nproc-per-node 4 checkpoint.py FOLDER     # again, with 2: they continue where the four stopped
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def sharded():
    model = decoder(width=WIDTH)
    mesh = dist.init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
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


def save(model, optimizer, folder, **more):
    weights, moments = get_state_dict(model, optimizer)  # named alike on any number of ranks
    dcp.save({"model": weights, "optimizer": moments, **more}, checkpoint_id=folder)


def load(model, optimizer, folder, **more):
    weights, moments = get_state_dict(model, optimizer)  # says what this rank wants to have
    state = {"model": weights, "optimizer": moments, **more}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return {name: state[name] for name in more}


WIDTH, loss_of = 64, nn.functional.mse_loss


def decoder(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16))


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))  # GPU: "cpu:gloo,cuda:nccl", device_id=device,
    rank, n, folder = dist.get_rank(), dist.get_world_size(), Path(sys.argv[1])
    (model, optimizer), rng = sharded(), torch.Generator(device).manual_seed(1)
    batch, state = dict(size=(2, 48, 16), generator=rng), dict(step=0, rng=rng.get_state())  # inputs and targets
    if complete := [int(path.parent.name) for path in folder.glob("*/.metadata")]:
        state = load(model, optimizer, folder / str(max(complete)), **state)
    step = state["step"]
    rng.set_state(state["rng"])
    losses = train(model, optimizer, [torch.randn(**batch) for _ in range(2)])
    save(model, optimizer, folder / str(step + 2), step=step + 2, rng=rng.get_state())

    rng.manual_seed(1)
    whole = train(*sharded(), [torch.randn(**batch) for _ in range(step + 2)])
    torch.testing.assert_close(losses, whole[step:], rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: steps {step} and {step + 1} as in a run that never stopped: {losses}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
