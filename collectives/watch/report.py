"""The collector's printed report: a verdict, each rank's stack, and what will end the job."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..judge import wording
from ..judge.verdict import Standstill, Verdict
from ..judge.wording.failures import killed_by
from ..judge.wording.phrases import alike, few
from ..log.event import Failure, Line

RULE = "-" * 80
RETURNED_STATUS = "returned"
NOTE = "The ranks are left as they are: what ends them, a timeout or an error, is their backend's and the launcher's."
_NO_ANSWER = "not responding: stopped, or in C++ code that holds the GIL"
PACKAGES = f"-packages{os.sep}"


@dataclass
class RankPlace:
    """A rank's process."""

    host: str
    pid: int
    connected: bool = True
    end: str = ""  # the way it has ended, if known, see Judge.ends
    stack: tuple[Line, ...] | None = None  # outermost first; empty: the script has ended; None: unknown


def exception_words(failure: Failure) -> str:
    """The words for a rank whose script ended in an exception."""
    return f"raised {failure.kind}" + (f" at line {failure.frames[-1].number}" if failure.frames else "")


def exited(status: int | str | None) -> str:
    """The words for a rank whose process ended. status: see Died."""
    if status is None or isinstance(status, str):
        return "has ended"
    return f"was {killed_by(status)}" if status < 0 else f"ended with exit code {status}"


def report(verdict: Verdict, where: dict[int, RankPlace]) -> str:
    """A verdict, every rank's stack, and what happens to the ranks, if the verdict is certain."""
    end = [] if isinstance(verdict, Standstill) else [NOTE]
    return "\n".join([RULE, wording.headline(verdict), *stacks(where), *end, RULE])


def culprits(verdict: Verdict, world_size: int) -> tuple[int, ...]:
    """The ranks to look at first; empty where the verdict is about all of them alike."""
    verdict = getattr(verdict, "stood", None) or verdict  # whose end may follow from a rank that they waited for
    causes = {rank for cause in getattr(verdict, "causes", ()) for rank in cause.ranks}
    ranks = causes or getattr(verdict, "absent", ()) or verdict.ranks
    return tuple(sorted(ranks)) if len(ranks) < world_size else ()


def pointer(ranks: tuple[int, ...], folder: Path) -> str:
    """The last line on a job: the ranks that its verdict names, and the file that holds it."""
    file = folder / "verdict.txt"
    return f"{few(ranks)}, see {file}" if ranks else f"see {file}"


def stacks(where: dict[int, RankPlace]) -> list[str]:
    """Every rank's host, process and stack; a stack that several ranks share is written once."""
    lines = []
    for ranks in alike((rank, (place.connected, place.end, place.stack)) for rank, place in sorted(where.items())).values():
        lines += [f"rank {rank}, host {where[rank].host}, process {where[rank].pid}" for rank in ranks]
        lines += [f"    {line}" for line in _stack_lines(where[ranks[0]])]
    return lines


def _stack_lines(place: RankPlace) -> list[str]:
    if place.end or not place.connected:
        return [place.end or "has ended"]
    if not place.stack:
        return ["its script has ended" if place.stack is not None else _NO_ANSWER]
    return [
        f"{line.file.rpartition(PACKAGES)[2]}:{line.number} in {line.function}" + f":  {line.text}" * bool(line.text)
        for line in place.stack
    ]
