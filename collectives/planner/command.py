"""collectives plan: a model on a cluster, the first plans and why others lose, as a table."""

import argparse
import sys

from ..machines.gpu import gpus
from ..machines.presets import cluster
from .division import KINDS
from .search import plan
from .shape import SHAPES, shape
from .software import LATEST, PROGRAMS

EXAMPLE = 'example: collectives plan "Llama 3 70B" --gpus 512 --batch 512'


def main() -> None:
    asked = _parser().parse_args()
    if asked.models:
        print("\n".join(f"{s.name:<18}{s.parameters / 1e9:>9,.1f} billion parameters" for s in SHAPES.values()))
        return
    try:
        model = shape(asked.model or "")
        model = model.with_(length=asked.length) if asked.length else model
        machine = cluster(asked.gpu, asked.gpus, asked.card * 1e9 / 8, asked.node)
        capacity = asked.memory * 2**30 if asked.memory else None
        how = dict(without=asked.without, program=asked.program, capacity=capacity)
        found = plan(model, machine, asked.batch, **how)
    except ValueError as reason:
        sys.exit(f"collectives plan: {reason}")
    print(found)
    sys.exit(0 if found else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Divide a model over a cluster: the five fastest ways that fit, and why others lose.",
        epilog=EXAMPLE,
    )
    parser.add_argument("model", nargs="?", help='a published model, as "Llama 3 70B"; --models lists them')
    parser.add_argument("--models", action="store_true", help="list the models and exit")
    parser.add_argument("--gpus", type=int, default=8, help="how many (8)")
    parser.add_argument("--gpu", default="H100", choices=gpus(), help="which (H100)")
    parser.add_argument("--batch", type=int, default=512, help="sequences per step (512)")
    parser.add_argument("--length", type=int, help="tokens of a sequence (the model's)")
    parser.add_argument("--memory", type=float, help="GiB of a GPU, where it isn't the usual card")
    parser.add_argument("--card", type=float, default=400, help="Gb/s of each GPU's network card (400)")
    parser.add_argument("--node", type=int, help="GPUs that NVLink joins (as sold: 8, or 72 in a rack of GB200s)")
    parser.add_argument("--without", nargs="+", default=[], choices=KINDS, help="kinds of parallelism to leave out")
    parser.add_argument("--program", default=LATEST, choices=PROGRAMS, help=f"what trains ({LATEST})")
    return parser


if __name__ == "__main__":
    main()
