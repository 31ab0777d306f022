"""planner(): a model on a cluster whose degrees of parallelism can be moved, and its cost moves with them."""

from collectives.draw.canvas import Picture
from collectives.figures.planning import Planning
from collectives.figures.web.panel import Panelled
from collectives.planner import Division, Program, Shape
from collectives.planner.software import LATEST


class Planner(Planning, Panelled):
    """The result of `planner`: `.step`, `.draw()`, and in Jupyter the controls that change them."""

    def draw(self) -> Picture:
        return self.step.draw()

    def __repr__(self) -> str:
        return repr(self.step)

    def recording(self) -> dict | None:
        """The data from which Python on a page plans again."""
        return {"kind": "planner", "asked": self.asked()} if isinstance(self.program, str) else None


def planner(
    model: Shape,
    division: Division = Division(),
    batch: int = 512,
    *,
    gpu: str = "H100",
    nic: float = 50e9,
    program: str | Program = LATEST,
) -> Planner:
    """A division to play with: move its degrees, and see memory, bytes, bubble and time follow.

    division: the first one; the cluster has as many GPUs as it needs.  batch: sequences per step.  nic: bytes/s of a
    GPU's card.  program: as `step` takes it.  Raises ValueError for a division that cannot be.
    """
    return Planner(model, division, batch, gpu=gpu, nic=nic, program=program)
