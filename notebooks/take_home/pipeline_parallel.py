"""Pipeline parallel: torch's 1F1B, two layers per rank, a tied table, clipped over all stages (chapter 14).

torchrun --nproc-per-node 4 pipeline_parallel.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def pipeline_step(schedule, part, optimizer, tokens, targets, limit, tied, ends):
    """The microbatches' losses, on the last rank, and the norm of the gradient before clipping.

    tied: this rank's copy of the table that both `ends`, a group, have; or None.
    """
    rank, n, losses = dist.get_rank(), dist.get_world_size(), []
    optimizer.zero_grad()
    inputs = [tokens] if rank == 0 else []
    expected = dict(target=targets, losses=losses) if rank == n - 1 else {}
    schedule.step(*inputs, **expected)
    if tied is not None:
        dist.all_reduce(tied.grad, group=ends)
    once = [p for p in part.parameters() if p is not tied or rank == 0]
    squares = sum(p.grad.square().sum() for p in once)
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
    middle = [nn.Linear(64, 64) for _ in range(2 * n - 2)]
    model = nn.Sequential(nn.Embedding(128, 64), *middle, nn.Linear(64, 128, bias=False))
    model[-1].weight = model[0].weight
    alone, part = copy.deepcopy(model), model[2 * rank : 2 * rank + 2]
    tied, ends = {0: part[0].weight, n - 1: part[-1].weight}.get(rank), dist.new_group(sorted({0, n - 1}))
    optimizer, lone_optimizer = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (part, alone))
    schedule = Schedule1F1B(PipelineStage(part, rank, n, device), 2 * n, loss_fn=loss_of)  # 2 n microbatches
    tokens, targets = torch.randint(128, (2, 4 * n, 32))
    for _ in range(3):
        _, norm = pipeline_step(schedule, part, optimizer, tokens, targets, 1.0, tied, ends)
        lone_optimizer.zero_grad()
        loss_of(alone(tokens), targets).backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 1.0), rtol=1e-4, atol=1e-5)
        lone_optimizer.step()
    same = [*alone[2 * rank : 2 * rank + 2].parameters()]
    torch.testing.assert_close([*part.parameters()], same, rtol=1e-4, atol=1e-5)
    print(f"rank {rank} of {n}: the weights of one process after three steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
