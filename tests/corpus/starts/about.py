"""What a program finds of itself when it starts, and how its error reads.

Run as a script, from a folder, from a zip file and as a module: with the recorder it must print what it prints without.
"""

import argparse
import dataclasses
import pickle
import sys

import __main__

steps: int = 3


@dataclasses.dataclass
class Config:
    """The commonest way to read a command line: the types are the annotations themselves."""

    lr: float = 0.1
    name: str = "first"


def configured():
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    return Config(**vars(parser.parse_args()))


def fail():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no such layer") from error


if __name__ == "__main__":
    print(configured(), sys.argv, sys.path[0], sys.excepthook is sys.__excepthook__)
    for name, value in sorted(vars(__main__).items()):
        if name not in ("fail", "configured", "Config"):
            print(name, value if isinstance(value, (str, dict, int, type(None))) else type(value).__name__)
    print(pickle.loads(pickle.dumps(Config(lr=1.0))), sys.modules["__main__"] is __main__)
    fail()
