"""A pipeline schedule as data: for each rank, its actions in order.

A model is cut into stages, a batch into microbatches.  An action computes one stage for one microbatch, forward or
backward.  Messages are not written down: a stage needs its neighbor's result, so wherever two neighboring stages
are on different ranks there is a message.  Each act on a schedule has its module.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Iterable, NamedTuple, Sequence

from ...lazy import Later

MAX_CHARACTERS = 56  # of a rank's order in words; a longer one is cut in the middle
KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "backward, the gradient of the input only",
    "W": "backward, the gradient of the weights only",
}
BACK = ("B", "I")  # actions that send a gradient to the stage before
LAST = ("B", "W")  # actions that free the activations
_ACTION = re.compile(r"(\d*)([FBIW])(\d+)")


class Action(NamedTuple):
    """A stage computes for a microbatch.  Written as torch.distributed.pipelining does: 2F5 is stage 2, forward, 5."""

    stage: int
    kind: str  # one of KINDS
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.short}"

    @property
    def short(self) -> str:
        """Without the stage: F5"""
        return f"{self.kind}{self.microbatch}"


def action(what: Action | str, stage: int) -> Action:
    """An action from "F5", of this stage, or from "2F5".  Raises ValueError for anything else."""
    if isinstance(what, Action):
        return what
    written = _ACTION.fullmatch(what) if isinstance(what, str) else None
    if not written:
        raise ValueError(
            f"{what!r} is not an action: F0, B0, I0 and W0 are, with a microbatch's number, or 2F0 of stage 2."
        )
    return Action(int(written[1] or stage), written[2], int(written[3]))


class Costs(NamedTuple):
    """Times, in any unit: each for the layers of one rank, 1/p of the model, and one microbatch."""

    forward: float = 1
    input: float = 1  # the backward's two halves; B takes both
    weight: float = 1
    message: float = 0  # from one rank to another

    def of(self, kind: str) -> float:
        return {"F": self.forward, "B": self.input + self.weight, "I": self.input, "W": self.weight}[kind]


@dataclass(frozen=True, repr=False)
class Pipeline:
    """Each rank's actions in order: the data that proof, count, program and picture read.

    rows: for each rank, its actions in order: Action, or text as "F0" (the stage then has its rank's number) or "2F0".
    name: of the schedule.

    Raises ValueError if it cannot be a schedule at all: an unknown action, a rank without actions.  Whether
    it trains the whole model on the whole batch, `prove` checks.
    """

    rows: Sequence[Iterable[Action | str]]
    name: str = field(default="schedule", compare=False)

    def __post_init__(self) -> None:
        rows = [[action(what, rank) for what in row] for rank, row in enumerate(self.rows)]
        if not rows:
            raise ValueError("a pipeline has at least one rank.")
        if [] in rows:
            raise ValueError(f"rank {rows.index([])} has nothing to do.")
        object.__setattr__(self, "rows", rows)

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @cached_property
    def stages(self) -> int:
        return 1 + max(a.stage for row in self.rows for a in row)

    @cached_property
    def microbatches(self) -> int:
        return 1 + max(a.microbatch for row in self.rows for a in row)

    @property
    def share(self) -> float:
        """A stage's part of what a rank has where the model is cut into as many stages as there are ranks."""
        return self.ranks / self.stages

    @cached_property
    def place(self) -> dict[Action, int]:
        """The rank of each action."""
        return {a: rank for rank, row in enumerate(self.rows) for a in row}

    def held(self, rank: int) -> list[int]:
        """The stages whose parameters a rank holds."""
        return sorted({a.stage for a in self.rows[rank]})

    def needs(self, a: Action) -> Action | None:
        """The action that makes this one's input, which must come first; None for a forward of the first stage."""
        if a.kind == "F":
            return Action(a.stage - 1, "F", a.microbatch) if a.stage else None
        if a.kind == "W":
            return Action(a.stage, "I", a.microbatch)
        if a.stage == self.stages - 1:
            return Action(a.stage, "F", a.microbatch)
        whole, half = (Action(a.stage + 1, kind, a.microbatch) for kind in BACK)
        return half if half in self.place and whole not in self.place else whole

    def source(self, a: Action) -> int | None:
        """The rank that sends this action its input; None: no rank, it is here already."""
        if a.kind == "W" or a.kind in BACK and a.stage == self.stages - 1:
            return None
        rank = self.place.get(self.needs(a))
        return None if rank == self.place[a] else rank

    def targets(self) -> dict[Action, int]:
        """The rank to which an action's result is sent, for actions whose result is sent."""
        return {self.needs(a): rank for a, rank in self.place.items() if self.source(a) is not None}

    prove = Later(".proof", "prove")
    count = Later(".count", "count")
    program = Later(".execute", "program")
    draw = Later(".picture", "draw_pipeline")
    beside = Later(".picture", "draw_beside")

    @property
    def title(self) -> str:
        stages = f", {self.stages} stages" * (self.stages != self.ranks)
        microbatches = f"{self.microbatches} microbatch{'es' * (self.microbatches > 1)}"
        return f"{self.name}: {self.ranks} rank{'s' * (self.ranks > 1)}{stages}, {microbatches}"

    def __repr__(self) -> str:
        """A line per rank; the stage before an action where a rank has several."""
        several = any(len(self.held(rank)) > 1 for rank in range(self.ranks))
        lines = [self.title]
        for rank, row in enumerate(self.rows):
            words = [str(a) if several else a.short for a in row]
            lines.append(f"  rank {rank} keeps {max(kept(self, rank)):<6g}{_shorten(words)}")
        return "\n".join(lines)

    def _ipython_display_(self) -> None:
        from ...frontend import show

        show(self.draw(), repr(self))


def _shorten(words: list[str]) -> str:
    """The words, or as many first and last ones as there is room for."""
    shown, fits = " ".join(words), len(words)
    while len(shown) > MAX_CHARACTERS:
        fits -= 1
        shown = " ".join([*words[: -(-fits // 2)], "...", *words[len(words) - fits // 2 :]])
    return shown


class Box(NamedTuple):
    """An action in time."""

    action: Action
    start: float
    end: float


class Starved(NamedTuple):
    """A rank that cannot continue: the action it has come to, and the one that this needs."""

    rank: int
    action: Action
    needs: Action


def plan(s: Pipeline, costs: Costs = Costs()) -> tuple[list[list[Box]], list[Starved]]:
    """Each action's time if every rank starts its next one as soon as its input is there; and the ranks that never can.

    A message is in flight while both ranks continue computing.  A stage costs its share of a rank's layers.
    """
    ended: dict[Action | None, float] = {None: 0.0}
    lanes: list[list[Box]] = [[] for _ in s.rows]
    before, at = -1, [0.0] * s.ranks  # actions that were planned a round ago; when each rank is free
    while before < len(ended):
        before = len(ended)
        for rank, (row, lane) in enumerate(zip(s.rows, lanes)):
            for a in row[len(lane) :]:
                if (need := s.needs(a)) not in ended:
                    break
                start = max(at[rank], ended[need] + costs.message * (s.source(a) is not None))
                ended[a] = at[rank] = start + costs.of(a.kind) * s.share
                lane.append(Box(a, start, at[rank]))
    left = [(rank, row[len(lane)]) for rank, (row, lane) in enumerate(zip(s.rows, lanes)) if len(lane) < len(row)]
    return lanes, [Starved(rank, a, s.needs(a)) for rank, a in left]


def kept(s: Pipeline, rank: int) -> list[float]:
    """After each action of a rank: microbatches whose activations it keeps, in layers of a rank (half a rank's: 0.5).

    They are kept from the forward until the weights' gradient is made.
    """
    return [now * s.share for now in accumulate((a.kind == "F") - (a.kind in LAST) for a in s.rows[rank])]
