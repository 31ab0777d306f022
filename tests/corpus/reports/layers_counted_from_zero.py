"""each pipeline stage counts its layers from zero, so the second loads the first one's weights."""

import torch
import torch.distributed as dist

SOURCE = "loading a checkpoint into pipeline stages"
CAUSE = r"stage .*layers of|loaded .*rank 0's"
SAME = True


def job(rank, n):
    saved = {f"layers.{k}": torch.tensor(float(k)) for k in range(2 * n)}
    stage = [saved[f"layers.{k}"] for k in range(2)]
    total = torch.stack(stage).sum()
    dist.all_reduce(total)
    return total.item()
