"""Collective communication, run for real and seen whole: ordinary torch.distributed code on local ranks, or a job of yours.

from collectives import run
run(fn, world_size=4)                                        # every rank's tensors before and after, and what traveled

torchrun --nproc-per-node 4 -m collectives.watch train.py    # the same record of a training job
python -m collectives                                        # all that the command line can do
"""

from .launch.pool import start_early
from .lazy import lazy

# Each module and its names, loaded when one is asked for: who only grades needs no torch, a rank needs no pictures.
__all__ = lazy(
    __name__,
    {
        ".judge.errors": "Mismatch RankFailed RunError Stuck",
        ".judge.run": "Run",
        ".launch.run": "run",
        ".play.step": "step",
        ".play.timeline": "timeline",
        ".play.training": "training_steps",
        ".record.calls": "Call",
        ".rank.steps": "step_ended",
        ".record.event": "Event Line Summary",
    },
)

start_early()
