"""Moving figures: a run or a schedule step by step, its timeline, and a pipeline whose ranks and costs can be changed.

from collectives.play import play, step, timeline, training_steps
"""

from .lazy import lazy

__all__ = lazy(
    __name__,
    {
        "collectives.figures.player": "play",
        "collectives.figures.stepper": "step",
        "collectives.watch.steps.timeline": "timeline",
        "collectives.watch.steps.training_steps": "training_steps",
    },
)
