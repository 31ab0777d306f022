"""What the collector prints: a verdict, where each rank is, and who will end the job."""

import os
from dataclasses import dataclass

from ..judge import wording
from ..judge.verdict import Standstill, Verdict
from ..record.event import Line

RULE = "-" * 80
LEFT = "The ranks are left as they are: what ends them, a timeout or an error, is their backend's and the launcher's."
_OVER = "has come to the end of its script"
_NO_ANSWER = "gives no answer: stopped, or inside C++ that holds the interpreter"
INSTALLED = f"-packages{os.sep}"


@dataclass
class Where:
    """A rank's process."""

    host: str
    pid: int
    connected: bool = True
    over: bool = False  # its script has returned or failed
    stack: tuple[Line, ...] | None = None  # outermost first; empty: the script has ended; None: not told


def told(verdict: Verdict, where: dict[int, Where]) -> str:
    """A verdict, every rank's place, and what becomes of the ranks, if the verdict is certain."""
    end = [] if isinstance(verdict, Standstill) else [LEFT]
    return "\n".join([RULE, wording.headline(verdict), *stacks(where), *end, RULE])


def stacks(where: dict[int, Where]) -> list[str]:
    """Every rank's host, process and stack; a stack that several ranks share is written once."""
    alike: dict[tuple, list[int]] = {}
    for rank, place in sorted(where.items()):
        alike.setdefault((place.connected, place.over, place.stack), []).append(rank)
    lines = []
    for ranks in alike.values():
        lines += [f"rank {rank}, host {where[rank].host}, process {where[rank].pid}" for rank in ranks]
        lines += [f"    {line}" for line in _written(where[ranks[0]])]
    return lines


def _written(place: Where) -> list[str]:
    if not place.connected:
        return ["has ended"]
    if not place.stack:
        return [_OVER if place.over or place.stack is not None else _NO_ANSWER]
    return [
        f"{line.file.rpartition(INSTALLED)[2]}:{line.number} in {line.function}" + f":  {line.text}" * bool(line.text)
        for line in place.stack
    ]
