# needs: simple_parsing
from dataclasses import dataclass

import simple_parsing
from loop import train


@dataclass
class Args:
    lr: float = 0.1  # learning rate
    steps: int = 2
    """how many"""


if __name__ == "__main__":
    args = simple_parsing.parse(Args)
    train(args.lr, args.steps)
