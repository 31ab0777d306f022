"""Collective communication, run for real and seen whole: ordinary torch.distributed code on local ranks, or a job of yours.

from collectives import run
run(fn, world_size=4)                                        # every rank's tensors before and after, and what traveled

torchrun --nproc-per-node 4 -m collectives.watch train.py    # the same record of a training job
python -m collectives                                        # all that the command line can do
"""

import sys

from .lazy import lazy
from .version import __version__ as __version__

# Each module and its names, loaded at first use: grading needs no torch, a rank needs no pictures.
__all__ = lazy(
    __name__,
    {
        ".outcome.errors": "Mismatch RankFailed RunError Stuck",
        ".outcome.run": "Run",
        ".launch.run": "run",
        ".figures.stepper": "step",
        ".watch.steps.timeline": "timeline",
        ".watch.steps.training_steps": "training_steps",
        ".log.calls": "Call",
        ".rank.step_marks": "step_ended",
        ".rank.window": "Window",
        ".log.event": "Event Line Summary",
    },
)

if "IPython" in sys.modules:  # a Jupyter kernel, perhaps: then ranks are made ready while the reader reads
    from .launch.pool import start_early

    start_early()
