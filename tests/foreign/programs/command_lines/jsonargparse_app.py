# needs: jsonargparse
from jsonargparse import CLI
from loop import train


class Trainer:
    def __init__(self, lr: float = 0.1):
        self.lr = lr

    def fit(self, steps: int = 2):
        train(self.lr, steps)


if __name__ == "__main__":
    CLI(Trainer)
