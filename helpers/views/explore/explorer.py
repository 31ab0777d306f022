"""`explore()`: every collective under your hands.

    from helpers import explore

    explore()

Choose the collective, the number of ranks, the root, the reduce op, the dtype and the size.
Each change runs the code that stands beside the controls on real ranks, and shows what they
held before and after.
"""

from __future__ import annotations

from ...draw.canvas import Picture
from ...frontend import Interactive
from ...results.errors import RunError
from ...results.run import Run
from .experiment import CALLS, DTYPES, REDUCE_OPS, SIZES, WORLD_SIZES, Experiment


def explore(
    op: str = "all_reduce",
    world_size: int = 4,
    root: int = 0,
    reduce_op: str = "SUM",
    dtype: str = "float32",
    size: int = 3,
) -> Explorer:
    """Controls for one collective, and the picture and table of its real run, which follow them.

    op: a collective, by torch's name.  world_size: 2 to 8 ranks.  root: src or dst.
    reduce_op: "SUM", ...  dtype: "float32", ...  size: numbers in the tensor, or in each
    rank's chunk of it; one of SIZES.

    The last expression of a cell, it shows itself.  Raises ValueError for a start that
    the controls do not offer.
    """
    offered = dict(
        op=CALLS, world_size=WORLD_SIZES, root=range(world_size), reduce_op=REDUCE_OPS, dtype=DTYPES, size=SIZES
    )
    chosen = dict(op=op, world_size=world_size, root=root, reduce_op=reduce_op, dtype=dtype, size=size)
    for name, value in chosen.items():
        if value not in offered[name]:
            raise ValueError(f"explore: {name} is one of {', '.join(map(str, offered[name]))}, not {value!r}.")
    return Explorer(chosen)


class Explorer(Interactive):
    """The controls of an experiment.

    `.code`: the program that ran.  `.run`: its Run, or the RunError.
    """

    def __init__(self, chosen: dict) -> None:
        self.experiment = Experiment(chosen)
        self._view = None

    @property
    def run(self) -> Run | RunError:
        return self.experiment.run

    @property
    def code(self) -> str:
        return self.experiment.code

    def choose(self, **chosen) -> None:
        """Sets some controls at once, and runs."""
        self.experiment.choose(**chosen)

    def __repr__(self) -> str:
        return f"{self.code}\n\n{self.experiment.words}"

    def widget(self):
        """The widget, made when first asked for."""
        if self._view is None:
            from .widget import figure

            self._view = figure(self.experiment)
        return self._view

    def recording(self) -> dict:
        """Only that there is one: the website has its runs, made once, in helpers/views/web/recorded.json."""
        return {"kind": "explore"}

    def preview(self) -> Picture:
        return self.experiment.picture

    def unattended(self) -> tuple[Picture, str]:
        return self.experiment.picture, repr(self)
