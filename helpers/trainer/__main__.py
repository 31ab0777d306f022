"""The trainer, compared with one process:   python -m helpers.trainer [--mine [FOLDER]]

Each mesh of a sample trains two steps, and its losses, gradients and parameters must be equal to one process's; then a
checkpoint is resumed on other meshes.  --mine: write the trainer to FOLDER with your functions of chapters 13 to 17, 20 and 24 that
have passed their checks, and run that.
"""

import argparse
import sys
import tempfile
from math import prod
from pathlib import Path

from collectives.outcome.errors import RunError

from ..course import TRAINER
from .meshes import SAMPLE, compare, compare_islands, label, resume
from .swap import swap


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m helpers.trainer", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--mine", nargs="?", const="my_trainer", metavar="FOLDER", help="by default: my_trainer")
    chosen = parser.parse_args().mine
    path = TRAINER
    if chosen is not None:
        path = Path(chosen).resolve()
        if path.exists():
            parser.error(f"{chosen} is there already: remove it, or name a different folder")
        for part, is_yours in swap(path).items():
            reason = "yours" if is_yours else "ours, as yours hasn't passed its check"
            print(f"{part.chapter:<26}{part.name:<18}{part.file:<15}{reason}")
    try:
        for mesh in SAMPLE:
            for experts in (0, 8) if "ep" not in mesh else (8,):
                compare(path, prod(mesh.values()), [(mesh, experts)])
                print(f"{label(mesh, experts):<38}trains as one process does", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            resume(path, folder)
        print("A checkpoint continues on other meshes.")
        compare_islands(path)
        print("Two islands train as one process that takes them in turn.")
    except (AssertionError, RunError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
