"""The records of a rank's first steps, as plain data."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..log.event import Line
from .replay import Feed


class CallMade(NamedTuple):
    """A call of torch.distributed in the first steps."""

    op: str
    ranks: tuple[int, ...]  # of its group
    line: Line | None
    about: tuple[str, ...]  # "gradient of NAME", "output of NAME": whose memory it was passed
    numel: int
    step: int  # steps that an optimizer had made
    backward: bool  # after a backward of this step, or in it
    unwinding: bool  # in a backward, as DistributedDataParallel's
    cut_off: str = ""  # it was passed this, "the output of NAME", without its history, where autograd records
    aliases: tuple[str, ...] = ()  # variables that all are the tensor it writes into, and are all read afterward
    summed: torch.Tensor | None = None  # the few numbers that are this rank's part of a sum
    piece: tuple[int, int] | None = None  # the index of the piece that it was passed, and the number of pieces
    reading: float | None = None  # the number that the program reads of the sum
    is_norm: bool = False  # it takes the root first


@dataclass
class TensorStep:
    """One parameter in one step.  Tensors are this rank's parts, on the CPU."""

    passes: list[torch.Tensor] = field(default_factory=list)  # gradients as backward passes made them, if torch shows it
    taken: bool = False  # an optimizer has taken it
    grad: torch.Tensor | None = None  # as the optimizer took it
    by_hand: bool = False  # "optimizer" is the program's own arithmetic, or nothing took it before the function's end
    line: Line | None = None  # where it was taken
    after: torch.Tensor | None = None  # the parameter, at the next forward
    unseen: bool = False  # the step is over, though nothing was seen to take the gradient: ZeRO by hand
    opened: int = 0  # steps that optimizers had made

    @property
    def local(self) -> torch.Tensor | None:
        """The sum of the backward passes' gradients."""
        return sum(self.passes[1:], self.passes[0]) if self.passes else None


@dataclass
class Parameter:
    """A tensor that is trained, on one rank."""

    first: torch.Tensor | None  # its values at the first forward; None if its memory was freed then
    shape: tuple[int, ...]  # of the part
    start: tuple[int, ...] | None = None  # the part's first index in a DTensor
    whole: tuple[int, ...] | None = None  # the DTensor's shape
    steps: list[TensorStep] = field(default_factory=list)


@dataclass
class FirstSteps:
    """The first steps of one rank, as plain data."""

    parameters: dict[str, Parameter] = field(default_factory=dict)  # in the order of the modules
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)  # of modules in the first step, in forward order
    notes: dict[str, torch.Tensor] = field(default_factory=dict)
    inputs: list[torch.Tensor] = field(default_factory=list)  # data of outermost modules in the first step
    losses: list[float] = field(default_factory=list)  # whose backward was called
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)  # of modules, after the last step
    reads: dict[str, list[list[float]]] = field(default_factory=dict)  # by line, numbers that left torch
    loads: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)  # names saved, and those loaded
    clues: list[str] = field(default_factory=list)  # what may be the cause of a difference
    calls: list[CallMade] = field(default_factory=list)
    feed: Feed = field(default_factory=Feed)
    settings: list[dict] = field(default_factory=list)  # of each parameter group of the first optimizer
    in_ddp: set[str] = field(default_factory=set)  # parameters of a DistributedDataParallel
    stale: str = ""  # why no optimizer takes a gradient
    doubts: list[str] = field(default_factory=list)  # reasons for which a difference might be no mistake
    remarks: list[str] = field(default_factory=list)  # beside any verdict
    dtypes: set[torch.dtype] = field(default_factory=set)  # in which it computes or sends

    def doubt(self, reason: str) -> None:
        if reason not in self.doubts:
            self.doubts.append(reason)

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def clue(self, text: str) -> None:
        if text not in self.clues:
            self.clues.append(text)
