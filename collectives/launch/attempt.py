"""A run whose error is an outcome."""

import contextlib
import io
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from ..outcome.errors import RunError
from ..outcome.run import Run
from .run import run


@dataclass
class Outcome:
    """The end of one run: its Run or its error, and what the ranks printed."""

    run: Run  # what was recorded, until the end or until the error
    error: RunError | None
    printed: str

    @property
    def done(self) -> Run | RunError:
        """The argument of an author's `answer`: the error if there is one, else the run."""
        return self.error or self.run

    def answer(self, of: Callable[[Run | RunError], Any]) -> Any:
        """An author's answer; the error itself where the author did not think of one."""
        try:
            return of(self.done)
        except Exception:
            if self.error:
                raise self.error from None
            raise


def attempt(fn: Callable, args: Sequence, kwargs: dict) -> Outcome:
    """Run the function. Capture what the ranks print and how the run ends."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            done, error = run(fn, *args, **kwargs), None
        except RunError as failed:
            done, error = failed.run, failed
    if done is None:  # interrupted, where interrupts are not passed on
        raise KeyboardInterrupt
    return Outcome(done, error, printed.getvalue())
