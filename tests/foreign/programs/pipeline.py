"""Two stages of torch.distributed.pipelining, one forward one backward."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4) for _ in range(size)]
stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda x, y: (x - y).square().mean())
for step in range(2):
    inputs, target, losses = torch.randn(8, 4), torch.randn(8, 4), []
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=target, losses=losses)
    print(step, [loss.item().hex() for loss in losses], layers[rank].weight.grad.sum().item().hex(), flush=True)
dist.barrier()
dist.destroy_process_group()
