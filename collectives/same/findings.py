"""The findings of a comparison, as data."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from .places import Region
from .records import FirstSteps, TensorStep


class RankPart(NamedTuple):
    """The part of one process's parameter that a rank holds."""

    rank: int
    name: str  # on this rank
    places: tuple[Region, ...]  # more than one where values repeat


class TensorRow(NamedTuple):
    """A line of the table."""

    tensor: str
    held: str  # by ranks
    found: str  # next to one process: "equal"


@dataclass
class Comparison:
    """Whether ranks computed what one process computed.

    .verdict: "same", "differs" or "cannot compare".  .reason: a sentence; of "differs", it names .first.
    .first: the first tensor that differs, or "".  .rows: what was compared, in the order of the modules.
    .tensors, .steps: the parameters and the steps whose gradients were compared.  .stepped: whether a step made the difference,
    or came before it.
    """

    verdict: str
    reason: str
    world_size: int
    first: str = ""
    rows: list[TensorRow] = field(default_factory=list)
    tensors: int = 0
    steps: int = 0
    worst: float = 0.0  # relative error of these gradients
    remarks: list[str] = field(default_factory=list)
    stepped: bool = False


@dataclass
class Difference:
    """A gradient that differs."""

    target: str  # its name in one process
    place: Region
    step: int
    parts: list[RankPart]  # of the ranks that hold this place
    steps: list[TensorStep]  # of these ranks
    whole: torch.Tensor  # one process's gradient at this place
    full: torch.Tensor  # one process's gradient
    shape: tuple[int, ...]  # of one process's tensor

    @property
    def ranks(self) -> list[int]:
        return [part.rank for part in self.parts]

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [torch.zeros_like(self.whole) if s.grad is None else s.grad.view_as(self.whole) for s in self.steps]

    @property
    def label(self) -> str:
        return self.target + self.place.text(self.shape)


@dataclass
class Records:
    """The records, and where ranks hold parts of one process's tensors."""

    ranks: list[FirstSteps]
    one: FirstSteps
    tolerance: float  # of a gradient in the first step, relative to its norm
    parts: dict[str, list[RankPart]] = field(default_factory=lambda: defaultdict(list))  # by name in one process

    @property
    def n(self) -> int:
        return len(self.ranks)

    def data_size(self, rank: int) -> int:
        """How many numbers of data a rank has, in modules or, without any, in what it wrote down by itself."""
        record = self.ranks[rank]
        sources = [part for line in record.feed.sources for part in record.feed.sources[line]]
        return sum(x.numel() for x in record.inputs or sources)
