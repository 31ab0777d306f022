"""Whether a pipeline schedule trains the whole model on the whole batch, for any model: a proof, or the flaw."""

from collections import Counter
from itertools import product
from typing import NamedTuple

from .pipeline import BACK, KINDS, Action, Pipeline, Starved, plan


class WrongPipeline(AssertionError):
    """A schedule that does not do its work. The message names the place."""

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


class PipelineProof(NamedTuple):
    """The facts that were proved; its repr words them."""

    name: str
    stages: int
    microbatches: int
    actions: int

    def __repr__(self) -> str:
        return (
            f"{self.name} is right: {self.microbatches} microbatches pass {self.stages} stages forward and backward, each "
            f"once and in order.\nAll {self.actions} actions can be done: no rank waits forever."
        )


def prove(s: Pipeline) -> PipelineProof:
    """Show that every microbatch goes through every stage, forward, then backward, and that all ranks come to their end.

    Raises WrongPipeline with the first thing that is wrong.  Sends are assumed not to block: whether blocking ones
    deadlock is a different question, which a run answers.
    """
    _complete(s)
    _in_place(s)
    _, stuck = plan(s)
    if stuck:
        raise WrongPipeline(_deadlock(s, stuck))
    return PipelineProof(s.name, s.stages, s.microbatches, len(s.place))


def _complete(s: Pipeline) -> None:
    """Each stage has one forward and one backward, or its two halves, of each microbatch."""
    times = Counter(a for row in s.rows for a in row)
    if twice := [a for a, count in times.items() if count > 1]:
        raise WrongPipeline(f"{s.name}: {twice[0]} is done {times[twice[0]]} times.")
    for stage, k in product(range(s.stages), range(s.microbatches)):
        kinds = "".join(kind for kind in KINDS if Action(stage, kind, k) in s.place)
        where = f"stage {stage} and microbatch {k}"
        if "FB" in kinds and kinds != "FB":
            raise WrongPipeline(f"{s.name}: {where} have a whole backward B, and {kinds[2:]} besides.")
        if kinds not in ("FB", "FIW"):
            missing = "F" if "F" not in kinds else {"F": "B", "FW": "I", "FI": "W"}[kinds]
            raise WrongPipeline(f"{s.name}: there is no {KINDS[missing]} of {where}.")


def _in_place(s: Pipeline) -> None:
    """A backward runs on the rank that keeps the activations, after the forward that made them."""
    at = {a: k for row in s.rows for k, a in enumerate(row)}
    for a, rank in s.place.items():
        if a.kind == "F":
            continue
        first = Action(a.stage, "I" if a.kind == "W" else "F", a.microbatch)
        if s.place[first] != rank:
            raise WrongPipeline(
                f"{s.name}: rank {rank} does {a}, and rank {s.place[first]} did {first}: the activations are there."
            )
        if at[first] > at[a]:
            raise WrongPipeline(f"{s.name}: rank {rank} does {a} before {first}.")


def _deadlock(s: Pipeline, stuck: list[Starved]) -> str:
    """The ranks that wait for each other in a circle, or for one that does."""
    of = {w.rank: w for w in stuck}
    path = [stuck[0].rank]
    while (then := s.place[of[path[-1]].needs]) not in path:
        path.append(then)
    lines = [f"{s.name} can never finish: these ranks wait for each other."]
    for rank, action, needs in (of[rank] for rank in path[path.index(then) :]):
        kind = "the gradient" if action.kind in BACK else "the activation"
        lines.append(f"  rank {rank} is at {action} and waits for {kind} that {needs} makes on rank {s.place[needs]}")
    return "\n".join(lines)
