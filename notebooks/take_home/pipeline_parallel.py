"""Pipeline parallel: torch's own schedules, one stage of two layers a rank (chapter 14).

torchrun --nproc-per-node 4 pipeline_parallel.py
"""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

WORLD_SIZE, M = int(os.environ["WORLD_SIZE"]), 8  # ranks; microbatches
LAYERS = 2 * WORLD_SIZE - 2  # between an embedding and a head


def by_torch(name, like):
    """A step by torch's schedule of that name, with stages placed as in the schedule `like`."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    layers, last = decoder(layers=LAYERS), like.stages - 1
    each = len(layers) // like.stages
    held = like.held(dist.get_rank())
    parts = {k: layers[k * each : (k + 1) * each] for k in held}
    del layers
    stages = [PipelineStage(part, k, last + 1, torch.get_default_device()) for k, part in parts.items()]
    make = get_schedule_class(name)
    schedule = make(stages if len(stages) > 1 else stages[0], M, loss_fn=loss_of)
    tokens, targets = BATCH
    inputs = [tokens] if 0 in held else []
    wanted = {"target": targets} if last in held else {}
    schedule.step(*inputs, **wanted)
    named = [kp for part in parts.values() for kp in part.named_parameters()]
    return dict(gradients={k: p.grad for k, p in named})


def decoder(layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(128, 64), *(nn.Linear(64, 64) for _ in range(layers)), nn.Linear(64, 128))


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def main():
    global BATCH
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    BATCH = torch.randint(128, (2, 2 * M, 32), generator=torch.Generator(device).manual_seed(0))
    mine = by_torch("1F1B", SimpleNamespace(stages=n, held=lambda rank: {rank}))["gradients"]
    alone = decoder(LAYERS)
    loss_of(alone(BATCH[0]), BATCH[1]).backward()
    want = {name: p.grad for name, p in alone[2 * rank : 2 * rank + 2].named_parameters()}
    torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: the gradients of one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
