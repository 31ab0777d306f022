"""Runs a training script as torchrun would, and records and explains its communication.

torchrun --nproc-per-node 4 -m collectives.watch train.py --lr 0.1
torchrun --nproc-per-node 4 -m collectives.watch --record runs/first -m package.train --lr 0.1
"""

import argparse
import os
import sys
from functools import partial

from . import recorder, runner


def main() -> None:
    options = arguments(sys.argv[1:])
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        sys.exit(
            f"{', '.join(missing)} not set: a launcher starts this program, once for each rank.\n"
            f"    torchrun --nproc-per-node 4 -m collectives.watch {' '.join(sys.argv[1:])}"
        )
    script = options.script[0]
    if not options.module and not os.path.exists(script):
        sys.exit(f"there is no script {script} in {os.getcwd()}.")
    start = partial(runner.start, options.script, options.module)
    try:
        if options.same:
            from ..same.job import compared

            sys.exit(compared(start, options.record))
        with recorder.recording(options):
            start()
    except BaseException:
        sys.excepthook = partial(runner.show_error, sys.excepthook)
        raise


def arguments(given: list[str]) -> argparse.Namespace:
    """This program's own options, and `script`, with its arguments. A -- between the two is dropped, as torchrun does.

    A first --local_rank is the script's: some launchers (deepspeed, torch.distributed.launch) put it behind the module.
    """
    local_rank = [word for word in given[:1] if word.startswith(("--local_rank=", "--local-rank="))]
    parser = argparse.ArgumentParser("torchrun ... -m collectives.watch", description=__doc__.splitlines()[0])
    parser.add_argument("--record", metavar="FOLDER", help="what is recorded (records/SCRIPT-TIME)")
    parser.add_argument("--values", action="store_true", help="record tensors' values too; of large ones a checksum")
    parser.add_argument("--watch", action="store_true", help="notice tensors used before their call was waited for")
    parser.add_argument("--last", type=int, default=2000, metavar="CALLS", help="calls per rank to keep (%(default)s)")
    parser.add_argument("--patience", type=float, default=60.0, metavar="SECONDS", help="without any call, until the ranks' stacks are shown (%(default)s)")  # fmt: skip
    parser.add_argument("--nan", action="store_true", help="name the first rank that passes on a NaN or an infinity")
    parser.add_argument("--replicas", type=int, default=0, metavar="STEPS", help="compare ranks' parameters every so many steps of an optimizer")  # fmt: skip
    parser.add_argument(
        "--same", action="store_true", help="run only the first steps, and compare them with one process's"
    )
    parser.add_argument("--alarm", metavar="COMMAND", help="that a shell starts when there is a verdict, which it reads from its input")  # fmt: skip
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, not a script")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    options = parser.parse_args(given[len(local_rank) :])
    options.script = [options.script, *local_rank, *options.arguments]
    if options.last < 1 or options.patience <= 0:
        parser.error("--last and --patience are more than 0")
    if options.replicas < 0:
        parser.error("--replicas is a number of steps; 0 compares nothing")
    return options


if __name__ == "__main__":
    main()
