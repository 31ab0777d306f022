"""`Schedule`: an algorithm as data, and what can be done with it. Each act has a module of its own."""

from __future__ import annotations

from dataclasses import dataclass

from .model import BaseSchedule


@dataclass(frozen=True, repr=False)
class Schedule(BaseSchedule):
    __doc__ = BaseSchedule.__doc__

    def prove(self):
        """Shows that every rank ends with exactly what the collective promises: see proof.prove."""
        from .proof import prove

        return prove(self)

    def count(self, nbytes: int | None = None, itemsize: int = 1):
        """Messages, bytes and steps, beside the lower bound: see count.count."""
        from .count import count

        return count(self, nbytes, itemsize)

    def program(self):
        """The rank function that executes this schedule with torch.distributed: see execute.program."""
        from .execute import program

        return program(self)

    def draw(self, step: int | None = None, style: str | None = None):
        """The picture: a matplotlib Figure; see picture.draw."""
        from .picture import draw

        return draw(self, step, style)

    def table(self) -> str:
        """Every step and every message, as text."""
        from .text import table

        return table(self)

    def __repr__(self) -> str:
        from .text import table

        return table(self, brief=True)

    def _ipython_display_(self) -> None:
        from ..frontend import show

        show(self.draw(), repr(self))
