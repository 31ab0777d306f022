# needs: lightning
"""Lightning's Trainer, with its DDP strategy on the environment that torchrun made."""

import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, sync_dist=True)
        print(loss.item().hex(), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    lightning.seed_everything(1)
    data = DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4) / 64), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), data)
    print(trainer.callback_metrics["loss"].item().hex(), flush=True)


if __name__ == "__main__":
    main()
