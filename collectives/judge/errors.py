"""The errors a run can end with, and how they read: what happened, where, what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..record.calls import Call

if TYPE_CHECKING:
    from .run import Run  # it draws, and matplotlib takes its time


def message_only(error: Exception) -> Exception:
    """The same error, which Jupyter shows by its message, without a traceback through our own modules."""
    error._render_traceback_ = lambda: f"{type(error).__name__}: {error}".splitlines()
    return error


class RunError(RuntimeError):
    """A run that did not end well. `.run` holds what was recorded until then."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        # Jupyter shows this in place of a traceback through our own launcher.
        return f"{type(self).__name__}: {self}".splitlines()


class RankFailed(RunError):
    """A rank raised an exception or died. `.rank` is the first that did, `.traceback` its full text."""

    def __init__(self, message: str, run: Run, rank: int, traceback: str = "") -> None:
        super().__init__(message, run)
        self.rank, self.traceback = rank, traceback


class Mismatch(RunError):
    """Calls that belong together disagree: in op, shape, dtype, reduce op, root, sizes. `.call` is theirs."""

    def __init__(self, message: str, run: Run, call: Call) -> None:
        super().__init__(message, run)
        self.call = call


class Stuck(RunError):
    """A wait that can never end, or a run that is out of time.

    `.ranks` are those that have not returned, `.waits` tells for whom each of them waits,
    `.standing` what every rank is doing, in a few words; `.timed_out`: whether time ran out.
    """

    def __init__(
        self,
        message: str,
        run: Run,
        ranks: tuple[int, ...],
        standing: list[str],
        waits: dict[int, set[int]],
        timed_out: bool = False,
    ) -> None:
        super().__init__(message, run)
        self.ranks, self.standing, self.waits, self.timed_out = ranks, standing, waits, timed_out
        self._shown = False

    def draw(self):
        """The picture of who waits for whom: a matplotlib Figure."""
        from ..draw.wait_graph import wait_for_graph  # matplotlib takes its time, and most errors are only read

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
    """A run that somebody interrupted. `.run` holds what was recorded until then."""

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run

    def _render_traceback_(self) -> list[str]:
        return f"KeyboardInterrupt: {self}".splitlines()
