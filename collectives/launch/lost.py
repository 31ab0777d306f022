"""Runs that may lose ranks: `run(..., may_lose=N)`.

A rank may be killed, end by itself, or be stopped (SIGSTOP, which looks to its peers like a slow one). The others must
notice, catch the error of their call, and continue in a group without it. The run ends once they have all returned.
"""

import time
from dataclasses import replace
from typing import Any

from ..judge.monitor import EXIT_STATUS_SECONDS, Monitor
from ..judge.verdict import Died
from ..judge.wording.failures import how_it_ended, stopped_by
from ..log.backends import is_consequence


def check_may_lose(may_lose: Any, world_size: int) -> None:
    """Raises TypeError or ValueError for a number of ranks that can't be lost."""
    if isinstance(may_lose, bool) or not isinstance(may_lose, int):
        raise TypeError(f"may_lose is a number of ranks, a whole number like 1, not {may_lose!r}.")
    if not 0 <= may_lose < world_size:
        raise ValueError(f"may_lose must be from 0 to {world_size - 1}, not {may_lose}: a run needs one that survives.")


class Survivors(Monitor):
    """A Monitor that accuses nobody for the loss of up to `may_lose` ranks.

    Once one has died, the others part ways with it and for a while with each other, so their calls aren't compared from
    then on. Exceptions that they don't catch still end the run.
    """

    def __init__(self, may_lose: int, *args: Any) -> None:
        super().__init__(*args)
        self._may_lose = may_lose
        self._stopped: dict[int, int] = {}  # rank -> the signal's number

    def lost(self, rank: int, at: float | None = None) -> None:
        super().lost(rank, at)
        if rank in self.ended_early:
            self._check = False
            self._leave(rank)

    def note_stop(self, rank: int, number: int) -> None:
        if rank not in self._stopped:
            self._stopped[rank] = number
            self._leave(rank)

    def _leave(self, rank: int) -> None:
        for event in self._events[rank].values():
            event.cut_short = event.end is None

    @property
    def _victims(self) -> list[int]:
        """The ranks that have been lost, the ones that died last, in the order of their ends."""
        halted = self._stopped.keys() - self._lost.keys() - self._failures.keys() - self._returned
        return sorted(halted) + [rank for rank in self._lost if rank in self.ended_early]

    @property
    def dead(self) -> set[int]:
        """Ranks that ended without having returned or failed: none, as long as that many may, and the others go on."""
        unaware = self._failures and all(is_consequence(e.kind, e.message) for e in self._failures.values())
        return self.ended_early if unaware or len(self._victims) > self._may_lose else set()

    @property
    def losses(self) -> dict[int, str]:
        victims, now = self._victims, time.monotonic()
        if len(victims) > self._may_lose:
            return {}
        ends = {rank: stopped_by(self._stopped[rank]) for rank in victims if rank not in self._lost}
        for rank in self.ended_early:  # once its exit status is known, or will hardly come
            if rank in self._exited or now > self._lost[rank] + EXIT_STATUS_SECONDS:
                ends[rank] = how_it_ended(super()._died(rank))
        return ends

    def _died(self, rank: int) -> Died:
        victims = self._victims
        too_many = victims[self._may_lose :]
        verdict = super()._died(too_many[0] if too_many else rank)
        return replace(verdict, may_lose=self._may_lose, losses=tuple(sorted(victims)))
