"""What the collector prints: a verdict, where each rank is, and who will end the job."""

import os
from dataclasses import dataclass, field

from ..format import name_ranks
from ..judge import wording
from ..judge.verdict import Standstill, Verdict
from ..rank.callers import is_learners
from ..record.event import Line

RULE = "-" * 80
LEFT = "The ranks are left as they are: what ends them, a time-out or an error, is their backend's and the launcher's."
INSTALLED = f"-packages{os.sep}"


@dataclass
class Where:
    """A rank's process."""

    host: str
    pid: int
    connected: bool = True
    stack: list[Line] | None = None  # outermost first; empty: the script has ended; None: not told

    def __str__(self) -> str:
        return f"host {self.host}, process {self.pid}"


@dataclass
class _Alike:
    """Ranks whose stacks are the same."""

    stack: tuple[Line, ...] | None
    connected: bool
    ranks: list[int] = field(default_factory=list)


def told(verdict: Verdict, where: dict[int, Where]) -> str:
    """A verdict, every rank's place, and what becomes of the ranks, if the verdict is certain."""
    end = [] if isinstance(verdict, Standstill) else [LEFT]
    return "\n".join([RULE, wording.headline(verdict), *stacks(where), *end, RULE])


def stacks(where: dict[int, Where]) -> list[str]:
    """Every rank's host, process and stack; a stack that several ranks share is written once."""
    alike: dict[tuple, _Alike] = {}
    for rank, place in sorted(where.items()):
        stack = None if place.stack is None else tuple(place.stack)
        alike.setdefault((stack, place.connected), _Alike(stack, place.connected)).ranks.append(rank)
    lines = []
    for group in alike.values():
        lines += [f"{name_ranks([rank])}, {where[rank]}" for rank in group.ranks]
        lines += _written(group)
    return lines


def _written(group: _Alike) -> list[str]:
    if not group.connected:
        return ["    has ended"]
    if group.stack is None:
        return ["    gives no answer: stopped, or inside C++ that holds the interpreter"]
    if not group.stack:
        return ["    has come to the end of its script"]
    return [
        f"    {line.file.rpartition(INSTALLED)[2]}:{line.number} in {line.function}"
        + f":  {line.text}" * bool(line.text)
        for line in group.stack
    ]


def innermost(stack: list[Line]) -> tuple[Line | None, list[str]]:
    """The program's own innermost line, and the functions that it is inside of, innermost first."""
    for place, line in reversed(list(enumerate(stack))):
        if is_learners(line.file):
            return line, [inner.function for inner in reversed(stack[place + 1 :])]
    return None, []
