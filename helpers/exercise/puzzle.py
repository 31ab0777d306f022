"""Exercises whose function is called once and judged by what it returns: a plan, a number, not a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from .cases import Case, Draw

if TYPE_CHECKING:
    from .judge import Verdict


@dataclass(frozen=True)
class Puzzle:
    """What one function must return; beside Task, which is of functions that all ranks call.

    It runs on a rank that is alone, like any answer, so that an endless one ends and nothing
    of it runs in the process that judges.
    """

    name: str  # of the function
    cases: tuple[Case, ...]  # of world size 1; the last one is the one to tell about
    draw: Callable[[Draw], tuple]  # the arguments
    verdict: Callable[[Case, tuple, Any, bool], Verdict | None]  # case, arguments, result, whether the budget counts
    praise: Callable[[Case, tuple, Any], str]  # what a right answer achieves
    thoughts: dict[str, str] = field(default_factory=dict)  # name of an error of the run -> one thing to think about

    def arguments(self, case: Case, seed: str = "") -> list[tuple]:
        """What the function is called with, in a list of one, as Task.arguments."""
        return [self.draw(Draw(seed, self.name, case, 0))]
