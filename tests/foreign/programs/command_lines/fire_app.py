# needs: fire
import fire
from loop import train


def main(lr: float = 0.1, steps: int = 2, **kwargs):
    print(kwargs, flush=True)
    train(lr, steps)


if __name__ == "__main__":
    fire.Fire(main)
