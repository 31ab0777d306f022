"""play(): a pipeline schedule whose ranks, microbatches and costs can be changed, and its bubble and memory with them."""

from ..algorithms.pipeline.count import PipelineCount, count
from ..algorithms.pipeline.picture import draw_pipeline
from ..algorithms.pipeline.pipeline import Costs
from ..algorithms.pipeline.schedules import SCHEDULES
from ..draw.canvas import Picture
from ..format import number
from .web.panel import Control, Panelled, picture_data

MAX_RANKS, MAX_MICROBATCHES = 8, 32
COSTS = (0, 0.25, 0.5, 1, 1.5, 2, 3, 4)


class Player(Panelled):
    """The result of `play`: `.schedule`, `.count`, `.draw()`, and in Jupyter the controls that change them."""

    def __init__(self, name: str, ranks: int, microbatches: int, costs: Costs) -> None:
        self.choose(name, ranks, microbatches, costs)

    def choose(self, name: str, ranks: int, microbatches: int, costs: Costs = Costs()) -> "Player":
        """Choose a schedule.  Raises ValueError for one that does not exist, or not for these numbers."""
        if name not in SCHEDULES:
            raise ValueError(f"there is no schedule {name!r}; these are: {', '.join(SCHEDULES)}.")
        self.schedule = SCHEDULES[name](ranks, microbatches)
        self.name, self.costs = name, costs
        return self

    @property
    def count(self) -> PipelineCount:
        return count(self.schedule, self.costs)

    def draw(self) -> Picture:
        return draw_pipeline(self.schedule, self.costs)

    def __repr__(self) -> str:
        return repr(self.count)

    def controls(self) -> list[Control]:
        labels = ("forward", "backward: input", "backward: weights", "message")
        return [
            Control("name", [(name, name) for name in SCHEDULES], self.name, "schedule", buttons=True),
            Control("ranks", [(str(k), k) for k in range(1, MAX_RANKS + 1)], self.schedule.ranks),
            Control("microbatches", [(str(k), k) for k in range(1, MAX_MICROBATCHES + 1)], self.schedule.microbatches),
            *(
                Control(field, [(number(c), c) for c in sorted({*COSTS, cost}) if c or field == "message"], cost, label)
                for field, label, cost in zip(Costs._fields, labels, self.costs)
            ),
        ]

    def react(self, chosen: dict) -> dict:
        """The figures for a setting, or the reason why its schedule is not possible."""
        was, costs = self.count, Costs(*(chosen[field] for field in Costs._fields))
        try:
            self.choose(chosen["name"], chosen["ranks"], chosen["microbatches"], costs)
        except ValueError as reason:
            return {"words": str(reason)}
        now, kept = self.count, max(self.count.peaks)
        words = f"time {number(now.time)}; bubble {now.of_work:.1%} of the work; a rank keeps at most {number(kept)} "
        words += f"microbatch{'es' * (kept != 1)}; {now.sent} messages"
        if now.parameters != 1:
            words += f", {number(now.parameters)} stages' parameters per rank"
        if now != was:
            words += f" (before: time {number(was.time)}, bubble {was.of_work:.1%}, kept {number(max(was.peaks))})"
        return {"words": words, "picture": picture_data(self.draw(), words)}


def play(name: str = "1F1B", ranks: int = 4, microbatches: int = 8, costs: Costs = Costs()) -> Player:
    """A schedule to play with: change it, its ranks, microbatches and costs, and see time, bubble and memory move.

    name: one of SCHEDULES.  costs: the first ones.  Raises ValueError for a schedule that cannot be.
    """
    return Player(name, ranks, microbatches, costs)
