"""All numbers of a run, and the command line that sets them."""

import argparse
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Config:
    pp: int = 1  # pipeline stages
    dp: int = 1  # copies of the parameters
    fs: int = 1  # shards of the parameters
    ep: int = 1  # ranks that share the experts of a block
    cp: int = 1  # parts of a sequence
    tp: int = 1  # parts of a matrix
    sequence: int = 0  # 1: the ranks of tp share the positions, too, where no matrix is cut
    gather: int = 0  # 1: keys and values go to all ranks of cp at once, not around a ring

    layers: int = 4
    width: int = 64
    heads: int = 8
    experts: int = 0  # 0: one MLP per block
    chosen: int = 2  # experts per token
    length: int = 64
    rows: int = 16  # of all ranks together
    microbatches: int = 2
    steps: int = 10
    lr: float = 0.003
    decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    text: str = ""  # the file to learn; "": this program
    save: str = ""  # a folder for checkpoints, from which a run resumes
    every: int = 5  # steps between two of them
    dtype: str = "float32"
    device: str = "cpu"

    islands: int = 1  # jobs that train together, each with a mesh of these sizes
    island: int = 0  # the number of this one
    meet: str = "localhost:29600"  # where the first rank of island 0 waits for the others; of replicas: survive.py
    talk: int = 10  # steps of a job between two talks of the same layer
    fragments: int = 1  # parts of the layers, which take turns to talk
    outer_lr: float = 1.0
    outer_momentum: float = 0.5

    replicas: int = 1  # jobs with a mesh of these sizes that add up their gradients, as long as they live
    replica: int = 0  # the number of this one
    least: int = 1  # replicas without which none goes on

    def __post_init__(self):
        shares = self.dp * self.fs * self.ep * self.microbatches
        self._divides("rows", shares, "dp * fs * ep * microbatches")
        self._divides("length", 2 * self.cp if self.cp > 1 else 1, "2 * cp")
        self._divides("length", self.cp * self.tp if self.sequence else 1, "cp * tp")
        self._divides("heads", self.tp, "tp")
        self._divides("width", 2 * self.heads, "2 * heads")
        if self.ep > 1 and not self.experts:
            raise ValueError(f"--ep {self.ep} needs --experts, a multiple of it")
        self._divides("experts", self.ep, "ep")
        if 0 < self.experts < self.chosen:
            raise ValueError(f"--chosen {self.chosen} is more than --experts {self.experts}")
        self._divides("talk", self.fragments, "fragments")
        if not 0 <= self.island < self.islands:
            raise ValueError(f"--island {self.island} isn't one of {self.islands}, which count from 0")
        if self.islands > 1 and self.save:
            raise ValueError("--save keeps nothing of the outer optimizer, so it needs --islands 1")
        if not 0 <= self.replica < self.replicas:
            raise ValueError(f"--replica {self.replica} isn't one of {self.replicas}, which count from 0")
        if not 1 <= self.least <= self.replicas:
            raise ValueError(f"--least {self.least} isn't from 1 to --replicas {self.replicas}")
        if self.replicas > 1 and (self.save or self.islands > 1):
            raise ValueError("--replicas keep each other's copies, so they need --islands 1 and no --save")
        if self.pp > self.layers + 2:
            raise ValueError(f"--pp {self.pp} is more than {self.layers} layers, an embedding and a head")

    def _divides(self, name, divisor, words):
        if getattr(self, name) % divisor:
            raise ValueError(f"--{name} {getattr(self, name)} isn't a multiple of {words}, {divisor}")


def from_command_line():
    parser = argparse.ArgumentParser(description="Train a small decoder on a mesh of ranks.")
    for field in fields(Config):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    try:
        return Config(**vars(parser.parse_args()))
    except ValueError as problem:
        parser.error(str(problem))
