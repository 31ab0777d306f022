"""Pipeline parallel: torch's 1F1B, a stage of two layers per rank, clipped over all stages (chapter 14).

torchrun --nproc-per-node 4 pipeline_parallel.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES, LIMIT = 8, 1.0


def pipeline_step(schedule, part, optimizer, tokens, targets, limit):
    """The microbatches' losses, on the last rank, and the norm of the gradient before clipping."""
    rank, n, losses = dist.get_rank(), dist.get_world_size(), []
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(tokens)
    elif rank < n - 1:
        schedule.step()
    else:
        schedule.step(target=targets, losses=losses)
    squares = sum(p.grad.square().sum() for p in part.parameters())
    dist.all_reduce(squares)  # over all stages
    norm = squares.sqrt()
    torch.nn.utils.clip_grads_with_norm_(part.parameters(), limit, norm)
    optimizer.step()
    return losses, norm


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def main():
    device = torch.device("cpu")  # GPU: torch.device("cuda", dist.get_node_local_rank())
    torch.set_default_device(device)  # GPU: and torch.cuda.set_device(device)
    dist.init_process_group("gloo")  # GPU: dist.init_process_group("nccl", device_id=device)
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # all ranks draw the whole model, and keep their own two layers
    model = nn.Sequential(nn.Embedding(128, 64), *(nn.Linear(64, 64) for _ in range(2 * n - 2)), nn.Linear(64, 128))
    tokens, targets = torch.randint(128, (2, 2 * MICROBATCHES, 32))
    part, alone = model[2 * rank : 2 * rank + 2], copy.deepcopy(model)
    optimizer, lone_optimizer = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (part, alone))
    schedule = Schedule1F1B(PipelineStage(part, rank, n, device), MICROBATCHES, loss_fn=loss_of)
    for _ in range(3):
        _, norm = pipeline_step(schedule, part, optimizer, tokens, targets, LIMIT)
        lone_optimizer.zero_grad()
        loss_of(alone(tokens), targets).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), LIMIT), rtol=1e-4, atol=1e-5)
        lone_optimizer.step()
    same = [*alone[2 * rank : 2 * rank + 2].parameters()]
    torch.testing.assert_close([*part.parameters()], same, rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: the weights of one process after three steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
