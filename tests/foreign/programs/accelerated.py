# needs: accelerate
"""An accelerate loop: prepare, gradients accumulated, metrics gathered."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(5)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=2))
    for (x,) in loader:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print([value.hex() for value in accelerator.gather(loss.detach()).tolist()], flush=True)
    accelerator.print("main alone")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
