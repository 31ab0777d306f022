"""A verdict in words: the event, its place, and advice."""

from typing import Callable

from .. import verdict as kinds
from ..verdict import Verdict
from . import failures, mismatches, waits
from .phrases import source as source  # feedback of exercises names lines too


def words(verdict: Verdict) -> str:
    """The verdict in words: the event, its place, and advice."""
    make, _ = _KINDS[type(verdict)]
    before = waits.stood(verdict) if isinstance(verdict, kinds.Halt) and verdict.stood else []
    return "\n".join([*before, make(verdict)])


def error_name(verdict: Verdict) -> str | None:
    """The name of the error that a verdict becomes; None if it ends no run."""
    return _KINDS[type(verdict)][1]


def headline(verdict: Verdict) -> str:
    """The words after the name of the error, as Jupyter shows them."""
    error = error_name(verdict)
    return f"{error or type(verdict).__name__}: {words(verdict)}"


# How each kind of verdict is worded, and the name of the error that it becomes (outcome/errors.py); None for one that ends no run.
_KINDS: dict[type[Verdict], tuple[Callable[..., str], str | None]] = {
    kinds.Deadlock: (waits.deadlock, "Stuck"),
    kinds.TimeUp: (waits.time_up, "Stuck"),
    kinds.Standstill: (waits.standstill, None),
    kinds.Interruption: (waits.interruption, "Interrupted"),
    kinds.Disagreement: (mismatches.disagreement, "Mismatch"),
    kinds.UnlikeGroups: (mismatches.unlike_groups, "Mismatch"),
    kinds.UnlikeNames: (mismatches.unlike_names, "Mismatch"),
    kinds.UnsharedGroup: (mismatches.unshared_group, "Mismatch"),
    kinds.Raised: (failures.raised, "RankFailed"),
    kinds.Died: (failures.died, "RankFailed"),
    kinds.Unreadable: (failures.unreadable, "RankFailed"),
    kinds.Deserted: (waits.deserted, "Stuck"),
    kinds.Ended: (failures.ended, None),
    kinds.Unreachable: (failures.unreachable, "RankFailed"),
    kinds.NoStart: (failures.no_start, "StartFailed"),
    kinds.SlowStart: (failures.slow_start, "StartFailed"),
    kinds.NoServer: (failures.no_server, "ServerLost"),
}
