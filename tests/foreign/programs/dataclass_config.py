"""A config of dataclasses, whose annotations become the types of argparse's options."""

import argparse
import dataclasses

import torch
import torch.distributed as dist


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    steps: int = 3
    seed: int = 1337
    name: str = "run"

    @classmethod
    def parsed(cls):
        parser = argparse.ArgumentParser()
        for field in dataclasses.fields(cls):
            parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
        return cls(**vars(parser.parse_args()))


def main():
    config = Config.parsed()
    dist.init_process_group("gloo")
    torch.manual_seed(config.seed + dist.get_rank())
    weight = torch.zeros(8)
    for step in range(config.steps):
        gradient = weight - torch.randn(8)
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        weight -= config.lr * gradient
        print(config.name, step, weight.sum().item().hex(), flush=True)
    print(__annotations__ if "__annotations__" in globals() else {}, Config.__annotations__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
