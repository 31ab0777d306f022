"""The errors that a run can end with, each with its message: the event, its place, and advice."""

from typing import TYPE_CHECKING, Any

from ..judge import verdict as kinds
from ..judge import wording
from ..judge.verdict import Verdict
from ..log.calls import Call

if TYPE_CHECKING:
    from .run import Run  # it draws, and matplotlib is slow to import


def message_only(error: Exception) -> Exception:
    """The same error, which Jupyter shows by its message, without a traceback through our own modules."""
    error._render_traceback_ = lambda: _brief(error)
    return error


def _brief(error: Exception) -> list[str]:
    return f"{type(error).__name__}: {error}".splitlines()


class RunError(RuntimeError):
    """A run that did not end well. `.run` has the record until then, and details are attributes too."""

    def __init__(self, message: str, run: "Run", **details: Any) -> None:
        super().__init__(message)
        self.run = run
        vars(self).update(details)

    _render_traceback_ = _brief


class RankFailed(RunError):
    """A rank raised an exception or died. `.rank`: the first that did; `.traceback`: its full text."""

    rank: int
    traceback: str


class Mismatch(RunError):
    """Calls that belong together disagree: in op, shape, dtype, reduce op, root, sizes. `.call` is theirs.

    Or ranks didn't all make the same groups, by new_group, which is not recorded: then `.call` is None.
    """

    call: Call | None


class Stuck(RunError):
    """A wait that can never end, or a run that is out of time.

    `.ranks`: those that have not returned; `.waits`: for each of them, the ranks it waits for;
    `.standing`: every rank's state, in a few words; `.timed_out`: whether time ran out.
    """

    ranks: tuple[int, ...]
    standing: list[str]
    waits: dict[int, set[int]]
    timed_out: bool
    _shown = False

    def draw(self):
        """The wait-for graph: a matplotlib Figure."""
        from ..draw.wait_graph import wait_for_graph  # matplotlib is slow to import, and most errors are only read

        return wait_for_graph(self.standing, self.waits)

    def _render_traceback_(self) -> list[str]:
        from IPython.display import display

        if self.waits and not self._shown:  # Jupyter asks more than once
            self._shown = True
            display(self.draw())
        return super()._render_traceback_()


class StartFailed(RunError):
    """Ranks that could not be started, or not in time. None of the learner's code has run."""


class ServerLost(RunError):
    """The end of the process that starts the ranks, and of the ranks with it."""


class Interrupted(KeyboardInterrupt):
    """A run that somebody interrupted. `.run` has the record until then."""

    def __init__(self, message: str, run: "Run") -> None:
        super().__init__(message)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".splitlines()


def error(verdict: Verdict, run: "Run") -> RunError | Interrupted:
    """The error that a verdict becomes.  run: the record until then."""
    kind = _ERRORS[wording.error_name(verdict)]
    return kind(wording.words(verdict), run, **_details(verdict))


def _details(verdict: Verdict) -> dict:
    """The error's attributes, besides its words."""
    match verdict:
        case kinds.Deadlock() | kinds.TimeUp() | kinds.Deserted():
            return {
                "ranks": verdict.ranks,
                "standing": [wording.waits.stands(state, verdict.world_size) for state in verdict.standing],
                "waits": {state.rank: state.waits_for for state in verdict.standing if state.event},
                "timed_out": isinstance(verdict, kinds.TimeUp),
            }
        case kinds.Disagreement():
            return {"call": verdict.calls[-1]}
        case kinds.UnlikeGroups() | kinds.UnlikeNames() | kinds.UnsharedGroup():
            return {"call": None}
        case kinds.Raised() | kinds.Died() | kinds.Unreachable() | kinds.Unreadable():
            return {"rank": verdict.ranks[0], "traceback": wording.failures.traceback_of(verdict)}
    return {}


_ERRORS = {kind.__name__: kind for kind in (Stuck, Mismatch, RankFailed, StartFailed, ServerLost, Interrupted)}
