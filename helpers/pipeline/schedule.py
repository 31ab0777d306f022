"""`Pipeline`: a pipeline schedule as data, and what can be done with it. Each act has a module of its own."""

from __future__ import annotations

from dataclasses import dataclass

from .model import BasePipeline, Costs


@dataclass(frozen=True, repr=False, eq=False)
class Pipeline(BasePipeline):
    __doc__ = BasePipeline.__doc__

    def prove(self):
        """Shows that every microbatch goes through every stage, forward and backward, without deadlock: proof.prove."""
        from .proof import prove

        return prove(self)

    def count(self, costs: Costs = Costs()):
        """Time, bubble, activations kept and messages, by costs: count.count."""
        from .count import count

        return count(self, costs)

    def program(self):
        """The rank function that carries the schedule out with torch.distributed: execute.program."""
        from .execute import program

        return program(self)

    def draw(self, costs: Costs = Costs()):
        """The picture: a lane a rank, a box an action, activations below; picture.draw."""
        from .picture import draw

        return draw(self, costs)

    def beside(self, run, costs: Costs):
        """The plan above, and below it, to the same scale, when a run of `program` did each action; picture.beside.

        costs: in seconds.
        """
        from .picture import beside

        return beside(self, run, costs)

    def __repr__(self) -> str:
        from .text import text

        return text(self)

    def _ipython_display_(self) -> None:
        from ..frontend import show

        show(self.draw(), repr(self))
