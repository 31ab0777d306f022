"""A verdict in words, and as the error that `run` raises: the one place where that is made."""

from typing import TYPE_CHECKING, Callable

from .. import verdict as kinds
from ..errors import Interrupted, Mismatch, RankFailed, RunError, ServerLost, StartFailed, Stuck
from ..verdict import Verdict
from . import failures, mismatches, waits
from .phrases import source as source  # feedback of exercises names lines too

if TYPE_CHECKING:
    from ..run import Run


def words(verdict: Verdict) -> str:
    """What happened, where, what to try."""
    make, _ = _KINDS[type(verdict)]
    before = waits.stood(verdict) if isinstance(verdict, kinds.Halt) and verdict.stood else []
    return "\n".join([*before, make(verdict)])


def headline(verdict: Verdict) -> str:
    """The words after the name of the error, as Jupyter shows them."""
    _, error = _KINDS[type(verdict)]
    return f"{(error or type(verdict)).__name__}: {words(verdict)}"


def error(verdict: Verdict, run: "Run") -> RunError | Interrupted:
    """The error that a verdict becomes.  run: what was recorded until then."""
    make, kind = _KINDS[type(verdict)]
    return kind(make(verdict), run, **_details(verdict))


def _details(verdict: Verdict) -> dict:
    """What the error says beyond its words."""
    match verdict:
        case kinds.Deadlock() | kinds.TimeUp() | kinds.Deserted():
            return {
                "ranks": verdict.ranks,
                "standing": [waits.stands(each, verdict.world_size) for each in verdict.standing],
                "waits": {each.rank: each.waits_for for each in verdict.standing if each.event},
                "timed_out": isinstance(verdict, kinds.TimeUp),
            }
        case kinds.Disagreement():
            return {"call": verdict.calls[-1]}
        case kinds.UnlikeGroups() | kinds.UnlikeNames() | kinds.UnsharedGroup():
            return {"call": None}
        case kinds.Raised() | kinds.Died() | kinds.Unreachable() | kinds.Unreadable():
            return {"rank": verdict.ranks[0], "traceback": failures.traceback_of(verdict)}
    return {}


# How each kind of verdict is worded, and the error that it becomes; None for one that ends no run.
_KINDS: dict[type[Verdict], tuple[Callable[..., str], type[RunError] | type[Interrupted] | None]] = {
    kinds.Deadlock: (waits.deadlock, Stuck),
    kinds.TimeUp: (waits.time_up, Stuck),
    kinds.Standstill: (waits.standstill, None),
    kinds.Interruption: (waits.interruption, Interrupted),
    kinds.Disagreement: (mismatches.disagreement, Mismatch),
    kinds.UnlikeGroups: (mismatches.unlike_groups, Mismatch),
    kinds.UnlikeNames: (mismatches.unlike_names, Mismatch),
    kinds.UnsharedGroup: (mismatches.unshared_group, Mismatch),
    kinds.Raised: (failures.raised, RankFailed),
    kinds.Died: (failures.died, RankFailed),
    kinds.Unreadable: (failures.unreadable, RankFailed),
    kinds.Deserted: (waits.deserted, Stuck),
    kinds.Ended: (failures.ended, None),
    kinds.Unreachable: (failures.unreachable, RankFailed),
    kinds.NoStart: (failures.no_start, StartFailed),
    kinds.SlowStart: (failures.slow_start, StartFailed),
    kinds.NoServer: (failures.no_server, ServerLost),
}
