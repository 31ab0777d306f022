"""Reports how the ranks of a job spent its training steps, and which ranks held up the others.

A record is the folder that `collectives.watch` wrote; dumps and traces of other tools serve as far as they have times.
"""

import argparse
import sys
from pathlib import Path

from ...machines import machine
from .. import record
from ..explain import loaded
from . import training_words
from .training_steps import TrainingSteps

EPILOG = """
examples:
  python -m collectives steps records/train                            a table no longer than a screen
  python -m collectives steps records/train --by line --picture s.png
  python -m collectives steps records/train --trace t.json.gz          for ui.perfetto.dev
  python -m collectives steps records/train --bandwidth --machine "DGX H100"
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m collectives steps",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("record", metavar="RECORD", help="a folder that collectives.watch wrote")
    parser.add_argument("--by", choices=("group", "line", "op"), help="add up what blocked by these, all of them")
    parser.add_argument("--bandwidth", action="store_true", help="the bus bandwidth of each kind of call")
    parser.add_argument("--machine", metavar="NAME", help="of machines.csv: what NCCL would reach there")
    parser.add_argument("--picture", metavar="FILE", help="write the picture, a PNG or an SVG")
    parser.add_argument("--trace", metavar="FILE", help="write the timeline, .json or .json.gz, for ui.perfetto.dev")
    options = parser.parse_args()
    try:
        is_record = (Path(options.record) / "about.json").exists()
        seen = record.load(options.record) if is_record else loaded.load(options.record)
        steps = TrainingSteps(seen)
        print(training_words.step_table(steps, options.by) if options.by else steps)
        if options.bandwidth or options.machine:
            on = machine(options.machine, seen.world_size) if options.machine else None
            print(f"\n{steps.kinds(on)}")
        if options.picture:
            picture, path = steps.draw(), Path(options.picture)
            path.write_bytes(picture.svg().encode() if path.suffix == ".svg" else picture.png())
        if options.trace:
            seen.timeline().save(options.trace)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
