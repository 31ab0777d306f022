"""The cost of a pipeline schedule: time, bubble, activations kept, messages."""

from collections import Counter
from dataclasses import dataclass
from typing import Iterable

from ...format import align, number
from .pipeline import Costs, Pipeline, kept, plan


@dataclass(frozen=True)
class PipelineCount:
    """Time is in the unit of the costs, and a step's: from the first forward to the end of the last backward."""

    name: str
    costs: Costs
    time: float
    work: float  # that a rank computes, of `time`; the busiest one's
    peaks: list[float]  # per rank: microbatches whose activations it keeps at most, through a rank's layers each
    messages: list[int]  # per rank, that it sends: an activation or a gradient of one microbatch each
    parameters: float  # that a rank holds, in p-ths of the model

    @property
    def bubble(self) -> float:
        """Time that the busiest rank waits."""
        return self.time - self.work

    @property
    def of_work(self) -> float:
        """Bubble / work: Megatron-LM's bubble, (p - 1) / m for 1F1B (arXiv 2104.04473, section 2.2)."""
        return self.bubble / self.work

    @property
    def of_time(self) -> float:
        """Bubble / time: GPipe's bubble, (p - 1) / (m + p - 1) (arXiv 1811.06965, section 2.3)."""
        return self.bubble / self.time

    @property
    def sent(self) -> int:
        """Messages of all ranks."""
        return sum(self.messages)

    def __repr__(self) -> str:
        f, i, w, message = (number(c) for c in self.costs)
        also = f", a message {message}" if self.costs.message else ""
        twice = f"\n  parameters  {number(self.parameters)} times a stage's" if self.parameters != 1 else ""
        return (
            f"{self.name}; a forward takes {f}, a backward {i} + {w}{also}\n"
            f"  time        {number(self.time)}, of which a rank works {number(self.work)} and waits {number(self.bubble)}\n"
            f"  bubble      {self.of_work:.1%} of the work, {self.of_time:.1%} of the time\n"
            f"  kept        at most {_row(self.peaks)} microbatches, rank by rank\n"
            f"  messages    {self.sent}; by rank {_row(self.messages)}{twice}"
        )


def _row(values: Iterable[float]) -> str:
    return " ".join(number(v) for v in values)


def count(s: Pipeline, costs: Costs = Costs()) -> PipelineCount:
    """Time and bubble by costs, activations kept, messages.  Raises WrongPipeline where there is a deadlock."""
    lanes, stuck = plan(s, costs)
    if stuck:
        s.prove()
    sent = Counter(map(s.source, s.place))
    return PipelineCount(
        s.name,
        costs,
        time=max(lane[-1].end for lane in lanes),
        work=max(sum(box.end - box.start for box in lane) for lane in lanes),
        peaks=[max(kept(s, rank)) for rank in range(s.ranks)],
        messages=[sent[rank] for rank in range(s.ranks)],
        parameters=max(len(s.held(rank)) for rank in range(s.ranks)) * s.share,
    )


class PipelineCounts(list):
    """Counts, a line each.

    bubble: of the work.  kept: by the ranks with least and most, in microbatches.  holds: a rank's part of the model.
    """

    def __repr__(self) -> str:
        rows = [("", "time", "bubble", "kept", "messages", "holds")]
        for c in self:
            low, high = min(c.peaks), max(c.peaks)
            held = number(high) if low == high else f"{number(low)} to {number(high)}"
            share = f"{number(c.parameters)}/{len(c.peaks)}"
            rows.append((c.name, number(c.time), f"{c.of_work:.1%}", held, str(c.sent), share))
        return align(rows, right=range(1, 6))


def table(schedules: Iterable[Pipeline], costs: Costs = Costs()) -> PipelineCounts:
    """The counts of several schedules, one below the other."""
    return PipelineCounts(count(s, costs) for s in schedules)
