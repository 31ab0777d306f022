"""What the collector prints: a verdict, where each rank is, and who will end the job."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..format import name_ranks
from ..rank.callers import is_learners
from ..record.event import Line
from ..results.errors import RunError
from ..results.nccl import said
from ..results.state import State
from ..results.wording import standing

RULE = "-" * 80
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


def verdict(error: RunError, where: dict[int, Where]) -> str:
    left = (
        "The ranks are left as they are: what ends them, a time-out or an error, is their backend's and the launcher's."
    )
    return "\n".join([RULE, f"{type(error).__name__}: {error}", *stacks(where), left, RULE])


def standstill(state: State, seconds: float, where: dict[int, Where]) -> str:
    head = f"Standstill: no rank has made or finished a call for {seconds:.0f} s. That may be right, or a hang."
    return "\n".join([RULE, head, standing(state), *said(state), *stacks(where), RULE])


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
