# needs: tyro
import dataclasses

import tyro
from loop import train


@dataclasses.dataclass
class Optimizer:
    lr: float = 0.1
    """Learning rate."""


@dataclasses.dataclass
class Args:
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    steps: int = 2


if __name__ == "__main__":
    args = tyro.cli(Args)
    train(args.optimizer.lr, args.steps)
