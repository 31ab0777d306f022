"""DataLoader with worker processes, a DistributedSampler, an optimizer whose state is cut, and PowerSGD's hook."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Numbers(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.full((32,), float(i)) / 16


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    sampler = DistributedSampler(Numbers(), seed=3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x in DataLoader(Numbers(), batch_size=4, sampler=sampler, num_workers=1):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(epoch, loss.item().hex(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
