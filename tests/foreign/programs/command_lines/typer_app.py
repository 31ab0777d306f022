# needs: typer
import typer
from loop import train


def main(steps: int, lr: float = 0.1):
    train(lr, steps)


if __name__ == "__main__":
    typer.run(main)
