"""The training steps of a run or a job: each rank's work, waits and moving data, and the rank that held up the others.

steps = training_steps(load("records/train"))
steps                                                       # a table no longer than a screen
steps.draw(), steps.by("line"), steps[7].ranks[0].waited    # the picture; by line of the program; one figure
"""

from ...frontend import show
from ...lazy import Later
from ...outcome.run import Run
from .step_times import StepTimes
from .training_words import table


class TrainingSteps(StepTimes):
    """StepTimes with their table, their picture, and the kinds of their calls."""

    draw = Later(".training_picture", "draw_steps")
    kinds = Later(".training_words", "kinds")  # of calls, and the bus bandwidth of each

    def __repr__(self) -> str:
        return table(self)

    def _ipython_display_(self) -> None:
        show(self.draw() if self else None, repr(self))


def training_steps(run: Run) -> TrainingSteps:
    """The training steps of a run or a record, as its ranks' optimizers or `step_ended()` counted them.

    Where neither did, as in the dumps of other tools, the repetitions of calls count as steps. Raises ValueError for a
    run without calls.
    """
    return TrainingSteps(run)
